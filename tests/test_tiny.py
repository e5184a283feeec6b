# SPDX-License-Identifier: BSD-3-Clause
# A tour of the tree: one tiny model in every stage, one test per stage. Read this file first; each docstring names the folder that
# implements its stage.

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import torchette
from torchette.exir import EdgeProgramManager, to_edge
from torchette.format import pte
from torchette.runtime import Runtime


class Tiny(torch.nn.Module):
    """Two inputs, one output, and a sum in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)
        self.register_buffer("total", torch.zeros(1, 1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = torch.relu(self.linear(x)) + 1
        self.total.add_(y)
        return {"y": y, "total": self.total.clone()}


@pytest.fixture
def tiny() -> Tiny:
    torch.manual_seed(0)
    return Tiny().eval()


X = torch.tensor([[1.0, -2.0]])


def test_1_compile_and_call(tiny: Tiny) -> None:
    """`torchette.compile`: compiles a module with example inputs; the result is callable and uses the real runtime."""
    model = torchette.compile(tiny, (X,))
    for _ in range(3):  # the buffer keeps its value in the runtime as in the module
        expected, actual = tiny(X), model(X)
        assert actual.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(torch.as_tensor(actual[name]), expected[name])


def test_2_compiler(tiny: Tiny) -> None:
    """torchette/exir: the same with ExecuTorch's functions, stage by stage; each stage is an ExportedProgram."""
    exported = torch.export.export(tiny, (X,))
    edge = to_edge(exported)
    assert isinstance(edge, EdgeProgramManager)
    program = edge.to_executorch()
    graph = program.exported_program().graph_module.graph
    operators = {str(node.target) for node in graph.nodes if node.op == "call_function"}
    assert "aten.relu.out" in operators, "an out variant writes to planned memory"


def test_3_file(tiny: Tiny) -> None:
    """torchette/format: the program is ExecuTorch's file format, read and written without generated code."""
    data = to_edge(torch.export.export(tiny, (X,))).to_executorch().buffer
    assert data[4:8] == b"ET12"
    (plan,) = pte.read(data).program.execution_plan
    assert plan.name == "forward"
    assert {operator.name for operator in plan.operators} >= {"aten::relu"}
    assert data == to_edge(torch.export.export(tiny, (X,))).to_executorch().buffer, (
        "two compiles, the same bytes"
    )


def test_4_runtime(tiny: Tiny, tmp_path: Path) -> None:
    """torchette/runtime: loads the file and runs it; numpy arrays in, results out, no torch needed."""
    path = tmp_path / "tiny.pte"
    torchette.compile(tiny, (X,)).save(path)
    method = Runtime.get().load_program(path).load_method("forward")
    results = [np.asarray(value) for value in method.execute([X.numpy()])]
    expected = tiny(X)
    np.testing.assert_allclose(sorted(r.item() for r in results), sorted(v.item() for v in expected.values()))


def test_5_mistakes_are_explained(tiny: Tiny, tmp_path: Path) -> None:
    """torchette/errors.py: an error states the problem, its location and a remedy."""
    with pytest.raises(torchette.errors.TrainModeError, match=r"eval\(\)"):
        torchette.compile(torch.nn.Sequential(tiny, torch.nn.Dropout()), (X,))
    with pytest.raises(FileNotFoundError, match=r"none\.pte"):
        torchette.load(tmp_path / "none.pte")
    model = torchette.compile(tiny, (X,))
    with pytest.raises(torchette.errors.InputError):
        model(torch.zeros(1, 3))
