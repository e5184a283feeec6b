# SPDX-License-Identifier: BSD-3-Clause
# `torchette migrate` converts files of earlier versions to the current form with the same results.

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from torchette import cli  # noqa: E402
from torchette.backends.xnnpack import XnnpackPartitioner  # noqa: E402
from torchette.devtools.migrate import forms, migrate  # noqa: E402
from torchette.errors import FormatError  # noqa: E402
from torchette.exir import ExecutorchBackendConfig, to_edge_transform_and_lower  # noqa: E402
from torchette.format import flatbuffer, pte  # noqa: E402

X = torch.ones(2, 8)


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 4)
        self.register_buffer("count", torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.layer(x) * self.count


def results(data: bytes) -> list[torch.Tensor]:
    program = torchette.load(data)
    return [torch.as_tensor(program(X)) for _ in range(2)]


def test_weights_inside_the_program_become_a_segment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The form of ExecuTorch's first versions, without a header."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).eval()
    new = bytes(torchette.compile(net, (X,), backend="portable"))
    file = pte.read(new)
    program = file.program
    count = len(program.constant_segment.offsets)
    buffer = pte.SCHEMA.types["Buffer"]
    program.constant_buffer = [buffer(bytes(file.constant(i)) if i else b"") for i in range(count)]
    program.constant_segment, program.segments = None, []
    path, migrated = tmp_path / "old.pte", tmp_path / "new.pte"
    path.write_bytes(bytes(flatbuffer.encode(pte.SCHEMA, program)))
    assert len(forms(pte.load_file(path))) == 2

    assert cli.main(["migrate", str(path), "-o", str(migrated)]) == 0
    output = capsys.readouterr().out
    assert "weights were inside the program" in output and "no header" in output
    assert forms(pte.load_file(migrated)) == []
    for old, expected, actual in zip(
        *map(results, (path.read_bytes(), new, migrated.read_bytes())), strict=True
    ):
        assert torch.equal(old, expected) and torch.equal(actual, expected)

    assert cli.main(["migrate", str(migrated)]) == 0
    assert "is in the current form" in capsys.readouterr().out
    assert bytes(migrate(migrated)[0]) == migrated.read_bytes()


def test_payloads_become_segments_and_state_is_kept(tmp_path: Path) -> None:
    edge = to_edge_transform_and_lower(
        torch.export.export(Counting(), (X,)), partitioner=[XnnpackPartitioner()]
    )
    old = edge.to_executorch(ExecutorchBackendConfig(extract_delegate_segments=False)).buffer
    path = tmp_path / "old.pte"
    path.write_bytes(old)
    program, forms = migrate(path)
    assert [form.partition(" were")[0] for form in forms] == ["payloads of delegates"]
    assert pte.read(bytes(program)).program.backend_delegate_data == []
    assert all(torch.equal(a, b) for a, b in zip(results(old), results(bytes(program)), strict=True))
    assert not torch.equal(*results(old))  # the state changes


def test_invalid_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "net.pte"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(FormatError, match=r"net\.pte"):
        migrate(path)
