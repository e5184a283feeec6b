# SPDX-License-Identifier: BSD-3-Clause
# `sizes` and `torchette size` sum to the size of the file for every kind of content.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("portable_plan")

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from tests.format import peer_files  # noqa: E402
from torchette import cli  # noqa: E402
from torchette.devtools import size  # noqa: E402
from torchette.errors import FormatError, ModelNotFoundError  # noqa: E402
from torchette.exir import ExecutorchBackendConfig  # noqa: E402


class Counting(torch.nn.Module):
    """Weights, a buffer that calls change, and an embedding table with another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.second = torch.nn.Linear(32, 8)
        self.register_buffer("calls", torch.ones(5))
        self.register_buffer("order", torch.arange(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.second(self.first(x).relu())[:, self.order] + self.calls.sum()


X = torch.ones(2, 16)
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no source lines": {"source_lines": False},
    "stack traces": {"emit_stacktrace": True},
    "delegates inside": {"extract_delegate_segments": False},
    "alignment": {"segment_alignment": 4096, "constant_tensor_alignment": 64},
    "names": {"emit_mutable_buffer_names": True},
    "data file": {"external_constants": True},
}


def assert_whole(data: bytes) -> size.Sizes:
    sizes = size.sizes(data)
    assert sizes.nbytes == len(data) == sum(piece.nbytes for piece in sizes.pieces)
    assert all(piece.nbytes > 0 for piece in sizes.pieces)
    for property_name in size.PROPERTIES:
        assert sum(sizes.by(property_name).values()) == len(data)
    return sizes


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("backend", ["portable", "null"])
@pytest.mark.filterwarnings("ignore::torchette.errors.DelegationWarning")
def test_sizes_sum_to_file(config: dict[str, Any], backend: str, tmp_path: Path) -> None:
    model = torchette.compile(
        Counting().eval(), (X,), backend=backend, config=ExecutorchBackendConfig(**config)
    )
    path = model.save(tmp_path / "net.pte")
    assert_whole(path.read_bytes())
    for data_file in tmp_path.glob("*.ptd"):
        sizes = assert_whole(data_file.read_bytes())
        assert sizes.by("module")["first"] == 4 * (16 * 32 + 32)
        assert sizes.by("tensor")["second.weight"] == 4 * 32 * 8


def test_the_sizes_sum_to_a_file_with_several_methods() -> None:
    linear = torch.nn.Linear(16, 16).eval()
    shared = {"a": (linear, (X,)), "b": (torch.nn.Sequential(linear, torch.nn.ReLU()).eval(), (X,))}
    sizes = assert_whole(bytes(torchette.compile(shared, constant_methods={"version": 3})))
    assert sizes.by("part")["weights"] == 4 * (16 * 16 + 16), "methods share weights"


@pytest.mark.parametrize("name", peer_files.MODELS)
def test_sizes_sum_to_executorch_files(name: str) -> None:
    sizes = assert_whole(peer_files.peer_file(name))
    payloads = {piece.delegate: piece.nbytes for piece in sizes.pieces if piece.part == "delegates"}
    assert ("forward: XnnpackBackend 0" in payloads) == (name == "delegated")
    assert sizes.by("part").get("delegates", 0) == sum(payloads.values())


def test_each_byte_has_its_part() -> None:
    config = ExecutorchBackendConfig(emit_mutable_buffer_names=True)
    sizes = assert_whole(bytes(torchette.compile(Counting().eval(), (X,), config=config)))
    weights = 4 * (16 * 32 + 32 + 32 * 8 + 8)
    assert sizes.by("operator")["aten::linear.out"] == weights
    assert sizes.by("part")["initial values"] == 20
    assert sizes.by("dtype")["int64"] == 64 and sizes.by("dtype")["float32"] >= weights + 20
    assert sizes.by("tensor")["calls"] == 20, "state has its name in the file"
    places = sizes.by("module")
    assert "first" in places or any("test_size.py:" in place for place in places)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = torchette.compile(Counting().eval(), (X,)).save(tmp_path / "net.pte")
    assert cli.main(["size", str(path), "--by", "tensor", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{path.stat().st_size:,} bytes by tensor" in lines[0] and len(lines) == 5
    count = len(size.sizes(path).by("tensor"))
    assert lines[-1].startswith(f"… {count - 2} more rows; --top {count} shows all")
    assert cli.main(["size", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == size.sizes(path).to_dict()


def test_invalid_file_raises(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        size.sizes(tmp_path / "nowhere.pte")
    data = bytes(torchette.compile(Counting().eval(), (X,)))
    for length in (0, 4, 30, 200, len(data) - 300):
        with pytest.raises(FormatError):
            size.sizes(data[:length])


def test_weights_of_a_delegate_have_its_modules_and_dtypes() -> None:
    pytest.importorskip("torchette.backends.xnnpack.partitioner")
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()
    sizes = assert_whole(bytes(torchette.compile(net, (torch.zeros(1, 32),), backend="xnnpack")))
    weights = [piece for piece in sizes.pieces if piece.part == "weights"]
    assert {piece.module for piece in weights} == {"0", "2"} and {piece.dtype for piece in weights} == {
        "float32"
    }
    assert {piece.delegate for piece in weights} == {"forward: XnnpackBackend 0"}
    assert sum(piece.nbytes for piece in weights) >= 4 * (32 * 64 + 64 + 64 * 8 + 8)
