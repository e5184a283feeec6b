# SPDX-License-Identifier: BSD-3-Clause
# max_pool2d_with_indices, avg_pool2d and _adaptive_avg_pool2d against eager over sizes, strides, paddings.
from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.kernel_call import check

aten = torch.ops.aten
SIZES = [(5, 5), (7, 8), (12, 33), (16, 40)]
INF = float("inf")


def max_pool(x: torch.Tensor, *arguments: Any) -> None:
    check("aten::max_pool2d_with_indices.out", aten.max_pool2d_with_indices(x, *arguments), x, *arguments)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_max_pool(size: tuple[int, int], kernel: int, stride: int, ceil_mode: bool) -> None:
    for padding in range(kernel // 2 + 1):
        x = torch.randn(2, 3, *size)
        max_pool(x, [kernel] * 2, [stride] * 2, [padding] * 2, [1, 1], ceil_mode)
        # equal values: the first place counts
        max_pool(x.round(), [kernel] * 2, [stride] * 2, [padding] * 2, [1, 1], ceil_mode)


def test_max_pool_dilation_and_rectangles() -> None:
    max_pool(torch.randn(1, 2, 20, 40), [3, 3], [1, 1], [1, 1], [2, 2], False)
    max_pool(torch.randn(1, 2, 20, 40), [3, 3], [2, 2], [1, 1], [3, 2], False)
    max_pool(torch.randn(2, 11, 37), [2, 3], [], [1, 0], [1, 1], False)
    max_pool(torch.randn(1, 2, 112, 112), [3], [2], [1], [1], False)
    max_pool(torch.randn(0, 2, 8, 8), [3, 3], [2, 2], [1, 1], [1, 1], False)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_max_pool_special_values(stride: int) -> None:
    x = torch.randn(1, 2, 9, 40)
    x[0, 0, 3, 5], x[0, 0, 3, 6], x[0, 0, 4, 5], x[0, 1, 8, 39] = float("nan"), float("nan"), INF, -INF
    max_pool(x, [3, 3], [stride] * 2, [1, 1], [1, 1], False)
    max_pool(torch.full((1, 1, 9, 40), -INF), [3, 3], [stride] * 2, [1, 1], [1, 1], False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8])
def test_max_pool_dtypes(dtype: torch.dtype) -> None:
    max_pool((torch.randn(1, 2, 9, 9) * 9).to(dtype), [3, 3], [2, 2], [1, 1], [1, 1], False)


def test_channels_last() -> None:
    x = torch.randn(2, 3, 9, 10).to(memory_format=torch.channels_last)
    max_pool(x, [3, 3], [2, 2], [1, 1], [1, 1], False)
    check(
        "aten::avg_pool2d.out",
        aten.avg_pool2d(x, [3, 3], [2, 2], [1, 1]),
        x,
        [3, 3],
        [2, 2],
        [1, 1],
        False,
        True,
        None,
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_avg_pool(size: tuple[int, int], kernel: int, stride: int, ceil_mode: bool) -> None:
    for padding in range(kernel // 2 + 1):
        for include, divisor in [(True, None), (False, None), (True, 7)]:
            x = torch.randn(2, 3, *size)
            arguments = ([kernel] * 2, [stride] * 2, [padding] * 2, ceil_mode, include, divisor)
            check("aten::avg_pool2d.out", aten.avg_pool2d(x, *arguments), x, *arguments)


@pytest.mark.parametrize("kernel", [(25, 5), (7, 7), (1, 40), (3, 20)])
def test_avg_pool_of_long_windows(kernel: tuple[int, int]) -> None:
    for size in [kernel, (30, 43)]:
        x = torch.randn(1, 4, *size)
        arguments = (list(kernel), [], [0, 0], False, True, None)
        check("aten::avg_pool2d.out", aten.avg_pool2d(x, *arguments), x, *arguments)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_avg_pool_dtypes(dtype: torch.dtype) -> None:
    x = torch.randn(1, 2, 9, 9).to(dtype)
    check("aten::avg_pool2d.out", aten.avg_pool2d(x, [3, 3]), x, [3, 3], [], [0], False, True, None)
    check("aten::_adaptive_avg_pool2d.out", aten._adaptive_avg_pool2d(x, [2, 3]), x, [2, 3])


@pytest.mark.parametrize("shape", [(2, 3, 7, 7), (1, 2, 10, 33), (4, 5, 6)])
@pytest.mark.parametrize("output", [(1, 1), (2, 3), (7, 7), (11, 4), (1, 5)])
def test_adaptive_avg_pool(shape: tuple[int, ...], output: tuple[int, int]) -> None:
    x = torch.randn(shape)
    check(
        "aten::_adaptive_avg_pool2d.out", aten._adaptive_avg_pool2d(x, output).contiguous(), x, list(output)
    )


def test_bad_arguments_are_refused() -> None:
    x, out = torch.randn(1, 1, 4, 4), [torch.empty(1, 1, 2, 2), torch.empty(1, 1, 2, 2, dtype=torch.int64)]
    for kernel, padding, message in [
        ([3, 3], [2, 2], "half"),
        ([9, 9], [0, 0], "does not fit"),
        ([0, 1], [0, 0], "kernel_size"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            check("aten::max_pool2d_with_indices.out", out, x, kernel, [1, 1], padding, [1, 1], False)
