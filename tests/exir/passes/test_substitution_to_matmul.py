# SPDX-License-Identifier: BSD-3-Clause
# Forward substitutions that torch.export unrolled: the results equal eager mode, and other loops stay.

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram, export

import torchette
from torchette.exir.graph import calls
from torchette.exir.passes.substitution_to_matmul import substitution_to_matmul

aten = torch.ops.aten
SIZE = 19  # not a power of two


class Substitution(nn.Module):
    def __init__(self, begin: int = 1, diagonal: int = -1, is_read: bool = False) -> None:
        super().__init__()
        self.begin, self.diagonal, self.is_read = begin, diagonal, is_read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        matrix = -x.tril(self.diagonal)
        total = torch.zeros_like(x)
        for i in range(self.begin, x.shape[-1]):
            row = matrix[..., i, :i].clone()
            above = matrix[..., :i, :i].clone()
            matrix[..., i, :i] = row + (row.unsqueeze(-1) * above).sum(-2)
            if self.is_read:
                total = total + matrix
        return matrix + total


def captured(model: nn.Module, x: torch.Tensor) -> ExportedProgram:
    return export(model, (x,), dynamic_shapes=({0: Dim("batch", max=8)},))


def copies(program: ExportedProgram) -> int:
    return len(list(calls(program, aten.copy_.default)))


def test_matmuls_equal_eager() -> None:
    model, x = Substitution(), torch.randn(2, 3, SIZE, SIZE)
    program = captured(model, x)
    assert copies(program) == SIZE - 1
    assert copies(substitution_to_matmul(program)) == 1
    assert len(list(calls(program, aten.matmul.default))) == 2 * 4  # blocks of 2, 4, 8 and 16 rows
    compiled = torchette.compile(captured(model, x))
    for batch in (2, 5):
        x = torch.randn(batch, 3, SIZE, SIZE)
        expected = model(x)
        torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("options", [{"begin": 2}, {"diagonal": 0}, {"is_read": True}])
def test_other_loops_stay(options: dict[str, int]) -> None:
    """A first row that is missing, a diagonal, and a reader between the rows."""
    model, x = Substitution(**options), torch.randn(2, 3, SIZE, SIZE)
    program = captured(model, x)
    before = copies(program)
    assert copies(substitution_to_matmul(program)) == before
