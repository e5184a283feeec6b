# SPDX-License-Identifier: BSD-3-Clause
# Gradients of convolutions and norms compared with eager.
from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.kernel_call import check
from torchette.runtime import _native

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_convolution_backward(dtype: torch.dtype, transposed: bool, groups: int, dimensions: int) -> None:
    sizes = [7, 8, 9][:dimensions]
    x = torch.randn(2, 4, *sizes, dtype=dtype)
    shape = (4, 3) if transposed else (6, 4 // groups)
    weight = torch.randn(*shape, *[3, 2, 3][:dimensions], dtype=dtype)
    settings: list[Any] = [[2, 1, 2][:dimensions], [1, 0, 1][:dimensions], [1, 2, 1][:dimensions], transposed]
    settings += [[1 if transposed else 0, 0, 0][:dimensions], groups]
    grad = torch.randn_like(aten.convolution(x, weight, None, *settings))
    channels = [grad.shape[1]]
    expected = aten.convolution_backward(grad, x, weight, channels, *settings, [True] * 3)
    arguments = (grad, x, weight, channels, *settings)
    check("aten::convolution_backward.out", expected, *arguments, [True] * 3, scale=10)
    untouched = torch.full_like(weight, 7)
    outs = [torch.empty_like(x), untouched, torch.empty(channels, dtype=dtype)]
    _native.call_kernel("aten::convolution_backward.out", *arguments, [True, False, False], *outs)
    torch.testing.assert_close(outs[0], expected[0])
    assert torch.equal(untouched, torch.full_like(weight, 7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_norms_backward(dtype: torch.dtype, weighted: bool) -> None:
    x = torch.randn(3, 4, 5, 6, dtype=dtype)
    grad = torch.randn_like(x)
    weight = torch.randn(5, 6, dtype=dtype) if weighted else None
    _, mean, rstd = aten.native_layer_norm(x, [5, 6], weight, None, 1e-5)
    arguments: list[Any] = [grad, x, [5, 6], mean, rstd, weight, weight, [True, weighted, weighted]]
    expected = aten.native_layer_norm_backward(*arguments)
    check_asked("aten::native_layer_norm_backward.out", expected, weighted, arguments)
    weight = torch.randn(4, dtype=dtype) if weighted else None
    _, mean, rstd = aten.native_group_norm(x, weight, None, 3, 4, 30, 2, 1e-5)
    arguments = [grad, x, mean, rstd, weight, 3, 4, 30, 2, [True, weighted, weighted]]
    expected = aten.native_group_norm_backward(*arguments)
    check_asked("aten::native_group_norm_backward.out", expected, weighted, arguments)


def check_asked(name: str, expected: Any, all_of_them: bool, arguments: list[Any]) -> None:
    if all_of_them:
        check(name, expected, *arguments, scale=10)
        return
    out = torch.empty_like(expected[0])
    _native.call_kernel(name, *arguments, out, torch.empty(0), torch.empty(0))
    torch.testing.assert_close(out, expected[0])


def test_a_gradient_of_other_sizes_is_refused() -> None:
    x, weight, grad = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3), torch.randn(1, 3, 4, 4)
    outs = [torch.empty_like(x), torch.empty_like(weight), torch.empty(3)]
    settings = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3)
    with pytest.raises(RuntimeError, match="grad_output"):
        _native.call_kernel("aten::convolution_backward.out", grad, x, weight, [3], *settings, *outs)
