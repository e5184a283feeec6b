# SPDX-License-Identifier: BSD-3-Clause
# Operators for which ExecuTorch 1.5.1 returns wrong results or crashes, compiled, run and compared with eager. 16-bit
# results are compared with float64, rounded once. Scalar outputs, strings, None, mutated inputs, data-dependent sizes
# and GPT-2 are in tests/models/test_dynamic_shapes.py, while_loop is in tests/models/test_control_flow.py.
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torchette
from tests.exir.graphs import Function

aten = torch.ops.aten
X, SIGNED = torch.randn(4, 6), torch.tensor([-7, -3, 0, 3, 7])
IMAGE, VOLUME = torch.randn(2, 4, 9, 8), torch.randn(1, 2, 6, 7, 8)
POOLED, PLACES = aten.max_pool2d_with_indices(IMAGE, [3, 3], [2, 2], [1, 1])
WINDOWS = ([3, 3], [2, 2], [1, 1], [1, 1], False)

CASES: dict[str, tuple[Callable, tuple[Any, ...]]] = {
    "argwhere of a matrix": (torch.argwhere, (torch.tensor([[1, 0, 2], [0, 3, 0]]),)),
    "remainder of integers": (lambda a: torch.remainder(a, torch.tensor(5)), (SIGNED,)),
    "remainder by negative integers": (lambda a: torch.remainder(a, torch.tensor(-5)), (SIGNED,)),
    "max_pool2d_with_indices_backward": (
        lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *WINDOWS, i),
        (POOLED, IMAGE, PLACES),
    ),
    "grid_sample": (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        (IMAGE, torch.rand(2, 5, 3, 2) * 2 - 1),
    ),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), (IMAGE,)),
    "var": (lambda x: x.var(1, correction=0), (X + 1000,)),
    "sum of a number": (lambda x: x.sum(0), (torch.tensor(3.0),)),
    "logsumexp of a number": (lambda x: x.logsumexp(0), (torch.tensor(3.0),)),
    "sort": (lambda x: x.sort(0, descending=True), (X,)),
    "argsort": (lambda x: x.argsort(1), (X,)),
    "scatter_reduce": (
        lambda x, i, s: x.scatter_reduce(1, i, s, "mean", include_self=False),
        (X, torch.randint(0, 6, (4, 3)), torch.randn(4, 3)),
    ),
    "max_pool3d": (lambda x: F.max_pool3d(x, 3, 2, 1), (VOLUME,)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (VOLUME,)),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, (3, 2, 5)), (VOLUME,)),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, (3, 2, 5)), (VOLUME,)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (4, 3)), (IMAGE,)),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 3), (IMAGE[0],)),
    "conv3d": (lambda x, w: F.conv3d(x, w, stride=2, padding=1), (VOLUME, torch.randn(3, 2, 3, 3, 3))),
    "conv_transpose3d": (
        lambda x, w: F.conv_transpose3d(x, w, stride=2, output_padding=1),
        (VOLUME, torch.randn(2, 3, 3, 3, 3)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equal_to_eager(name: str) -> None:
    function, arguments = CASES[name]
    model = torchette.compile(Function(function).eval(), arguments)
    actual, expected = model(*arguments), function(*arguments)
    for ours, theirs in zip(
        *(list(x) if isinstance(x, tuple) else [x] for x in (actual, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


ROUNDED_ONCE: dict[str, tuple[Callable, tuple[torch.Tensor, ...]]] = {
    "conv2d": (
        lambda x, w: F.conv2d(x, w, padding=1),
        (torch.randn(1, 32, 7, 7), torch.randn(4, 32, 3, 3)),
    ),
    "grid_sample": (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        (IMAGE, torch.rand(2, 5, 3, 2) * 2 - 1),
    ),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3), (IMAGE,)),
    "var": (lambda x: x.var(1), (torch.randn(4, 300) + 10,)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ROUNDED_ONCE)
def test_16_bit_results_are_rounded_once(name: str, dtype: torch.dtype) -> None:
    function, inputs = ROUNDED_ONCE[name]
    arguments = tuple(x.to(dtype) for x in inputs)
    model = torchette.compile(Function(function).eval(), arguments)
    exact = function(*(x.double() for x in arguments))
    assert (
        (model(*arguments).double() - exact).abs() <= torch.finfo(dtype).eps / 2 * exact.abs() + 1e-3
    ).all()
