# SPDX-License-Identifier: BSD-3-Clause
# However a matrix is spelled that is computed from stored integers, the layer keeps the integers.

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchette


class Layer(nn.Module):
    """A linear layer with groups of inputs that share a scale and a zero point."""

    def __init__(self, groups: int, low: int, high: int, zero: int = 0) -> None:
        super().__init__()
        self.groups = groups
        self.register_buffer("whole", torch.randint(low, high + 1, (40, 64), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(40, groups) * 0.02 + 1e-3)
        self.register_buffer("zeros", torch.full((40, groups), zero, dtype=torch.int8))
        self.bias = nn.Parameter(torch.randn(40))

    def matrix(self) -> torch.Tensor:
        above = self.whole.view(40, self.groups, -1).float() - self.zeros.float().unsqueeze(2)
        return (above * self.scales.unsqueeze(2)).view(40, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.matrix(), self.bias)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize(
    "low, high, zero, bits", [(-128, 127, 0, 8), (-100, 90, 5, 8), (-8, 7, 0, 4), (-5, 4, 2, 4)]
)
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_the_integers_are_kept(groups: int, low: int, high: int, zero: int, bits: int, rows: int) -> None:
    torch.manual_seed(groups + low)
    layer, x = Layer(groups, low, high, zero).eval(), torch.randn(rows, 64)
    model = torchette.compile(layer, (x,))
    assert "weight_only_linear" in str(model.report())
    torch.testing.assert_close(model(x), layer(x), rtol=1e-5, atol=1e-4)
    stored = len(bytes(model))
    assert stored < 48 * 64 * bits // 8 + 48 * groups * 4 + 2000  # 48: whole panels
    assert model.planned_bytes < 40 * 64 * 4 // 2, "no matrix of floats is planned"


def test_a_turned_matrix(tmp_path: object) -> None:
    class Product(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ self.whole.t().float()) * self.scales.view(-1) + self.bias

    layer, x = Product(1, -128, 127).eval(), torch.randn(3, 64)
    model = torchette.compile(layer, (x,))
    assert "weight_only_linear" in str(model.report())
    torch.testing.assert_close(model(x), layer(x), rtol=1e-5, atol=1e-3)


def test_what_is_computed_otherwise_stays() -> None:
    class Bent(Layer):
        def matrix(self) -> torch.Tensor:
            return torch.sin(self.whole.float()) * self.scales

    layer, x = Bent(1, -128, 127).eval(), torch.randn(3, 64)
    model = torchette.compile(layer, (x,))
    assert "weight_only_linear" not in str(model.report())
    torch.testing.assert_close(model(x), layer(x), rtol=1e-4, atol=1e-4)
