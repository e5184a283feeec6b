# SPDX-License-Identifier: BSD-3-Clause
# Ranks, unique elements, searches in sorted sequences, counts and cumulative operators compared with eager.
from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.kernels.kernel_call import check
from torchette.runtime import _native

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int64]


def random_values(dtype: torch.dtype, *size: int) -> torch.Tensor:
    return torch.randint(0 if dtype == torch.uint8 else -4, 5, size).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_ranks(dtype: torch.dtype, dim: int) -> None:
    x = (
        torch.stack([torch.randperm(60) for _ in range(2)])
        .reshape(2, 6, 10)
        .transpose(0, 2)
        .contiguous()
        .to(dtype)
    )
    for keeps in (False, True):
        for k in (1, 2):
            check("aten::kthvalue.values", aten.kthvalue(x, k, dim, keeps), x, k, dim, keeps)
        check("aten::median.dim_values", aten.median.dim(x, dim, keeps), x, dim, keeps)
        check("aten::nanmedian.dim_values", aten.nanmedian.dim(x, dim, keeps), x, dim, keeps)
    check("aten::median.out", aten.median(x), x)
    y = random_values(dtype, 10, 6, 12)
    values = aten.mode(y, dim, False)[0]
    out, places = torch.empty_like(values), torch.empty_like(values, dtype=torch.int64)
    _native.call_kernel("aten::mode.values", y, dim, False, out, places)
    assert torch.equal(out, values) and torch.equal(y.gather(dim, places.unsqueeze(dim)).squeeze(dim), values)


def test_medians_of_nan() -> None:
    x = torch.tensor([[1.0, math.nan, 3.0, 2.0], [4.0, 9.0, 7.0, 8.0], [math.nan] * 4])
    check("aten::median.dim_values", aten.median.dim(x, 1), x, 1, False)
    check("aten::nanmedian.dim_values", aten.nanmedian.dim(x[:2], 1), x[:2], 1, False)
    check("aten::median.out", aten.median(x), x)
    check("aten::nanmedian.out", aten.nanmedian(x), x)
    check("aten::median.out", aten.median(torch.empty(0)), torch.empty(0))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
def test_unique_elements(dtype: torch.dtype) -> None:
    x = random_values(dtype, 4, 5)
    nothing = random_values(dtype, 0)
    for flags in ((False, False), (True, False), (True, True)):
        for y in (x, nothing):
            check("aten::_unique2.out", aten._unique2(y, True, *flags), y, True, *flags)
            check("aten::unique_consecutive.out", aten.unique_consecutive(y, *flags), y, *flags, None)
        few = x[torch.tensor([0, 0, 1, 0, 2, 2])][:, torch.tensor([1, 1, 3, 1])].contiguous()
        for dim in (0, 1, -1):
            arguments: Any = (few, dim, True, *flags)
            check("aten::unique_dim.out", aten.unique_dim(*arguments), *arguments)
            expected = aten.unique_consecutive(few, *flags, dim)
            check("aten::unique_consecutive.out", expected, few, *flags, dim)


def test_every_nan_is_unique() -> None:
    x = torch.tensor([math.nan, 1.0, math.nan, -0.0, 0.0, 1.0])
    check("aten::_unique2.out", aten._unique2(x, True, True, True), x, True, True, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64])
