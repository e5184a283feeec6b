# SPDX-License-Identifier: BSD-3-Clause
# `compare` and `torchette pte-diff` on two files with a known difference.

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("portable_plan")

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from tests.format import peer_files  # noqa: E402
from torchette import cli, receipt  # noqa: E402
from torchette.devtools.pte_diff import KINDS, Row, compare  # noqa: E402
from torchette.errors import FormatError, ModelNotFoundError  # noqa: E402
from torchette.exir import ExecutorchBackendConfig  # noqa: E402

X = torch.ones(2, 8)


def net(*more: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4), *more).eval()


def file(model: torch.nn.Module, **options: object) -> bytes:
    return bytes(torchette.compile(model, (X,), **options))


def rows(a: bytes, b: bytes, kind: str) -> list[Row]:
    return [row for row in compare(a, b).rows if row.kind == kind]


def test_equal_files_are_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / name) for name in ("a.pte", "b.pte")]
    for path in paths:
        Path(path).write_bytes(file(net()))
    assert compare(*paths).equal
    assert cli.main(["pte-diff", *paths]) == 0
    assert "are equal" in capsys.readouterr().out


def test_changed_weight_is_found_and_measured() -> None:
    changed = net()
    with torch.no_grad():
        changed[2].weight[1, 3] += 0.5
    a, b = file(net()), file(changed)
    (row,) = compare(a, b).rows
    assert row.kind == "weight" and row.name.startswith("forward 2 aten::linear.out (")
    assert row.more["elements that differ"] == 1 and row.more["of"] == 32
    assert row.more["largest difference"] == pytest.approx(0.5, abs=1e-6)


def test_inserted_layer_is_one_difference() -> None:
    torch.manual_seed(0)
    first, last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
    short = torch.nn.Sequential(first, torch.nn.Tanh(), last).eval()
    long = torch.nn.Sequential(first, torch.nn.Tanh(), torch.nn.Sigmoid(), last).eval()
    diff = compare(file(short), file(long))
    kinds = {row.kind for row in diff.rows}
    assert "weight" not in kinds and "argument" not in kinds
    (instruction,) = (row for row in diff.rows if row.kind == "instruction")
    assert instruction.a is None and "aten::sigmoid" in instruction.b
    assert any(row.name == "forward: aten::sigmoid.out" and row.b == 1 for row in diff.rows)


def test_arguments_signatures_methods_and_memory() -> None:
    class Clamp(torch.nn.Module):
        def __init__(self, most: float, dim: int) -> None:
            super().__init__()
            self.most, self.dim = most, dim

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clamp(0.0, self.most).amax([self.dim])

    a, b = file(Clamp(1.0, 0).eval()), file(Clamp(2.0, 1).eval())
    arguments = {(row.a, row.b) for row in rows(a, b, "argument")}
    assert ("1.0", "2.0") in arguments and ("[0]", "[1]") in arguments
    assert [row.a for row in rows(a, b, "signature")] == ["output float32[8]"]
    assert rows(a, b, "memory")[0].more["by"] == 0 if rows(a, b, "memory") else True
    two = bytes(torchette.compile({"forward": (net(), (X,)), "again": (net(), (X,))}))
    assert [(row.name, row.a, row.b) for row in rows(file(net()), two, "method")] == [
        ("again", None, "there")
    ]


@pytest.mark.filterwarnings("ignore::torchette.errors.DelegationWarning")
def test_delegates_named_data_and_sizes() -> None:
    changed = net()
    with torch.no_grad():
        changed[0].bias[0] = 3.0
    a, b = (file(model, backend="null") for model in (net(), changed))
    diff = compare(a, b)
    assert not diff.equal
    assert {row.kind for row in diff.rows} <= {"delegate", "named data", "weight", "size"}
    signed = compare(file(net()), receipt.sign(file(net())))
    assert [(row.name, row.b) for row in signed.rows if row.kind == "named data"] == [(receipt.KEY, "there")]
    plain, stripped = file(net()), file(net(), config=ExecutorchBackendConfig(source_lines=False))
    diff = compare(plain, stripped)
    assert {row.kind for row in diff.rows} == {"size", "bytes"}, "the same program"


def test_compare_with_executorch_file() -> None:
    model, args, kwargs, _ = peer_files.MODELS["mixed"]
    torch.manual_seed(0)
    ours = bytes(torchette.compile(model().eval(), args, kwargs))
    diff = compare(ours, peer_files.peer_file("mixed"))
    assert any(row.kind == "method" and row.name == "version" for row in diff.rows)
    json.dumps(diff.to_dict(), allow_nan=False)
    assert {table.columns[0] for table in diff.tables()} <= set(KINDS)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.pte").write_bytes(file(net()))
    (tmp_path / "b.pte").write_bytes(file(net(torch.nn.ReLU())))
    paths = [str(tmp_path / "a.pte"), str(tmp_path / "b.pte")]
    assert cli.main(["pte-diff", *paths]) == 1
    assert "aten::relu.out" in capsys.readouterr().out
    assert cli.main(["pte-diff", *paths, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["equal"] and report["differences"][0]["kind"] in KINDS


def test_invalid_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        compare(file(net()), b"not a program at all")
    with pytest.raises(ModelNotFoundError):
        compare(tmp_path / "nowhere.pte", file(net()))
