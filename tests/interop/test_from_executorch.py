# SPDX-License-Identifier: BSD-3-Clause
# The claims of docs/from-executorch.md that no other test holds: its imports, what it says is not there, what differs.

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from torchette.errors import InputError, TorchetteError  # noqa: E402
from torchette.exir import to_edge  # noqa: E402
from torchette.format import pte  # noqa: E402

PAGE = (Path(__file__).parents[2] / "docs" / "from-executorch.md").read_text()
IMPORTS = re.findall(r"`from executorch\.([\w.]+) import ([\w, ]+)`", PAGE)
FIRST = ["backends.arm", "exir._serialize._cord", "exir.passes.reinplace", "exir.passes.insert_write_back_for_buffers_pass", "extension.flat_tensor", "devtools.pte_tool"]  # fmt: skip


@pytest.mark.parametrize(("path", "names"), IMPORTS, ids=[path for path, _ in IMPORTS])
def test_an_import_of_the_page_works(path: str, names: str) -> None:
    module = importlib.import_module(f"torchette.{path}")
    assert [name for name in names.split(", ") if not hasattr(module, name.partition(" as ")[0])] == []


@pytest.mark.parametrize("path", FIRST)
def test_what_the_page_calls_absent_says_what_there_is(path: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="Try: "):
        importlib.import_module(f"torchette.{path}")


PRINTED = """
from torchette.compat import alias_executorch
alias_executorch()
import torch
from executorch.exir import to_edge
from executorch.exir.dialects._ops import ops
class Sum(torch.nn.Module):
    def forward(self, x):
        return x + 1 + x
edge = to_edge(torch.export.export(Sum(), (torch.ones(2),)))
program = edge.exported_program()
print(program.graph_module.code)
nodes = [node for node in program.graph.nodes if node.op == "call_function"]
assert [node.name for node in nodes] == ["aten_add_tensor", "aten_add_tensor_1"], nodes
assert all(node.target == ops.edge.aten.add.Tensor for node in nodes)
assert program.graph_signature.user_outputs == ("aten_add_tensor_1",)
torch.testing.assert_close(program.module()(torch.ones(2)), torch.full((2,), 3.0))
assert len(edge.to_executorch().buffer) > 100
"""


def test_edge_graphs_print_as_executorch_s_where_it_is_aliased() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("executorch_exir_dialects_edge__ops_aten_add_Tensor(") == 2


def test_code_follows_the_passes() -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clone() * 2

    module = to_edge(torch.export.export(Twice(), (torch.ones(2),))).exported_program().graph_module
    assert "clone" not in module.code and "aten.mul.Tensor" in module.code


class Named(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scaled": x * scale, "sum": x.sum()}


def test_structure_is_kept() -> None:
    x, scale = torch.ones(2), torch.tensor(3.0)
    compiled = torchette.compile(Named(), (x,), kwargs={"scale": scale})
    found = torchette.load(bytes(compiled))(x, scale=scale)
    assert list(found) == ["scaled", "sum"] and torch.equal(torch.as_tensor(found["scaled"]), x * 3)


def test_inputs_are_planned_by_to_executorch_alone() -> None:
    model, x = torch.nn.Linear(4, 2).eval(), torch.ones(1, 4)

    def planned(data: bytes) -> list[bool]:
        plan = pte.read(data).program.execution_plan[0]
        return [plan.values[i].val.allocation_info is not None for i in (*plan.inputs, *plan.outputs)]

    program = to_edge(torch.export.export(model, (x,))).to_executorch()
    assert planned(program.buffer) == [True, True]
    assert planned(bytes(torchette.compile(model, (x,), backend="portable"))) == [False, False]


def test_a_channels_last_tensor_never_gives_a_wrong_number() -> None:
    model = torch.nn.Conv2d(3, 4, 1).eval()
    x = torch.randn(1, 3, 4, 4)
    program = torchette.load(bytes(torchette.compile(model, (x,))))
    y = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(torch.as_tensor(program(y)), model(x))
    with pytest.raises(InputError, match="shape"):
        program(torch.ones(1, 3, 4, 5))


def test_a_result_stays_channels_last_where_the_model_asks_for_it() -> None:
    class Asked(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1).to(memory_format=torch.channels_last)

    x = torch.arange(24.0).reshape(1, 2, 3, 4)
    compiled = torchette.compile(Asked(), (x,))
    for found in (compiled(x), torch.as_tensor(torchette.load(bytes(compiled))(x))):
        assert found.stride() == Asked()(x).stride() and torch.equal(found, x + 1)


def test_a_damaged_file_gives_an_error() -> None:
    data = bytes(torchette.compile(torch.nn.ReLU(), (torch.ones(2),)))
    with pytest.raises(TorchetteError):
        torchette.load(data[:200])


# Measured with executorch 1.5.1: how many tests of these folders pass at least.
PASS = {"runtime/test": 14, "exir/program": 18, "exir/backend": 66, "exir/tests/test_banked": 45}


@pytest.mark.slow
@pytest.mark.parametrize("folder", PASS)
def test_executorch_s_own_tests(folder: str, tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    command = [sys.executable, "-m", "tests.interop.executorch_tests", str(tmp_path / "out.json"), folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    passed = int(re.search(r'"passed": (\d+)', done.stdout.splitlines()[-1])[1])  # type: ignore[index]
    assert passed >= PASS[folder]
