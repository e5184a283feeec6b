# SPDX-License-Identifier: BSD-3-Clause
# Guards with minima of dynamic sizes, which hold for every size.

from __future__ import annotations

import pytest
import sympy
import torch
from torch import nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import Min

import torchette
from torchette.capture.minima import Minima


class DenseExperts(nn.Module):
    """Each expert receives all rows, scaled by its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.Parameter(torch.randn(4, 32, 8))

    def forward(self, rows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scaled = rows.repeat(4, 1) * scores.transpose(0, 1).reshape(-1, 1)
        return torch.bmm(scaled.view(4, -1, 32), self.matrices).view(-1, 8).reshape(4, -1, 8).sum(0)


def test_experts_accept_any_number_of_rows() -> None:
    torch.manual_seed(0)
    model, n = DenseExperts().eval(), Dim("n", min=1, max=64)
    compiled = torchette.compile(
        model, (torch.randn(7, 32), torch.rand(7, 4)), dynamic_shapes=({0: n}, {0: n})
    )
    for rows in (7, 1, 2, 64):
        inputs = torch.randn(rows, 32), torch.rand(rows, 4)
        torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("smallest", [0, 1])
def test_only_certain_minima_are_replaced(smallest: int) -> None:
    env = ShapeEnv()
    size = env.create_unbacked_symint()
    torch._check(size >= smallest)
    torch._check(size <= 64)
    symbol = size.node.expr
    minimum = Min(32, 32 * symbol)
    assert env.simplify(minimum) == minimum
    with Minima():
        assert env.simplify(minimum) == (sympy.Integer(32) if smallest else minimum)
        assert env.simplify(Min(symbol, 2 * symbol + 1)) == symbol
    assert env.simplify(minimum) == minimum