def test_searches_in_sorted_sequences(dtype: torch.dtype) -> None:
    rows, values = random_values(dtype, 3, 7).sort(-1).values, random_values(dtype, 3, 5)
    for right in (False, True):
        for narrow in (False, True):
            tail = (narrow, right)
            expected = torch.searchsorted(rows, values, out_int32=narrow, right=right)
            check("aten::searchsorted.Tensor_out", expected, rows, values, *tail, None, None)
            expected = torch.bucketize(values, rows[0], out_int32=narrow, right=right)
            check("aten::bucketize.Tensor_out", expected, values, rows[0], *tail)
            expected = torch.searchsorted(rows[0], 2, out_int32=narrow, right=right)
            check("aten::searchsorted.Scalar_out", expected, rows[0], 2, *tail, None, None)
            check("aten::bucketize.Scalar_out", expected, 2, rows[0], *tail)
    shuffled = torch.randn(3, 7)
    sorter = shuffled.argsort(-1)
    expected = torch.searchsorted(shuffled, torch.zeros(3, 2), side="right", sorter=sorter)
    arguments = (shuffled, torch.zeros(3, 2), False, False, "right", sorter)
    check("aten::searchsorted.Tensor_out", expected, *arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts(dtype: torch.dtype) -> None:
    x = torch.randn(100, dtype=dtype)
    for bins, low, high in ((10, 0, 0), (7, -1, 2), (100, -0.5, 0.5)):
        check("aten::histc.out", torch.histc(x, bins, low, high), x, bins, low, high)
    check("aten::histc.out", torch.histc(torch.ones(3, dtype=dtype), 5), torch.ones(3, dtype=dtype), 5, 0, 0)
    integers = torch.randint(0, 9, (50,))
    check("aten::bincount.out", torch.bincount(integers, minlength=12), integers, None, 12)
    check(
        "aten::bincount.out", torch.bincount(integers.int(), x[:50]), integers.int(), x[:50].contiguous(), 0
    )
    for size in (2, 9):
        y = torch.tensor([[1, 0, 2], [0, 3, 4]])
        check("aten::nonzero_static.out", torch.nonzero_static(y, size=size, fill_value=-7), y, size, -7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_running(dtype: torch.dtype, dim: int) -> None:
    x = random_values(dtype, 4, 300, 2)
    check("aten::cummax.out", torch.cummax(x, dim), x, dim)
    check("aten::cummin.out", torch.cummin(x, dim), x, dim)
    y = (torch.rand(4, 30, 2) + 0.5).to(dtype)
    if dtype.is_floating_point:
        expected = torch.cumprod(y.double(), dim).to(dtype)
        check("aten::cumprod.out", expected, y, dim, None)
        expected = torch.logcumsumexp(y.double(), dim).to(dtype)
        check("aten::logcumsumexp.out", expected, y, dim)
    else:
        check("aten::cumprod.out", torch.cumprod(x, dim), x, dim, None)


def test_running_of_nan_and_infinity() -> None:
    x = torch.tensor([-math.inf, -math.inf, 1.0, math.inf, 2.0, math.nan, 3.0])
    check("aten::logcumsumexp.out", torch.logcumsumexp(x, 0), x, 0)
    for name in ("cummax", "cummin"):
        check(f"aten::{name}.out", getattr(torch, name)(x, 0), x, 0)


def test_large_integers_are_searched_exactly() -> None:
    bounds = torch.tensor([2**62 - 1, 2**62, 2**62 + 1])
    expected = torch.searchsorted(bounds, torch.tensor(2**62 + 1))
    check("aten::searchsorted.Scalar_out", expected, bounds, 2**62 + 1, False, False, None, None)


def test_bad_arguments_are_refused() -> None:
    x, out, places = torch.randn(4), torch.empty(()), torch.empty((), dtype=torch.int64)
    for message, name, *arguments in (
        ("kthvalue: k 5 is out of range for 4 elements", "kthvalue.values", x, 5, 0, False, out, places),
        ("histc: bins 0", "histc.out", x, 0, 0, 0, torch.empty(0)),
        ("bincount: self contains -1", "bincount.out", torch.tensor([-1]), None, 0, torch.empty(4)),
        ("searchsorted: side", "searchsorted.Scalar_out", x, 1.0, False, True, "left", None, places),
        (
            "self and sorter differ in sizes",
            "searchsorted.Tensor_out",
            torch.randn(2, 3),
            x,
            False,
            False,
            None,
            None,
            places.expand(4).clone(),
        ),
    ):
        with pytest.raises(RuntimeError, match=message):
            _native.call_kernel("aten::" + name, *arguments)
