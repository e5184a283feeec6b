# SPDX-License-Identifier: BSD-3-Clause
# Files with a receipt: any changed bit is found, in Python and in C++; every reader runs them as before.

from __future__ import annotations

import json
import random
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("portable_plan")

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from tests.building import built  # noqa: E402
from tests.format import peer_files  # noqa: E402
from torchette import cli, receipt  # noqa: E402
from torchette.devtools.inspect import describe  # noqa: E402
from torchette.errors import (  # noqa: E402
    CompileError,
    FormatError,
    InputError,
    InputTypeError,
    TorchetteError,
)
from torchette.exir import ExecutorchBackendConfig  # noqa: E402
from torchette.format import pte  # noqa: E402
from torchette.runtime import Runtime, Verification, xxh64  # noqa: E402

X = torch.linspace(-1, 1, 32).reshape(2, 16)


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()


@pytest.fixture(scope="module")
def signed() -> bytes:
    return bytes(torchette.compile(net(), (X,), verify=True))


def load(data: Any, **options: Any) -> Any:
    return Runtime.get().load_program(data, verification="integrity", **options)


def reference_xxh64(data: bytes) -> int:
    """XXH64, implemented from its specification."""
    p1, p2, p3, p4, p5 = (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
    mask = (1 << 64) - 1

    def left(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & mask

    def step(lane: int, word: int) -> int:
        return left((lane + word * p2) & mask, 31) * p1 & mask

    words = len(data) // 32 * 4
    lanes = [(p1 + p2) & mask, p2, 0, -p1 & mask]
    for index in range(words):
        lanes[index % 4] = step(lanes[index % 4], int.from_bytes(data[index * 8 : index * 8 + 8], "little"))
    if words:
        digest = sum(left(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & mask
        for lane in lanes:
            digest = ((digest ^ step(0, lane)) * p1 + p4) & mask
    else:
        digest = p5
    digest = (digest + len(data)) & mask
    tail = data[words * 8 :]
    while len(tail) >= 8:
        digest = (left(digest ^ step(0, int.from_bytes(tail[:8], "little")), 27) * p1 + p4) & mask
        tail = tail[8:]
    if len(tail) >= 4:
        digest = (left(digest ^ int.from_bytes(tail[:4], "little") * p1 & mask, 23) * p2 + p3) & mask
        tail = tail[4:]
    for byte in tail:
        digest = left(digest ^ byte * p5 & mask, 11) * p1 & mask
    digest = (digest ^ digest >> 33) * p2 & mask
    digest = (digest ^ digest >> 29) * p3 & mask
    return digest ^ digest >> 32


def test_the_hash_is_xxh64() -> None:
    known = {b"": 0xEF46DB3751D8E999, b"a": 0xD24EC4F1A98C6E5B, b"abc": 0x44BC2CF5AD770999}
    for text, expected in known.items():
        assert xxh64(text) == reference_xxh64(text) == expected
    source = random.Random(0)
    for length in [*range(100), 1000, 4099]:
        data = source.randbytes(length)
        assert xxh64(memoryview(b"-" + data)[1:]) == reference_xxh64(data)


def test_signed_file_states_its_origin(signed: bytes, tmp_path: Path) -> None:
    stored = receipt.read(signed)
    assert stored is not None
    assert stored.facts["torch"] == receipt._version("torch") and stored.facts["torchette"]
    cases = stored.facts["compared"]
    assert [case["inputs"].get("seed") for case in cases] == [None, 0, 1, 2]
    assert all(case["outputs"][0]["max_abs"] < 1e-5 for case in cases)
    assert stored.facts["exceptions"] == [] and stored.data_files == []
    assert sum(part.nbytes for part in stored.parts) + len(pte.read(signed).named()[receipt.KEY]) == len(
        signed
    )
    assert receipt.verify(signed) == []
    json.dumps(stored.to_dict())
    assert receipt.read(bytes(torchette.compile(net(), (X,)))) is None


def test_every_reader_runs_a_signed_file(signed: bytes) -> None:
    expected = net()(X).detach().numpy()
    (ours,) = load(signed).load_method("forward").execute([X.numpy()])
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
    runtime = pytest.importorskip("executorch.runtime")
    theirs = runtime.Runtime.get().load_program(signed).load_method("forward").execute([X])
    np.testing.assert_allclose(theirs[0].numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", peer_files.MODELS)
def test_the_peers_files_can_be_signed(name: str) -> None:
    data = peer_files.peer_file(name)
    signed = receipt.sign(data)
    assert receipt.verify(signed) == []
    before, after = describe(data), describe(signed)
    assert before.methods == after.methods and before.constants == after.constants
    assert load(signed).method_names == Runtime.get().load_program(data).method_names
    if name == "mixed":
        runtime = pytest.importorskip("executorch.runtime")
        inputs = [torch.tensor([1, 2, 3]), torch.tensor(2.0)]
        first, second = (
            runtime.Runtime.get().load_program(program).load_method("forward").execute(inputs)
            for program in (data, signed)
        )
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("config", [{}, {"segment_alignment": 4096}, {"extract_delegate_segments": False}])
@pytest.mark.filterwarnings("ignore::torchette.errors.DelegationWarning")
def test_signing_keeps_bytes_and_alignment_and_can_be_repeated(config: dict[str, Any]) -> None:
    model = torchette.compile(net(), (X,), backend="null", config=ExecutorchBackendConfig(**config))
    data = bytes(model)
    once, longer = (
        receipt.sign(data, {"trained": "once"}),
        receipt.sign(data, {"trained": "again, with more words"}),
    )
    assert once == receipt.sign(data, {"trained": "once"})
    again = receipt.sign(longer, {"trained": "once"})
    assert receipt.verify(again) == [] and list(pte.read(again).named()) == list(pte.read(once).named())
    assert (
        receipt.read(again).facts == receipt.read(once).facts
        and receipt.read(once).facts["trained"] == "once"
    )
    before, after = pte.read(data), pte.read(once)
    for index in range(len(before.program.segments)):
        assert bytes(before.segment(index)) == bytes(after.segment(index))
        start = after.segment_base + after.program.segments[index].offset
        assert start % config.get("segment_alignment", 128) == 0
    with pytest.raises(InputTypeError, match="JSON"):
        receipt.sign(data, {"model": object()})


def flips(data: bytes, count: int) -> list[tuple[int, int]]:
    """Returns the bits to flip: all of the first and last bytes, and others throughout the file."""
    source = random.Random(1)
    edge = [(at, bit) for at in (*range(64), *range(len(data) - 64, len(data))) for bit in (0, 7)]
    return edge + [(source.randrange(len(data)), source.randrange(8)) for _ in range(count)]


def test_any_flipped_bit_is_found(signed: bytes) -> None:
    for at, bit in flips(signed, 1500):
        damaged = bytearray(signed)
        damaged[at] ^= 1 << bit
        with pytest.raises(TorchetteError) as caught:
            load(bytes(damaged))
        assert caught.value.code in ("damaged", "no-receipt", "bad-file"), f"bit {bit} of byte {at}"
        try:
            assert receipt.verify(bytes(damaged)), f"bit {bit} of byte {at}"
        except FormatError as error:
            assert error.code in ("damaged", "no-receipt", "bad-file")


def test_every_bit_of_a_weight_is_found_and_the_weight_is_named(signed: bytes) -> None:
    file = pte.read(signed)
    index = next(c.index for c in describe(file).constants if c.sizes == [8, 64])
    weight = bytes(file.constant(index))
    start = signed.index(weight)
    source = random.Random(2)
    for _ in range(200):
        damaged = bytearray(signed)
        damaged[start + source.randrange(8 * 64 * 4)] ^= 1 << source.randrange(8)
        with pytest.raises(FormatError, match="differ from the receipt"):
            load(bytes(damaged))
    (damage,) = receipt.verify(bytes(damaged))
    assert f"weight {index}" in damage.holds and damage.offset <= start < damage.offset + damage.nbytes


def test_cut_short_and_longer_files(signed: bytes) -> None:
    for data in (signed + b"\0", signed[:-1], signed[: len(signed) // 2]):
        with pytest.raises(FormatError):
            load(data)
    assert receipt.verify(signed + b"\0")[0].holds == ["bytes after the end of the file"]


@pytest.mark.parametrize("counts", [(1 << 32) - 1, 1 << 28, 9])
@pytest.mark.parametrize("size", [(1 << 64) - 1, 1 << 63, 0, 7])
def test_hostile_receipt_is_rejected(signed: bytes, counts: int, size: int) -> None:
    """A changed receipt with a correct hash of itself."""
    start = len(signed) - len(pte.read(signed).named()[receipt.KEY])
    for body in (
        struct.pack("<II", counts, 0) + signed[start + 24 :],
        struct.pack("<II", 1, counts) + signed[start + 24 :],
        signed[start + 16 : start + 24] + struct.pack("<Q", size) + signed[start + 32 :],
        struct.pack("<II", 0, 0) + signed[start + 24 :],
        struct.pack("<II", 0, 0) + b"x" * (len(signed) - start - 24),
    ):
        hostile = signed[: start + 8] + struct.pack("<Q", xxh64(body)) + body
        assert len(hostile) == len(signed)
        with pytest.raises(FormatError) as caught:
            load(hostile)
        assert caught.value.code == "damaged"
        describe(hostile)
        try:
            assert receipt.verify(hostile)
        except FormatError as error:
            assert error.code == "damaged"


def test_receipt_of_a_quantized_model_states_its_calibration() -> None:
    pytest.importorskip("torchao")
    from torchette.backends.xnnpack import pt2e_quantizer

    quantizer = pt2e_quantizer.XNNPACKQuantizer().set_global(
        pt2e_quantizer.get_symmetric_quantization_config()
    )
    model = torchette.compile(net(), (X,), quantizer=quantizer, calibration=[(X,), (X * 2,)], verify=True)
    facts = receipt.read(bytes(model)).facts
    assert facts["quantizers"] == ["XNNPACKQuantizer"] and facts["calibration_samples"] == {"forward": 2}


def test_without_a_receipt_integrity_is_an_error_that_names_the_remedy(tmp_path: Path) -> None:
    path = torchette.compile(net(), (X,)).save(tmp_path / "net.pte")
    for level in ("integrity", "Integrity", Verification.Integrity):
        with pytest.raises(FormatError, match="no receipt") as caught:
            Runtime.get().load_program(path, verification=level)
        assert caught.value.code == "no-receipt" and "verify=True" in str(caught.value)
    with pytest.raises(FormatError, match="no receipt"):
        receipt.verify(path)
    with pytest.raises(InputError, match="no verification 'total'"):
        Runtime.get().load_program(path, verification="total")


def test_data_files_are_held_against_the_receipt(tmp_path: Path) -> None:
    config = ExecutorchBackendConfig(external_constants=True)
    path = torchette.compile(net(), (X,), config=config, verify=True).save(tmp_path / "net.pte")
    (data_file,) = tmp_path.glob("*.ptd")
    assert len(receipt.read(path).data_files) == 1
    assert receipt.verify(path, [data_file]) == []
    program = load(path, data_files=[data_file])
    assert program.load_method("forward").execute([X.numpy()])[0].shape == (2, 8)
    content = data_file.read_bytes()
    for at in (len(content) - 5, len(content) // 2):
        damaged = bytearray(content)
        damaged[at] ^= 4
        data_file.write_bytes(bytes(damaged))
        with pytest.raises(FormatError, match=r"data file .*\.ptd matches none of the 1"):
            load(path, data_files=[data_file])
        assert [damage.file for damage in receipt.verify(path, [data_file])] == [str(data_file)]


def test_large_files_are_hashed_in_pieces() -> None:
    model = torch.nn.Linear(1024, 700, bias=False).eval()
    signed = receipt.sign(bytes(torchette.compile(model, (torch.ones(1, 1024),))))
    sizes = [part.nbytes for part in receipt.read(signed).parts]
    assert max(sizes) == 1 << 20 and len(sizes) >= 3
    load(signed)
    damaged = bytearray(signed)
    damaged[-2_000_000] ^= 1
    with pytest.raises(FormatError, match="damaged"):
        load(bytes(damaged))


def test_receipts_of_several_methods_and_of_state() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return x * self.calls

    class Noise(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    methods = {"count": (Counting().eval(), (X,)), "noise": (Noise().eval(), (X,))}
    model = torchette.compile(methods, constant_methods={"version": 3}, verify=True)
    facts = receipt.read(bytes(model)).facts
    assert {case["method"] for case in facts["compared"]} == {"count"}
    assert (
        len(facts["exceptions"]) == 1
        and "noise" in facts["exceptions"][0]
        and "random" in facts["exceptions"][0]
    )
    assert float(model.count(X)[0, 0]) == float(X[0, 0]), "the state is as after loading"


def test_a_wrong_result_is_not_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torchette.compile(net(), (X,))
    before = bytes(model)
    right = model._outputs

    def wrong(name: str, args: Any, kwargs: Any) -> Any:
        return {i: (theirs, ours + 0.1) for i, (theirs, ours) in right(name, args, kwargs).items()}

    monkeypatch.setattr(model, "_outputs", wrong)
    with pytest.raises(CompileError, match=r"output 0 differs by up to 0\.1") as caught:
        model.sign()
    assert caught.value.code == "results-differ" and bytes(model) == before


def test_verify_and_inspect_print_it(
    signed: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.pte"
    path.write_bytes(signed)
    assert cli.main(["verify", str(path)]) == 0
    text = capsys.readouterr().out
    assert "matches its receipt" in text and "inputs of seed 2" in text
    assert cli.main(["inspect", str(path)]) == 0
    assert "provenance" in (text := capsys.readouterr().out) and "forward on the example inputs" in text
    damaged = bytearray(signed)
    damaged[pte.read(signed).segment_base + 40] ^= 1
    path.write_bytes(bytes(damaged))
    assert cli.main(["verify", str(path)]) == 1
    assert "weight" in capsys.readouterr().out
    assert cli.main(["verify", str(path), "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["whole"]
    path.write_bytes(bytes(torchette.compile(net(), (X,))))
    assert cli.main(["verify", str(path)]) == 2
    assert "verify=True" in capsys.readouterr().err


@pytest.mark.safety
def test_the_runner_checks_it(signed: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.pte"
    path.write_bytes(signed)

    def run(*more: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        command = [built("executor_runner"), "--verification=integrity", "--print_output", "none", *more]
        return subprocess.run(command, capture_output=True, input=stdin)

    assert run("--model_path", str(path)).returncode == 0
    assert run("--model_path", "-", stdin=signed).returncode == 0
    damaged = bytearray(signed)
    damaged[pte.read(signed).segment_base + 40] ^= 1
    path.write_bytes(bytes(damaged))
    done = run("--model_path", str(path))
    assert (
        done.returncode == 1
        and b"InvalidProgram" in done.stderr
        and b"differ from the receipt" in done.stderr
    )
    path.write_bytes(bytes(torchette.compile(net(), (X,))))
    done = run("--model_path", str(path))
    assert done.returncode == 1 and b"the program has no receipt" in done.stderr
