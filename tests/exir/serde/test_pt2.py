# SPDX-License-Identifier: BSD-3-Clause
# `exir.save` and `exir.load`: programs of all dialects in .pt2 files compile to the same bytes as before.

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram, export

import torchette
from torchette import exir
from torchette.backends.null import NullPartitioner
from torchette.cli import main
from torchette.errors import FormatError
from torchette.exir import to_edge, to_edge_transform_and_lower
from torchette.exir.delegation.delegate import is_delegate_call
from torchette.exir.dialects._ops import EdgeOpOverload
from torchette.exir.graph import calls
from torchette.exir.program import EdgeProgramManager


class Net(nn.Module):
    """State, a branch, a list of results and a norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm = nn.Linear(4, 6), nn.LayerNorm(6)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        left, right = self.norm(self.layer(x)).chunk(2, 1)
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y - 1, (left + right,)) + self.count


X = torch.linspace(-1, 2, 12).reshape(3, 4)


def captured() -> ExportedProgram:
    return export(Net().eval(), (X,), dynamic_shapes=({0: Dim("rows", min=2, max=8)},))


def at_edge() -> ExportedProgram:
    return to_edge(captured()).exported_program()


def lowered() -> ExportedProgram:
    return to_edge_transform_and_lower(captured(), partitioner=[NullPartitioner()]).exported_program()


def xnnpack() -> ExportedProgram:
    from torchette.backends.xnnpack import XnnpackPartitioner

    return to_edge_transform_and_lower(captured(), partitioner=[XnnpackPartitioner()]).exported_program()


pytestmark = pytest.mark.filterwarnings("ignore::torchette.errors.DelegationWarning")

FORMS = {"captured": captured, "edge": at_edge, "delegate": lowered, "xnnpack": xnnpack}


def described(program: ExportedProgram) -> list[tuple[str, type, int | None]]:
    return [(str(node.target), type(node.target), node.meta.get("debug_handle")) for node in calls(program)]


def file_of(program: ExportedProgram) -> bytes:
    """Returns the .pte file of a program."""
    at = any(isinstance(node.target, EdgeOpOverload) for node in calls(program))
    manager = EdgeProgramManager(program) if at else to_edge(program)
    return manager.to_executorch().buffer


@pytest.mark.parametrize("name", FORMS)
def test_round_trip_keeps_operators_handles_delegates_and_bytes(name: str, tmp_path: Path) -> None:
    program = FORMS[name]()
    exir.save(program, tmp_path / "net.pt2")
    back = exir.load(tmp_path / "net.pt2")
    assert described(back) == described(program)
    operators = [node.target for node in calls(back) if hasattr(node.target, "_schema")]
    assert operators and all(isinstance(op, EdgeOpOverload) for op in operators) == (name != "captured")
    assert any(node.meta.get("debug_handle") for node in calls(back)) == (name != "captured")
    assert any(map(is_delegate_call, calls(back))) == (name in ("delegate", "xnnpack"))
    for x in (X, X[:2]):
        torch.testing.assert_close(back.module()(x), program.module()(x), rtol=0, atol=0)
    assert file_of(back) == file_of(program)


def test_handles_of_a_captured_program_are_kept() -> None:
    program, file = captured(), io.BytesIO()
    for number, node in enumerate(calls(program), 40):
        node.meta["debug_handle"] = number
    exir.save(program, file)
    file.seek(0)
    assert described(exir.load(file)) == described(program)


def test_files_of_captured_programs_equal_those_of_torch(tmp_path: Path) -> None:
    exir.save(captured(), tmp_path / "ours.pt2", extra_files={"note": "one"})
    torch.export.save(captured(), tmp_path / "torch.pt2", extra_files={"note": "two"})
    texts: dict[str, Any] = {"note": ""}
    assert described(torch.export.load(tmp_path / "ours.pt2", extra_files=texts)) == described(captured())
    assert texts == {"note": "one"}
    assert described(exir.load(tmp_path / "torch.pt2", extra_files=texts)) == described(captured())
    assert texts == {"note": "two"}


def test_texts_are_stored_next_to_an_edge_program() -> None:
    file, texts = io.BytesIO(), dict[str, Any]()
    exir.save(at_edge(), file, extra_files={"note": "grüezi"})
    file.seek(0)
    exir.load(file, extra_files=texts)
    assert texts == {"note": "grüezi"}


def test_loaded_delegates_are_emitted_in_a_process_that_imported_only_load(tmp_path: Path) -> None:
    exir.save(lowered(), tmp_path / "net.pt2")
    code = (
        "import sys\n"
        "from torchette.exir import load\n"
        "module = load(sys.argv[1]).graph_module.lowered_module_0\n"
        "assert module.program().execution_plan[0].delegates[0].id == module.backend_id\n"
        "sys.stdout.buffer.write(module.buffer())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "net.pt2")], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    back = exir.load(tmp_path / "net.pt2").graph_module.lowered_module_0
    assert done.stdout == back.buffer()


@pytest.mark.parametrize("name", ["captured", "edge", "delegate"])
def test_command_line_compiles_the_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exir.save(FORMS[name](), "net.pt2")
    assert main(["compile", "net.pt2", "-o", "net.pte", "--backend", "portable"]) == 0
    torch.testing.assert_close(torchette.load("net.pte")(X), Net().eval()(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name, damage",
    [
        ("edge", "bytes"),
        *((name, damage) for name in ("captured", "edge") for damage in ("cut", "text", "member")),
    ],
)
def test_error_names_the_damaged_file(name: str, damage: str, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    exir.save(FORMS[name](), path)
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "text":
        path.write_text("no archive")
    elif damage == "bytes":
        middle = data.index(b"{") + 200
        path.write_bytes(data[:middle] + bytes(100) + data[middle + 100 :])
    else:
        with zipfile.ZipFile(path) as old:
            members = {member: old.read(member) for member in old.namelist()}
        with zipfile.ZipFile(path, "w") as new:
            for member, content in members.items():
                if not member.endswith((".json", "weights/weight_0", "_state_dict.pt")):
                    new.writestr(member, content)
    with pytest.raises(FormatError, match=r"net\.pt2") as caught:
        exir.load(path)
    assert "exir.save" in caught.value.hints[0]


def test_error_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.pt2"):
        exir.load(tmp_path / "none.pt2")
