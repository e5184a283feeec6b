# SPDX-License-Identifier: BSD-3-Clause
# Scatter reductions compared with eager: scatter_reduce, scatter with reduce, index_reduce, embedding bags, col2im.
from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.kernel_call import check
from torchette.runtime import _native

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


def random_values(dtype: torch.dtype, *size: int) -> torch.Tensor:
    # A few distinct values, which 16-bit types add and multiply without rounding.
    return torch.randint(0 if dtype == torch.uint8 else -2, 3, size).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(dtype: torch.dtype, reduce: str, include_self: bool) -> None:
    for dim in (0, 1, -1):
        x, source = random_values(dtype, 4, 5, 3), random_values(dtype, 3, 6, 3)
        index = torch.randint(0, 3, (2, 4, 3))
        arguments = (x, dim, index, source, reduce)
        expected = aten.scatter_reduce.two(*arguments, include_self=include_self)
        check("aten::scatter_reduce.two_out", expected, *arguments, include_self)
    point, index, source = random_values(dtype), torch.tensor(0), random_values(dtype)
    expected = aten.scatter_reduce.two(point, 0, index, source, reduce, include_self=include_self)
    check("aten::scatter_reduce.two_out", expected, point, 0, index, source, reduce, include_self)


def test_scatter_reduce_propagates_nan_and_accepts_empty_indices() -> None:
    x, source = torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([float("nan"), 0.0, 9.0])
    index = torch.tensor([0, 1, 2])
    for reduce in ("amax", "amin", "sum"):
        expected = aten.scatter_reduce.two(x, 0, index, source, reduce)
        check("aten::scatter_reduce.two_out", expected, x, 0, index, source, reduce, True)
    none = torch.empty(0, dtype=torch.int64)
    check("aten::scatter_reduce.two_out", x, x, 0, none, source, "prod", False)


@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_with_a_reduction(reduce: str) -> None:
    x, source, index = torch.randn(4, 5), torch.randn(4, 5), torch.randint(0, 4, (3, 5))
    expected = aten.scatter.reduce(x, 0, index, source, reduce=reduce)
    check("aten::scatter.reduce_out", expected, x, 0, index, source, reduce)
    expected = aten.scatter.value_reduce(x, 0, index, 2.5, reduce=reduce)
    check("aten::scatter.value_reduce_out", expected, x, 0, index, 2.5, reduce)


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_index_reduce(reduce: str) -> None:
    for include_self in (True, False):
        x, source, index = torch.randn(4, 5, 3), torch.randn(4, 6, 3), torch.randint(0, 5, (6,))
        expected = aten.index_reduce(x, 1, index, source, reduce, include_self=include_self)
        check("aten::index_reduce.out", expected, x, 1, index, source, reduce, include_self)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("last", [True, False])
def test_embedding_bag(mode: int, last: bool) -> None:
    weight, indices = torch.randn(10, 4), torch.randint(0, 10, (9,))
    offsets = torch.tensor([0, 0, 4, 6, 9] if last else [0, 0, 4, 6])
    for padding in (-1, int(indices[1])):
        arguments: list[Any] = [weight, indices, offsets, False, mode, False, None, last, padding]
        expected = aten._embedding_bag(*arguments)
        out = torch.empty_like(expected[0])
        _native.call_kernel("aten::_embedding_bag.out", *arguments, out, *map(torch.empty_like, expected[1:]))
        torch.testing.assert_close(out, expected[0])
        if mode == 0:
            arguments[6] = torch.randn(9)
            expected = aten._embedding_bag_forward_only(*arguments)
            other_outs = map(torch.empty_like, expected[1:])
            _native.call_kernel("aten::_embedding_bag_forward_only.out", *arguments, out, *other_outs)
            torch.testing.assert_close(out, expected[0])


@pytest.mark.parametrize("scales", [True, False])
def test_embedding_dense_backward(scales: bool) -> None:
    grad, indices = torch.randn(3, 5, 4), torch.randint(0, 6, (3, 5))
    arguments = (grad, indices, 7, 2, scales)
    check("aten::embedding_dense_backward.out", aten.embedding_dense_backward(*arguments), *arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_col2im(dtype: torch.dtype) -> None:
    windows = ([2, 3], [1, 2], [1, 0], [2, 1])
    columns = aten.im2col(torch.randn(2, 3, 6, 9, dtype=dtype), *windows)
    check("aten::col2im.out", aten.col2im(columns, [6, 9], *windows), columns, [6, 9], *windows)
    check("aten::col2im.out", aten.col2im(columns[0], [6, 9], *windows), columns[0], [6, 9], *windows)


def test_bad_arguments_are_refused() -> None:
    x, index = torch.randn(4), torch.tensor([0, 4])
    out = torch.empty(4)
    for message, name, *arguments in (
        ("index contains 4, which is out of range for size 4", "scatter_reduce.two_out", x, 0, index, torch.ones(2), "sum", True, out),
        ("must be sum", "scatter_reduce.two_out", x, 0, index, torch.ones(2), "avg", True, out),
        ("index is larger", "scatter_reduce.two_out", x, 0, index, torch.ones(1), "sum", True, out),
        ("the same type", "scatter_reduce.two_out", x, 0, index, torch.ones(2).double(), "sum", True, out),
        ("does not fit", "index_reduce.out", x, 0, index, torch.ones(3), "prod", True, out),
        ("columns, which does not fit", "col2im.out", torch.ones(4, 3), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1],
         torch.empty(1, 4, 4)),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=message):
            _native.call_kernel("aten::" + name, *arguments)
