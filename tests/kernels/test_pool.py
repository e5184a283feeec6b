# SPDX-License-Identifier: BSD-3-Clause
# Max, average and adaptive pooling compared with eager over sizes, strides and paddings.
from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.kernel_call import check
from torchette.runtime import _native

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
        # With equal values, the first position counts.
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_volumes(dtype: torch.dtype, ceil_mode: bool) -> None:
    x = (torch.randn(2, 3, 6, 7, 35) * 9).to(dtype)
    for stride in ([1, 1, 1], [2, 3, 2]):
        arguments = ([3, 2, 3], stride, [1, 0, 1], [1, 2, 1], ceil_mode)
        expected = aten.max_pool3d_with_indices(x, *arguments)
        check("aten::max_pool3d_with_indices.out", expected, x, *arguments)
        check("aten::max_pool3d_with_indices.out", [t[0] for t in expected], x[0], *arguments)
        if dtype in (torch.float32, torch.float64):  # supported by eager
            means = ([3, 2, 3], stride, [1, 0, 1], ceil_mode, False)
            check("aten::avg_pool3d.out", aten.avg_pool3d(x, *means), x, *means, None)
    if dtype.is_floating_point:
        for size in ([1, 1, 1], [3, 7, 4]):
            exact = aten._adaptive_avg_pool3d(x.double(), size).to(dtype)  # eager accumulates in 16 bits
            check("aten::_adaptive_avg_pool3d.out", exact, x, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_adaptive_max_pools_and_avg_pool1d(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 7, 35).to(dtype)
    for size in ([1, 1], [3, 4], [7, 35]):
        check("aten::adaptive_max_pool2d.out", aten.adaptive_max_pool2d(x, size), x, size)
        volume = x[:, None].expand(2, 4, 3, 7, 35).contiguous()
        check(
            "aten::adaptive_max_pool3d.out", aten.adaptive_max_pool3d(volume, [2, *size]), volume, [2, *size]
        )
    rows = x[0]
    check("aten::adaptive_avg_pool1d.out", aten.adaptive_avg_pool1d(rows, [4]), rows, [4])
    check("aten::avg_pool1d.out", aten.avg_pool1d(rows, [3], [2], [1], True), rows, [3], [2], [1], True, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [True, False])
def test_gradients(dtype: torch.dtype, batch: bool) -> None:
    x = torch.randn(2, 3, 7, 9).to(dtype)
    x = x if batch else x[0]
    windows = ([3, 2], [2, 2], [1, 0])
    pooled, indices = aten.max_pool2d_with_indices(x, *windows)
    grad = torch.randn_like(pooled)
    check(
        "aten::max_pool2d_with_indices_backward.grad_input",
        aten.max_pool2d_with_indices_backward(grad, x, *windows, [1, 1], False, indices),
        *(grad, x, *windows, [1, 1], False, indices),
    )
    for counts, divisor in ((True, None), (False, None), (True, 5)):
        means = (*windows, False, counts, divisor)
        check(
            "aten::avg_pool2d_backward.grad_input", aten.avg_pool2d_backward(grad, x, *means), grad, x, *means
        )
    grad = torch.randn_like(aten._adaptive_avg_pool2d(x, [3, 4]))
    expected = aten._adaptive_avg_pool2d_backward(grad, x)
    check("aten::_adaptive_avg_pool2d_backward.out", expected, grad, x)


def test_an_index_beyond_the_input_is_refused() -> None:
    x, grad = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 2, 2)
    indices = torch.tensor([[[[0, 3], [99, 1]]]])
    with pytest.raises(RuntimeError, match="indices contain 99"):
        _native.call_kernel(
            "aten::max_pool2d_with_indices_backward.grad_input",
            *(grad, x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices, torch.empty(1, 1, 4, 4)),
        )


@pytest.mark.parametrize("channels", [1, 3, 16, 37])
def test_channels_last_pooling(channels: int) -> None:
    x = torch.randn(2, channels, 9, 11).to(memory_format=torch.channels_last)
    for ceil_mode in (False, True):
        max_pool(x, [3, 2], [2, 1], [1, 1], [1, 1], ceil_mode)
        means = ([3, 2], [2, 1], [1, 1], ceil_mode, False)
        check("aten::avg_pool2d.out", aten.avg_pool2d(x, *means), x, *means, None)
    check("aten::_adaptive_avg_pool2d.out", aten._adaptive_avg_pool2d(x, [1, 1]), x, [1, 1])
    check("aten::_adaptive_avg_pool2d.out", aten._adaptive_avg_pool2d(x, [4, 5]), x, [4, 5])


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_windows_that_do_not_fit_32_bits_are_refused(ceil_mode: bool) -> None:
    """A span of 2^32 becomes 0 if it is truncated to int32."""
    x, kernel, stride, dilation = torch.randn(1, 1, 5, 5), 2**16 + 1, 2**29 - 1, 2**16
    out = torch.empty(1, 1, 1, 1)
    with pytest.raises(RuntimeError, match="does not fit a size of 5"):
        _native.call_kernel(
            "aten::max_pool2d_with_indices.out",
            *(x, [kernel] * 2, [stride] * 2, [0, 0], [dilation] * 2, ceil_mode, out, out.long()),
        )
