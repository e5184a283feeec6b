# SPDX-License-Identifier: BSD-3-Clause
# If a weight matrix is computed from stored integers, by any pattern of operators, the layer keeps the integers.

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
        self.register_buffer("integers", torch.randint(low, high + 1, (40, 64), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(40, groups) * 0.02 + 1e-3)
        self.register_buffer("zeros", torch.full((40, groups), zero, dtype=torch.int8))
        self.bias = nn.Parameter(torch.randn(40))

    def matrix(self) -> torch.Tensor:
        above = self.integers.view(40, self.groups, -1).float() - self.zeros.float().unsqueeze(2)
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
    assert stored < 48 * 64 * bits // 8 + 48 * groups * 4 + 2000  # 48: full panels
    assert model.planned_bytes < 40 * 64 * 4 // 2, "no matrix of floats is planned"


def test_transposed_matrix(tmp_path: object) -> None:
    class Product(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ self.integers.t().float()) * self.scales.view(-1) + self.bias

    layer, x = Product(1, -128, 127).eval(), torch.randn(3, 64)
    model = torchette.compile(layer, (x,))
    assert "weight_only_linear" in str(model.report())
    torch.testing.assert_close(model(x), layer(x), rtol=1e-5, atol=1e-3)


def test_other_computations_do_not_change() -> None:
    class Bent(Layer):
        def matrix(self) -> torch.Tensor:
            return torch.sin(self.integers.float()) * self.scales

    layer, x = Bent(1, -128, 127).eval(), torch.randn(3, 64)
    model = torchette.compile(layer, (x,))
    assert "weight_only_linear" not in str(model.report())
    torch.testing.assert_close(model(x), layer(x), rtol=1e-4, atol=1e-4)


class Table(nn.Module):
    """Rows of an integer table; groups of a row have a scale and a zero point."""

    def __init__(self, integers: torch.Tensor, groups: int, zero: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("integers", integers)
        self.register_buffer("scales", torch.rand(len(integers), groups) * 0.02 + 1e-3)
        self.register_buffer("zeros", torch.full((len(integers), groups), zero))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        above = self.integers.view(*self.scales.shape, -1).float() - self.zeros.unsqueeze(2)
        table = (above * self.scales.unsqueeze(2)).view(self.integers.shape)
        return nn.functional.embedding(tokens, table, padding_idx=3)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(
    "low, high, zero, columns, bits",
    [
        (-128, 127, 0.0, 64, 8), (-8, 7, 0.0, 64, 4), (-2, 1, 0.0, 64, 2), (0, 15, 8.0, 64, 4), (0, 255, 7.25, 64, 8),
        (-8, 7, 0.5, 64, 4), (-2, 1, 0.0, 36, 2), (-8, 7, 0.0, 132, 4),
    ],
)  # fmt: skip
def test_rows_of_a_table_are_dequantized_when_they_are_read(
    groups: int, low: int, high: int, zero: float, columns: int, bits: int
) -> None:
    torch.manual_seed(groups + high)
    integers = torch.randint(low, high + 1, (500, columns)).to(torch.uint8 if low == 0 else torch.int8)
    table, tokens = Table(integers, groups, zero).eval(), torch.tensor([[3, 0, 499], [7, 3, 250]])
    model = torchette.compile(table, (tokens,))
    assert list(model.program.operators()) == ["cpu::weight_only_embedding.out"]
    torch.testing.assert_close(model(tokens), table(tokens), rtol=0, atol=0)
    scales = 500 * groups * 4 * (1 if zero in (0.0, 8.0) else 2)
    assert len(bytes(model)) < 500 * columns * bits // 8 + scales + 2000
    assert model.planned_bytes == 0, "no row of floats is planned"


def test_row_that_does_not_fill_bytes_has_8_bit_elements() -> None:
    table, tokens = Table(torch.randint(-8, 8, (9, 7), dtype=torch.int8), 1).eval(), torch.arange(9)
    model = torchette.compile(table, (tokens,))
    assert list(model.program.operators()) == ["cpu::weight_only_embedding.out"]
    torch.testing.assert_close(model(tokens), table(tokens), rtol=0, atol=0)


@pytest.mark.parametrize("bits, share", [(8, 0.27), (4, 0.16), (2, 0.1)])
def test_tables_of_torchao(bits: int, share: float) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    from torchao.quantization.granularity import PerAxis, PerGroup

    torch.manual_seed(0)
    model, tokens = nn.Embedding(1000, 256, padding_idx=3), torch.tensor([[1, 3, 999]])
    plain = torchette.compile(model, (tokens,)).nbytes
    of = PerAxis(0) if bits == 8 else PerGroup(32)
    config = torchao.IntxWeightOnlyConfig(getattr(torch, f"int{bits}"), of)
    torchao.quantize_(model, config, lambda part, name: isinstance(part, nn.Embedding))
    compiled = torchette.compile(model, (tokens,))
    torch.testing.assert_close(compiled(tokens), model(tokens), rtol=0, atol=0)
    assert compiled.nbytes <= share * plain and compiled.planned_bytes == 0
