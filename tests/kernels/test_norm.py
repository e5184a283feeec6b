# SPDX-License-Identifier: BSD-3-Clause
# Layer, group and batch norms compared with eager, with and without weights, for odd sizes, large means and all dtypes.
from __future__ import annotations

import pytest
import torch

from tests.kernels.kernel_call import check
from torchette.runtime import _native

aten = torch.ops.aten


def contiguous(tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [t.contiguous() for t in tensors]


def layer_norm(x: torch.Tensor, shape: list[int], w: torch.Tensor | None, b: torch.Tensor | None) -> None:
    check(
        "aten::native_layer_norm.out",
        contiguous(aten.native_layer_norm(x, shape, w, b, 1e-5)),
        x,
        shape,
        w,
        b,
        1e-5,
    )


@pytest.mark.parametrize("n", [1, 3, 8, 15, 16, 17, 63, 64, 65, 100, 192, 384])
@pytest.mark.parametrize("parameters", [(True, True), (True, False), (False, True), (False, False)])
def test_layer_norm(n: int, parameters: tuple[bool, bool]) -> None:
    w, b = (torch.randn(n) if is_present else None for is_present in parameters)
    layer_norm(torch.randn(2, 5, n) * 3 + 1, [n], w, b)


def test_layer_norm_over_several_dimensions() -> None:
    x = torch.randn(3, 4, 5, 6)
    for inner in [1, 2, 3, 4]:
        shape = list(x.shape[4 - inner :])
        layer_norm(x, shape, torch.randn(shape), torch.randn(shape))


def test_layer_norm_of_empty_tensors_and_special_values() -> None:
    layer_norm(torch.randn(0, 5), [5], None, None)
    x = torch.randn(3, 40)
    x[0, 3], x[1, 39] = float("nan"), float("inf")
    layer_norm(x, [40], None, None)


def test_large_mean_keeps_accuracy() -> None:
    x = torch.randn(2, 384) * 1e-2 + 100
    expected = aten.native_layer_norm(x.double(), [384], None, None, 1e-5)
    check("aten::native_layer_norm.out", [t.float() for t in expected], x, [384], None, None, 1e-5, scale=100)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    x, w, b = torch.randn(3, 20).to(dtype), torch.randn(20).to(dtype), torch.randn(20).to(dtype)
    layer_norm(x, [20], w, b)
    x, c = torch.randn(2, 4, 3, 3).to(dtype), torch.rand(4).to(dtype) + 0.5
    arguments = (x, c, c, c, c, 0.1, 1e-5)
    check(
        "aten::_native_batch_norm_legit_no_training.out",
        aten._native_batch_norm_legit_no_training(*arguments),
        *arguments,
    )


@pytest.mark.parametrize("shape", [(2, 6, 7, 7), (1, 12, 33), (3, 4, 1, 1), (2, 8, 16, 20), (2, 6)])
@pytest.mark.parametrize("with_parameters", [True, False])
def test_group_norm(shape: tuple[int, ...], with_parameters: bool) -> None:
    x, c = torch.randn(shape) * 2 + 1, shape[1]
    w, b = (torch.randn(c), torch.randn(c)) if with_parameters else (None, None)
    plane = x[0, 0].numel()
    for groups in [1, 2, c]:
        if c % groups or (plane == 1 and groups == c):
            continue
        arguments = (x, w, b, shape[0], c, plane, groups, 1e-5)
        check("aten::native_group_norm.out", contiguous(aten.native_group_norm(*arguments)), *arguments)


@pytest.mark.parametrize("shape", [(1, 5, 7, 7), (3, 4, 9), (2, 6), (2, 3, 4, 5, 6), (0, 3, 4, 4)])
@pytest.mark.parametrize("with_parameters", [True, False])
def test_batch_norm_for_inference(shape: tuple[int, ...], with_parameters: bool) -> None:
    x, c = torch.randn(shape), shape[1]
    w, b = (torch.randn(c), torch.randn(c)) if with_parameters else (None, None)
    arguments = (x, w, b, torch.randn(c), torch.rand(c) + 0.1, 0.1, 1e-3)
    check(
        "aten::_native_batch_norm_legit_no_training.out",
        aten._native_batch_norm_legit_no_training(*arguments),
        *arguments,
    )


@pytest.mark.parametrize("shape", [(1, 5, 7, 7), (3, 4, 33), (4, 3, 5, 6)])
def test_batch_norm_with_batch_statistics(shape: tuple[int, ...]) -> None:
    x, c = torch.randn(shape) + 2, shape[1]
    arguments = (x, torch.randn(c), torch.randn(c), True, 0.1, 1e-5)
    expected = aten._native_batch_norm_legit.no_stats(*arguments)
    check("aten::_native_batch_norm_legit.no_stats_out", contiguous(expected), *arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_batch_mean_of_an_infinity_is_infinite(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 5).to(dtype)
    x[0, 1, 2], x[1, 2, 0], x[0, 3, 0], x[2, 3, 1] = torch.inf, -torch.inf, torch.inf, -torch.inf
    expected = aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)
    check("aten::_native_batch_norm_legit.no_stats_out", contiguous(expected), x, None, None, True, 0.1, 1e-5)


def test_bad_arguments_are_refused() -> None:
    x = torch.randn(2, 6)
    like = [torch.empty(2, 6), torch.empty(2, 1), torch.empty(2, 1)]
    with pytest.raises(RuntimeError, match="last sizes"):
        check("aten::native_layer_norm.out", like, x, [5], None, None, 1e-5)
    with pytest.raises(RuntimeError, match="weight"):
        check("aten::native_layer_norm.out", like, x, [6], torch.ones(5), None, 1e-5)
    nothing = [torch.empty(1, 0), torch.empty(1, 1), torch.empty(1, 1)]
    with pytest.raises(RuntimeError, match="group "):
        check("aten::native_group_norm.out", nothing, torch.empty(1, 0), None, None, 1, 0, 1, 2**32 + 1, 1e-5)
    with pytest.raises(RuntimeError, match="group "):
        check("aten::native_group_norm.out", like, x, None, None, 2, 6, 1, 4, 1e-5)


def test_norms_of_channels_last_images() -> None:
    x = torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last)
    weight, bias = torch.randn(4), torch.randn(4)
    arguments = (x, weight, bias, 2, 4, 15, 2, 1e-5)
    check("aten::native_group_norm.out", torch.ops.aten.native_group_norm(*arguments), *arguments)
    arguments = (x, weight, bias, weight, weight.abs(), 0.1, 1e-5)
    expected = torch.ops.aten._native_batch_norm_legit_no_training(*arguments)
    check("aten::_native_batch_norm_legit_no_training.out", expected, *arguments)
    arguments = (x, [5], None, None, 1e-5)
    check("aten::native_layer_norm.out", torch.ops.aten.native_layer_norm(*arguments), *arguments)


def test_running_statistics_are_updated() -> None:
    x, weight, bias = torch.randn(3, 4, 5), torch.randn(4), torch.randn(4)
    mean, var = torch.randn(4), torch.rand(4)
    ours = [mean.clone(), var.clone()]
    theirs = [mean.clone(), var.clone()]
    expected = torch.ops.aten._native_batch_norm_legit(x, weight, bias, *theirs, True, 0.1, 1e-5)
    outs = [torch.empty_like(t) for t in expected]
    arguments = (x, weight, bias, *ours, True, 0.1, 1e-5)
    _native.call_kernel("aten::_native_batch_norm_legit.out", *arguments, *outs)
    torch.testing.assert_close([*outs, *ours], [*expected, *theirs])
