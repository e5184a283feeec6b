# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's runtime runs Torchette's files with control flow and with assertions. `while_loop` is included, which
# ExecuTorch's compiler does not support.

from __future__ import annotations

import pytest
import torch

from tests.interop.test_interop import _peer_method
from tests.models import branching
from tests.models.test_control_flow import assert_equal
from tests.sweep import sweep
from torchette.exir import to_edge

pytest.importorskip("executorch", reason="the peer is not installed")


@pytest.mark.parametrize(
    "name", sweep(branching.CASES, "cond", "different_needs", "scan", "while", "nested_while", "map_in_cond")
)
def test_peer_runtime_executes_every_branch(name: str) -> None:
    module, inputs = branching.build(name)
    program = to_edge(torch.export.export(module, inputs[0])).to_executorch()
    method = _peer_method(program.buffer)
    for args in inputs:
        assert_equal(list(method.execute(args)), module(*args))


class Counted(torch.nn.Module):
    """A value that is asserted to be in a range."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.sum().item()
        torch._check(n >= 0)
        torch._check(n <= 10)
        return torch.full((n,), 2.0)


def test_peer_runtime_runs_assertions() -> None:
    x = torch.tensor([1, 2])
    program = to_edge(torch.export.export(Counted().eval(), (x,))).to_executorch()
    called = [op.name for op in program.executorch_program.execution_plan[0].operators]
    assert {"executorch_prim::ge", "executorch_prim::le"} <= set(called)
    assert_equal(list(_peer_method(program.buffer).execute((x,))), Counted()(x))
