# SPDX-License-Identifier: BSD-3-Clause
# topk and sort compared with eager: every type, both directions, NaN, equal elements, and invalid arguments.
from __future__ import annotations

import pytest
import torch

from tests.kernels.kernel_call import check, run

DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip


def different(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns positive and negative elements, distinct within a line if the type has enough values."""
    n = 1
    for size in shape:
        n *= size
    low = 0 if dtype == torch.uint8 else -n // 2
    return (torch.randperm(n) + low).reshape(shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [True, False])
def test_topk(dtype: torch.dtype, largest: bool) -> None:
    for shape in ((1,), (9,), (3, 7), (2, 3, 5)):
        for dim in range(-len(shape), len(shape)):
            x = different(shape, dtype)
            for k in range(shape[dim] + 1):
                values, _ = torch.topk(x, k, dim, largest)
                like = [values, values.long()]
                ours, indices = run("aten::topk.values", x, k, dim, largest, True, like=like)
                assert torch.equal(ours, values)
                assert torch.equal(torch.gather(x, dim, indices), values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [True, False])
def test_sort_is_stable(dtype: torch.dtype, descending: bool) -> None:
    for shape in ((), (0,), (1,), (40,), (3, 0, 2), (4, 30), (3, 5, 7)):
        x = torch.randint(0, 5, shape).to(dtype)
        for dim in range(-max(len(shape), 1), max(len(shape), 1)):
            expected = torch.sort(x, stable=True, dim=dim, descending=descending)
            check("aten::sort.values", expected, x, dim, descending)
            check("aten::sort.values_stable", expected, x, True, dim, descending)
            check("aten::sort.values_stable", expected, x, None, dim, descending)


def test_sort_of_special_values() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([0.0, nan, -0.0, -inf, 1e-45, inf, -1e-45, nan, -1.0, 3e38])
    for dtype in (torch.float32, torch.float64):
        for descending in (True, False):
            expected = torch.sort(x.to(dtype), stable=True, descending=descending)
            check("aten::sort.values", expected, x.to(dtype), 0, descending)
    least = torch.tensor([2**63 - 1, -(2**63), 0, -1, 1])
    check("aten::sort.values", torch.sort(least), least, 0, False)


def test_sort_of_channels_last() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for dim in range(4):
        values, indices = torch.sort(x.contiguous(), dim)
        check("aten::sort.values", [values, indices], x, dim, False)


def test_invalid_arguments_are_rejected() -> None:
    x = torch.randn(3, 4)
    values, indices = x[:, :2].contiguous(), torch.zeros(3, 2).long()
    for like, arguments in (
        ([values, indices], (x, 5, 1, True, True)),
        ([values, indices], (x, -1, 1, True, True)),
        ([values, indices], (x, 2, 2, True, True)),
        ([values, indices], (x, 3, 1, True, True)),
        ([values, indices.int()], (x, 2, 1, True, True)),
        ([values.double(), indices], (x, 2, 1, True, True)),
    ):
        with pytest.raises(RuntimeError):
            run("aten::topk.values", *arguments, like=like)
