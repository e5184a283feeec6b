# SPDX-License-Identifier: BSD-3-Clause
# Reductions compared with eager, or with double precision if eager is less accurate.
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.kernels.kernel_call import run
from torchette.runtime import _native

SHAPES = [(3, 4, 5, 6), (2, 300, 7), (1, 1000), (5000,), (64, 700), (700, 64), (3, 0, 4), ()]
TYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
]


def random_values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(shape) * 3
    return x.abs().to(dtype) if dtype == torch.uint8 else x.to(dtype)


def dims_of(rank: int) -> list[list[int]]:
    return [[d] for d in range(-rank, rank)] + (
        [[0, -1], list(range(1, rank)), list(range(rank))] if rank > 1 else []
    )


def check(
    name: str, expected: torch.Tensor | tuple[torch.Tensor, ...], *arguments: Any, atol: float = 1e-5
) -> None:
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    for output, reference in zip(run(name, *arguments, like=expected), expected, strict=True):
        rtol = (
            1.3e-6
            if reference.dtype == torch.float32
            else 4 * torch.finfo(reference.dtype).eps
            if reference.is_floating_point()
            else 0
        )
        torch.testing.assert_close(output, reference, rtol=rtol, atol=atol if rtol else 0, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_and_means(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = random_values(shape, dtype)
    floating = dtype.is_floating_point
    result = dtype if floating else torch.int64
    wide = x.double() if floating else x.long()
    for dims in [None, *dims_of(len(shape))]:
        every = dims if dims is not None else list(range(len(shape)))
        for keep in (False, True):
            # The error of a sum is relative to its largest terms.
            check(
                "aten::sum.IntList_out",
                torch.sum(wide, every, keepdim=keep).to(result),
                x,
                dims,
                keep,
                None,
                atol=1e-4,
            )
            if floating:
                check("aten::mean.out", torch.mean(wide, every, keepdim=keep).to(result), x, dims, keep, None)
    if floating:
        check("aten::mean.dtype_out", wide.mean().to(dtype), x, None)
    check("aten::sum.IntList_out", torch.sum(x.double()), x, None, False, None)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_max_and_min(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = random_values(shape, dtype)
    if x.numel() == 0:
        with pytest.raises(RuntimeError, match="largest"):
            _native.call_kernel("aten::amax.out", x, [], False, torch.empty((), dtype=dtype))
        return
    for dims in [[], *dims_of(len(shape))]:
        for keep in (False, True):
            check("aten::amax.out", torch.amax(x, dims, keepdim=keep), x, dims, keep)
            check("aten::amin.out", torch.amin(x, dims, keepdim=keep), x, dims, keep)
            if len(dims) == 1:
                check("aten::max.dim_max", tuple(torch.max(x, dims[0], keepdim=keep)), x, dims[0], keep)
                check("aten::min.dim_min", tuple(torch.min(x, dims[0], keepdim=keep)), x, dims[0], keep)
                if dtype != torch.bool:
                    check("aten::argmax.out", torch.argmax(x, dims[0], keepdim=keep), x, dims[0], keep)
                    check("aten::argmin.out", torch.argmin(x, dims[0], keepdim=keep), x, dims[0], keep)
    check("aten::max.unary_out", torch.max(x), x)
    check("aten::min.unary_out", torch.min(x), x)
    if dtype != torch.bool:
        check("aten::argmax.out", torch.argmax(x), x, None, False)


def test_nan_propagates() -> None:
    x = torch.randn(3, 500)
    x[1, 77] = math.nan
    x[1, 300] = math.nan
    x[2, 0] = math.inf
    check("aten::amax.out", torch.amax(x, 1), x, [1], False)
    check("aten::amin.out", torch.amin(x, 0), x, [0], False)
    check("aten::max.dim_max", tuple(torch.max(x, 1)), x, 1, False)
    check("aten::argmin.out", torch.argmin(x), x, None, False)
    check("aten::sum.IntList_out", torch.sum(x, 1), x, [1], False, None, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", ["any", "all"])
def test_any_and_all(shape: tuple[int, ...], dtype: torch.dtype, name: str) -> None:
    eager: Callable[..., torch.Tensor] = getattr(torch, name)
    for x in (random_values(shape, dtype), torch.zeros(shape, dtype=dtype), torch.ones(shape, dtype=dtype)):
        check(f"aten::{name}.all_out", eager(x).bool(), x)
        for dims in dims_of(len(shape)):
            check(f"aten::{name}.dims_out", eager(x, dims).bool(), x, dims, False)
            if len(dims) == 1:
                check(f"aten::{name}.out", eager(x, dims[0], keepdim=True).bool(), x, dims[0], True)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_variances(dtype: torch.dtype) -> None:
    x = random_values((3, 40, 7), dtype) + 5
    for dims in (None, [1], [0, 2], [-1]):
        every = dims if dims is not None else [0, 1, 2]
        for correction in (0, 1, None):
            c = 1 if correction is None else correction
            expected = torch.var(x.double(), every, correction=c, keepdim=True).to(dtype)
            mean = torch.mean(x.double(), every, keepdim=True).to(dtype)
            check("aten::var.correction_out", expected, x, dims, correction, True)
            check("aten::var_mean.correction_out", (expected, mean), x, dims, correction, True)
            check(
                "aten::std.correction_out",
                expected.double().sqrt().to(dtype),
                x,
                dims,
                correction,
                True,
                atol=1e-3,
            )
        check("aten::var.out", torch.var(x.double(), every, unbiased=False).to(dtype), x, dims, False, False)
    check(
        "aten::var.correction_out", torch.var(x[:, :1], 1, correction=1), x[:, :1].contiguous(), [1], 1, False
    )


@pytest.mark.parametrize("dtype", [t for t in TYPES if t not in (torch.float16, torch.bfloat16)], ids=str)
def test_products_and_running_sums(dtype: torch.dtype) -> None:
    x = random_values((4, 5, 3), dtype)
    check("aten::prod.out", torch.prod(x), x, None)
    for dim in (0, 1, -1):
        check("aten::prod.int_out", torch.prod(x, dim, keepdim=True), x, dim, True, None)
        check("aten::cumsum.out", torch.cumsum(x, dim), x, dim, None)
    long = random_values((2, 900), dtype)
    check(
        "aten::cumsum.out",
        torch.cumsum(long.double() if dtype.is_floating_point else long, 1).to(
            dtype if dtype.is_floating_point else torch.int64
        ),
        long,
        1,
        None,
        atol=1e-4,
    )


def test_dim_orders() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for dims in dims_of(4):
        check("aten::sum.IntList_out", torch.sum(x.double(), dims).float(), x, dims, False, None)
        check("aten::amax.out", torch.amax(x, dims, keepdim=True).contiguous(), x, dims, True)
    out = torch.mean(x, [1], keepdim=True)
    check("aten::mean.out", out, x, [1], True, None)


def test_long_sum_is_accurate() -> None:
    x = torch.full((3_000_000,), 0.1)
    (total,) = run("aten::sum.IntList_out", x, None, False, None, like=[torch.empty(())])
    assert abs(total.item() / (3_000_000 * float(torch.tensor(0.1))) - 1) < 1e-6


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("aten::sum.IntList_out", ([2], False, None), "dimension"),
        ("aten::sum.IntList_out", ([0, 0], False, None), "twice"),
        ("aten::sum.IntList_out", ([0, -2], False, None), "twice"),
        ("aten::amax.out", ([5], False), "dimension"),
        ("aten::any.out", (-3, False), "dimension"),
    ],
)
def test_bad_dimensions_are_refused(name: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        _native.call_kernel(name, torch.ones(2, 3), *arguments, torch.empty(3))


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_argmax_for_any_dim_order(dim: int) -> None:
    x = torch.randn(2, 5, 4, 3).to(memory_format=torch.channels_last)
    for keeps in (False, True):
        check("aten::argmax.out", torch.argmax(x, dim, keeps).contiguous(), x, dim, keeps)
        check("aten::argmin.out", torch.argmin(x, dim, keeps).contiguous(), x, dim, keeps)
        expected = [t.contiguous() for t in torch.max(x, dim, keeps)]
        check("aten::max.dim_max", expected, x, dim, keeps)
    check("aten::argmax.out", torch.argmax(x), x, None, False)


# Inputs that are large enough for several threads. Each loop over results is the longest one of a case.
LARGE = torch.linspace(-3000, 3000, 301056).view(2, 12, 112, 112)
LARGE_CASES: dict[str, tuple[str, Callable[..., torch.Tensor], tuple[Any, ...]]] = {
    "planes": ("mean.out", torch.mean, (LARGE, [2, 3], False)),
    "channels last": (
        "mean.out",
        torch.mean,
        (LARGE.to(memory_format=torch.channels_last), [2, 3], True),
    ),
    "rows": ("sum.IntList_out", torch.sum, (LARGE.view(-1, 7), [1], False)),
    "columns": ("sum.IntList_out", torch.sum, (LARGE.view(112, -1), [0], False)),
    "half": ("mean.out", torch.mean, (LARGE.view(24, -1).half(), [0], False)),
    "largest": ("amax.out", torch.amax, (LARGE, [1, 3], False)),
    "any": ("any.dims_out", torch.any, (LARGE > 2990, [2, 3], False)),
    "all elements": ("mean.out", torch.mean, (LARGE, None, False)),
}


@pytest.mark.parametrize("case", LARGE_CASES)
def test_thread_count_does_not_change_results(case: str) -> None:
    name, eager, (x, dims, keeps) = LARGE_CASES[case]
    expected = eager(x, dims, keeps)
    extra = [None] if name in ("mean.out", "sum.IntList_out") else []
    (alone,) = run(f"aten::{name}", x, dims, keeps, *extra, like=[expected])
    for threads in (2, 3):
        (shared,) = run(f"aten::{name}", x, dims, keeps, *extra, like=[expected], threads=threads)
        assert torch.equal(shared, alone)
    torch.testing.assert_close(alone, expected, rtol=1e-4, atol=0.1)
