# SPDX-License-Identifier: BSD-3-Clause
# Kernels in float16 and bfloat16 compared with float64: no reduction, convolution or normalization may be less accurate
# than eager. The kernels compute in float32 and round once. Eager rounds intermediate values: `grid_sample` computes
# positions in 16 bits and reads other pixels, a transposed convolution accumulates in float16. The bits therefore
# differ from eager.
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.kernels.kernel_call import run

aten = torch.ops.aten
HALVES = [torch.float16, torch.bfloat16]
# How much larger our error may be: two roundings of the same sum may round a tie in opposite directions.
FACTOR = 1.1

Arguments = tuple[Any, ...]


def convolutions(transposed: bool) -> Callable[[], Iterator[Arguments]]:
    def made() -> Iterator[Arguments]:
        for spatial in (1, 2, 3):
            for channels, kernel, stride, padding, dilation, groups, bias in (
                (4, 3, 1, 0, 1, 1, True), (16, 3, 2, 1, 1, 1, False), (64, 4, 2, 1, 1, 1, True), (6, 3, 2, 1, 2, 2, True),
                (1, 2, 2, 0, 1, 1, False), (96, 1, 1, 0, 1, 1, True), (5, 3, 1, 1, 1, 5, True),
            ):  # fmt: skip
                outputs = channels if groups == channels else 6
                shape = (
                    (channels, outputs // groups, *[kernel] * spatial)
                    if transposed
                    else (outputs, channels // groups, *[kernel] * spatial)
                )
                weight = torch.randn(shape) / (channels * kernel**spatial / groups) ** 0.5
                lists = [stride] * spatial, [padding] * spatial, [dilation] * spatial
                extra = [int(transposed and stride > 1)] * spatial
                x = torch.randn(2, channels, *range(7, 7 + spatial))
                yield x, weight, torch.randn(outputs) if bias else None, *lists, transposed, extra, groups

    return made


def grids() -> Iterator[Arguments]:
    for mode, padding, align in itertools.product(range(3), range(3), (False, True)):
        for size in ((5, 6), (16, 3)):
            yield torch.randn(2, 3, *size), torch.rand(2, 4, 5, 2) * 2.4 - 1.2, mode, padding, align


def pools(spatial: int) -> Callable[[], Iterator[Arguments]]:
    def made() -> Iterator[Arguments]:
        for kernel, stride, padding, ceil_mode, count in (
            (2, 2, 0, False, True), (3, 2, 1, True, False), (5, 1, 2, False, True),
        ):  # fmt: skip
            lists = [kernel] * spatial, [stride] * spatial, [padding] * spatial
            yield torch.randn(2, 3, *range(9, 9 + spatial)), *lists, ceil_mode, count, *[None] * (spatial > 1)

    return made


def resizes(spatial: int, *, aligned: bool) -> Callable[[], Iterator[Arguments]]:
    def made() -> Iterator[Arguments]:
        for size, align in itertools.product(((7, 9, 5), (14, 18, 10), (3, 4, 11)), (False, True)):
            x = torch.randn(2, 3, *(7, 9, 5)[:spatial])
            yield x, list(size[:spatial]), *[align] * aligned, *[None] * spatial

    return made


def reductions() -> Iterator[Arguments]:
    for shape, dims in (((3, 300), [1]), ((40, 5, 7), [0, 2]), ((2, 3, 2000), [2])):
        for keep in (False, True):
            yield torch.randn(shape) + 0.3, dims, keep


def scans() -> Iterator[Arguments]:
    for shape, dim in (((4, 300), 1), ((70, 5), 0), ((3, 20, 4), 1)):
        yield torch.randn(shape), dim


def normalized(groups: bool) -> Callable[[], Iterator[Arguments]]:
    def made() -> Iterator[Arguments]:
        for offset in (0.0, 5.0):
            x = torch.randn(3, 12, 33) + offset
            weight, bias = torch.randn(12 if groups else 33), torch.randn(12 if groups else 33)
            yield (x, weight, bias, 3, 12, 33, 4, 1e-5) if groups else (x, [33], weight, bias, 1e-5)

    return made


def batch_normalized() -> Iterator[Arguments]:
    for offset in (0.0, 5.0):
        yield (
            torch.randn(4, 6, 7, 5) + offset, torch.randn(6), torch.randn(6), torch.randn(6), torch.rand(6) + 0.5, 0.1, 1e-5,
        )  # fmt: skip


def products(kind: str) -> Callable[[], Iterator[Arguments]]:
    def made() -> Iterator[Arguments]:
        for m, k, n in ((3, 64, 5), (17, 300, 33), (1, 1000, 40)):
            a, b, c = torch.randn(2, m, k) / k**0.5, torch.randn(2, k, n), torch.randn(2, m, n)
            yield {
                "mm": (a[0], b[0]), "bmm": (a, b), "addmm": (c[0], a[0], b[0]), "baddbmm": (c, a, b),
                "linear": (a, b[0].T.contiguous(), c[0, 0]),
            }[kind]  # fmt: skip

    return made


# Kernel, eager function, arguments. Eager has no 16-bit avg_pool3d or grid_sampler_3d. test_elementwise.py tests the
# other operators.
OPERATORS: dict[str, tuple[str, Callable[..., Any], Callable[[], Iterator[Arguments]]]] = {
    "conv": ("convolution.out", aten.convolution, convolutions(False)),
    "conv_transpose": ("convolution.out", aten.convolution, convolutions(True)),
    "grid_sampler_2d": ("grid_sampler_2d.out", aten.grid_sampler_2d, grids),
    "avg_pool1d": ("avg_pool1d.out", aten.avg_pool1d, pools(1)),
    "avg_pool2d": ("avg_pool2d.out", aten.avg_pool2d, pools(2)),
    "adaptive_avg_pool2d": ("_adaptive_avg_pool2d.out", aten._adaptive_avg_pool2d,
        lambda: iter([(torch.randn(2, 3, 17, 13), [5, 4]), (torch.randn(2, 3, 17, 13), [1, 1])])),
    "adaptive_avg_pool3d": ("_adaptive_avg_pool3d.out", aten._adaptive_avg_pool3d,
        lambda: iter([(torch.randn(2, 3, 9, 7, 8), [5, 4, 2]), (torch.randn(2, 3, 9, 7, 8), [1, 1, 1])])),
    "upsample_linear1d": ("upsample_linear1d.out", aten.upsample_linear1d, resizes(1, aligned=True)),
    "upsample_bilinear2d": ("upsample_bilinear2d.out", aten.upsample_bilinear2d, resizes(2, aligned=True)),
    "upsample_bicubic2d": ("upsample_bicubic2d.out", aten.upsample_bicubic2d, resizes(2, aligned=True)),
    "upsample_trilinear3d": ("upsample_trilinear3d.out", aten.upsample_trilinear3d, resizes(3, aligned=True)),
    "upsample_nearest2d": ("upsample_nearest2d.out", aten.upsample_nearest2d, resizes(2, aligned=False)),
    **{kind: (f"{kind}.out", getattr(aten, kind), products(kind)) for kind in ("mm", "bmm", "addmm", "baddbmm", "linear")},
    "sum": ("sum.IntList_out", aten.sum, reductions),
    "mean": ("mean.out", aten.mean, reductions),
    "var": ("var.correction_out", lambda x, dims, _, keep: aten.var(x, dims, correction=1, keepdim=keep),
        lambda: ((x, dims, 1, keep) for x, dims, keep in reductions())),
    "prod": ("prod.int_out", aten.prod, lambda: iter([(torch.rand(5, 60) + 0.5, 1, False), (torch.rand(60, 5) + 0.5, 0, True)])),
    "cumsum": ("cumsum.out", aten.cumsum, scans),
    "cumprod": ("cumprod.out", aten.cumprod, lambda: iter([(torch.rand(5, 60) + 0.5, 1), (torch.rand(60, 5) + 0.5, 0)])),
    "logcumsumexp": ("logcumsumexp.out", aten.logcumsumexp, scans),
    "softmax": ("_softmax.out", aten._softmax, lambda: ((3 * x, dim, False) for x, dim in scans())),
    "log_softmax": ("_log_softmax.out", aten._log_softmax, lambda: ((3 * x, dim, False) for x, dim in scans())),
    "layer_norm": ("native_layer_norm.out", aten.native_layer_norm, normalized(False)),
    "group_norm": ("native_group_norm.out", aten.native_group_norm, normalized(True)),
    "batch_norm": ("_native_batch_norm_legit_no_training.out", aten._native_batch_norm_legit_no_training, batch_normalized),
}  # fmt: skip
# Keyword arguments of eager that are positional arguments of the kernel.
DTYPE_LAST = {"sum", "mean", "prod", "cumsum", "cumprod"}
SCALES_LAST = {"addmm": (1, 1), "baddbmm": (1, 1)}


def mapped(arguments: Arguments, dtype: torch.dtype) -> Arguments:
    return tuple(a.to(dtype) if isinstance(a, torch.Tensor) else a for a in arguments)


def tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def farthest(a: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    apart = (a.double() - exact).abs()
    return apart.max().item(), apart.square().mean().sqrt().item()


def held(name: str, dtype: torch.dtype, times: int) -> list[str]:
    """Describes results that are less accurate than eager, over `times` draws of the operator's arguments."""
    kernel, function, make_cases = OPERATORS[name]
    worse = []
    for _ in range(times):
        for number, arguments in enumerate(make_cases()):
            inputs = mapped(arguments, dtype)
            theirs = tensors(function(*inputs))
            exact = tensors(function(*mapped(inputs, torch.float64)))
            more = (None,) * (name in DTYPE_LAST) + SCALES_LAST.get(name, ())
            ours = run(f"aten::{kernel}", *inputs, *more, like=[t.contiguous() for t in theirs])
            for index, (a, b, c) in enumerate(zip(ours, theirs, exact, strict=True)):
                if not a.numel() or torch.equal(a, b):
                    continue
                pairs = list(zip(farthest(a, c), farthest(b, c), strict=True))
                if any(mine > FACTOR * eagers for mine, eagers in pairs):
                    worse.append(
                        f"arguments {number}, result {index}: {pairs} (maximum and rms; ours, eager)"
                    )
    return worse


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_at_least_as_accurate_as_eager(name: str, dtype: torch.dtype) -> None:
    worse = held(name, dtype, 1)
    assert not worse, "\n".join(worse)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_at_least_as_accurate_as_eager_over_many_draws(name: str, dtype: torch.dtype) -> None:
    worse = held(name, dtype, 10)
    assert not worse, "\n".join(worse)
