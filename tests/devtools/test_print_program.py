# SPDX-License-Identifier: BSD-3-Clause
# Programs and graphs as text, with ExecuTorch's function names.

from __future__ import annotations

import io

import torch
from torch import nn
from torchette.exir.schema import Frame, FrameList

from torchette.devtools.print_program import (
    inspect_node,
    pretty_print,
    print_program,
)
from torchette.exir import ExecutorchBackendConfig, to_edge


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: torch.sin(x), lambda x: torch.cos(x), (self.linear(x),))


EXPORTED = torch.export.export(
    Net(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: torch.export.Dim("n", max=8)}}
)


def test_one_instruction_per_line() -> None:
    program = to_edge(EXPORTED).to_executorch(ExecutorchBackendConfig()).executorch_program
    out = io.StringIO()
    print_program(program, mark_dynamic_shape_tensor=True, out=out)
    lines = out.getvalue().splitlines()
    (plan,) = program.execution_plan
    assert lines[0] == "forward:" and len(lines) == 1 + len(plan.chains[0].instructions)
    text = out.getvalue()
    assert "float32[2] constant" in text and "float32 at most[8, 2] in 1 at " in text
    assert "aten::sin.out(" in text and " if not %" in text
    out = io.StringIO()
    print_program(program, show_meminfo=False, out=out)
    assert " in 1 at " not in out.getvalue() and "at most" not in out.getvalue()


def test_records() -> None:
    out = io.StringIO()
    pretty_print(FrameList([Frame("net.py", 3, "forward", "return x")]), out=out)
    assert "FrameList(items=[Frame(filename='net.py'" in out.getvalue()


def test_an_arrow_points_at_a_node() -> None:
    graph = EXPORTED.graph
    node = next(node for node in graph.nodes if node.op == "call_function")
    lines = inspect_node(graph, node).splitlines()
    (arrow,) = (line for line in lines if line.startswith("--> "))
    assert arrow == f"--> {node.format_node()}" and any("forward" in line for line in lines)
