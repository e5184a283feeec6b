# SPDX-License-Identifier: BSD-3-Clause
"""Numbers as operands of operators on tensors: constants, sizes, and numbers that the model reads from a tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import torchette
from tests.exir.graphs import Function

SIZES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.shape[0] - x,
    lambda x: x - x.shape[0],
    lambda x: x.shape[0] // x,
    lambda x: x.shape[0] % x,
    lambda x: x.shape[0] / x,
    lambda x: x.shape[0] ** x,
    lambda x: x.shape[0] * 0.5 - x,
    lambda x: torch.where(x > 2, x.shape[0], x),
    lambda x: torch.rsub(x, x.shape[0], alpha=2),
)
INTEGERS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: 7 % x,
    lambda x: 1 << x,
    lambda x: 100 >> x,
    lambda x: 5 & x,
    lambda x: 5 | x,
    lambda x: 5 ^ x,
)
SPECIAL: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: 7.5 % x,
    lambda x: torch.special.xlogy(2, x),
    lambda x: torch.special.xlogy(x, 2),
    lambda x: torch.special.xlog1py(2, x),
    lambda x: torch.special.xlog1py(x, 2.1),
    lambda x: torch.special.zeta(2.1, x + 1),
    lambda x: torch.special.zeta(x + 2, 2),
)


class All(nn.Module):
    """Returns the results of several functions of one tensor."""

    def __init__(self, functions: tuple[Callable[[Tensor], Tensor], ...]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor) -> list[Tensor]:
        return [function(x) for function in self.functions]


def _equals_eager(
    functions: tuple[Callable[[Tensor], Tensor], ...], x: Tensor, longer: Tensor, **how
) -> None:
    model = All(functions)
    compiled = torchette.compile(model, (x,), **how)
    for values in (x, longer):
        for got, expected in zip(compiled(values), model(values), strict=True):
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("backend", ["cpu", "portable", "xnnpack"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64])
def test_size_as_the_first_or_second_operand(dtype: torch.dtype, backend: str) -> None:
    x, longer = ((torch.rand(n, 4) * 5 + 1).to(dtype) for n in (6, 9))
    _equals_eager(SIZES, x, longer, backend=backend, dynamic_shapes={"x": {0: Dim("n", min=2, max=32)}})


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_number_and_integer_tensor(dtype: torch.dtype) -> None:
    _equals_eager(INTEGERS, *(torch.randint(1, 7, (3, 4), dtype=dtype) for _ in range(2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_number_and_tensor_of_a_special_function(dtype: torch.dtype) -> None:
    _equals_eager(SPECIAL, *(torch.rand(3, 4, dtype=dtype) for _ in range(2)))


def test_number_of_a_tensor_minus_a_tensor() -> None:
    model = Function(lambda x, n: (n.item() - x, n.item() // x))
    args = torch.rand(3, 4) + 1, torch.tensor(3.5)
    for got, expected in zip(torchette.compile(model, args)(*args), model(*args), strict=True):
        torch.testing.assert_close(got, expected)


def test_reflected_border_of_a_dynamic_size() -> None:
    pad = Function(lambda x: nn.functional.pad(x, (3, 2), mode="reflect"))
    x, longer = torch.randn(1, 2, 20), torch.randn(1, 2, 50)
    compiled = torchette.compile(pad, (x,), dynamic_shapes=(({2: Dim("n", min=6, max=64)},),))
    for values in (x, longer):
        torch.testing.assert_close(compiled(values), pad(values))
