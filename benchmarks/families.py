# SPDX-License-Identifier: BSD-3-Clause
# One or more calls per family of kernels, on about 65,536 elements: our kernel and eager alternate on one thread. Prints the ratio
# of the times, worst first. REASONS contains the reason for each case that is more than three times slower than eager.
"""Kernels by family compared with eager: ``./dev bench kernels [NAME ...]``."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from benchmarks.kernels import interleaved, time_kernel
from torchette.exir import ops

aten = torch.ops.aten
N = 65536
BAR = 3.0
# A word of a label -> the reason why such a case may be slower than the bar.
REASONS: dict[str, str] = {
    "uint8": "all integer types are computed as int64, in one loop",
    "float64": "float64 uses unspecialized tiles and loops",
    **dict.fromkeys(
        ("cholesky", "geqrf", "eigh"),
        "in double precision and not blocked, so that the code is small and a float32 result exact to its last digits",
    ),
    "svd": "rotations of columns, in double precision: little code, and small singular values exact to their last digits",
    "cdist": "computed from differences; eager uses a matmul that loses the digits of near points",
    "scaled_modified_bessel": "an integral by the trapezoidal rule, in double precision, one element at a time",
    "erfc": "the C library's function, one element at a time",
}


class Case(NamedTuple):
    """One call: a functional overload and its arguments."""

    family: str
    label: str
    op: torch._ops.OpOverload
    arguments: tuple[Any, ...]


def cases() -> Iterator[Case]:
    """Yields all calls, in order of the families."""
    vector, positive, matrix = torch.randn(N), torch.rand(N) + 0.1, torch.randn(256, 256)
    for name in (
        "abs", "acos", "asinh", "atan", "ceil", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "floor", "gelu",
        "hardswish", "i0", "log", "log1p", "neg", "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "silu",
        "sin", "sqrt", "tan", "tanh", "trunc", "isnan", "logical_not", "lgamma", "digamma",
    ):  # fmt: skip
        op = getattr(aten, name).default
        yield Case("elementwise", name, op, (positive,))
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int32,
        torch.int64,
        torch.uint8,
    ):
        label = str(dtype).removeprefix("torch.")
        a, b = (vector * 9).to(dtype), (positive * 9 + 1).to(dtype)
        for name in ("add", "mul", "eq", "sub", "div"):
            yield Case("elementwise", f"{name} {label}", getattr(aten, name).Tensor, (a, b))
        yield Case("elementwise", f"maximum {label}", aten.maximum.default, (a, b))
        yield Case("conversion", f"float32 to {label}", aten._to_copy.default, (vector * 9, dtype))
        yield Case("reduce", f"sum {label}", aten.sum.dim_IntList, (a.reshape(256, 256), [1]))
        yield Case("reduce", f"amax {label}, outer", aten.amax.default, (a.reshape(256, 256), [0]))
        yield Case("shape", f"permute {label}", aten.permute_copy.default, (a.reshape(16, 64, 64), [0, 2, 1]))
        yield Case("shape", f"cat {label}", aten.cat.default, ([a.reshape(256, 256)] * 2, 1))
    yield Case("elementwise", "add, row", aten.add.Tensor, (matrix, matrix[0]))
    yield Case("elementwise", "add, column", aten.add.Tensor, (matrix, matrix[:, :1].contiguous()))
    yield Case("elementwise", "pow 2.5", aten.pow.Tensor_Scalar, (positive, 2.5))
    yield Case("elementwise", "pow", aten.pow.Tensor_Tensor, (positive, vector))
    yield Case("elementwise", "remainder", aten.remainder.Tensor, (vector, positive))
    yield Case(
        "elementwise",
        "remainder int32",
        aten.remainder.Tensor,
        ((vector * 99).int(), (positive * 9 + 1).int()),
    )
    yield Case("elementwise", "where", aten.where.self, (matrix > 0, matrix, -matrix))
    yield Case("elementwise", "where, mask of a row", aten.where.self, (matrix[0] > 0, matrix, -matrix))
    yield Case(
        "elementwise", "where, mask of a column", aten.where.self, (matrix[:, :1] > 0, matrix, -matrix)
    )
    yield Case("elementwise", "clamp", aten.clamp.default, (vector, -0.5, 0.5))
    yield Case("elementwise", "leaky_relu", aten.leaky_relu.default, (vector, 0.1))
    yield Case("elementwise", "elu", aten.elu.default, (vector,))
    yield Case("elementwise", "logical_and", aten.logical_and.default, (vector > 0, positive > 0.5))
    yield Case(
        "elementwise", "bitwise_xor", aten.bitwise_xor.Tensor, ((vector * 99).int(), (positive * 99).int())
    )
    for name in ("argmax", "argmin"):
        yield Case("reduce", f"{name}, last", getattr(aten, name).default, (matrix, 1))
        yield Case("reduce", f"{name}, first", getattr(aten, name).default, (matrix, 0))
    yield Case("reduce", "max.dim, last", aten.max.dim, (matrix, 1))
    yield Case("reduce", "mean, all", aten.mean.default, (vector,))
    yield Case("reduce", "var", aten.var.correction, (matrix, [1]))
    yield Case("reduce", "var, outer", aten.var.correction, (matrix, [0]))
    yield Case("reduce", "any", aten.any.dim, (matrix > 9, 1))
    yield Case("reduce", "prod", aten.prod.dim_int, (matrix, 1))
    yield Case("running", "cumsum, last", aten.cumsum.default, (matrix, 1))
    yield Case("running", "cumsum, first", aten.cumsum.default, (matrix, 0))
    yield Case("running", "cummax", aten.cummax.default, (matrix, 1))
    yield Case("running", "cumprod", aten.cumprod.default, (matrix, 1))
    yield Case("running", "logcumsumexp", aten.logcumsumexp.default, (matrix, 1))
    yield Case("softmax", "last", aten._softmax.default, (matrix, 1, False))
    yield Case("softmax", "first", aten._softmax.default, (matrix, 0, False))
    yield Case("softmax", "log, last", aten._log_softmax.default, (matrix, 1, False))
    yield Case("softmax", "bfloat16", aten._softmax.default, (matrix.bfloat16(), 1, False))
    yield Case("norm", "layer", aten.native_layer_norm.default, (matrix, [256], matrix[0], matrix[1], 1e-5))
    image = torch.randn(1, 16, 64, 64)
    ones = torch.ones(16)
    yield Case("norm", "group", aten.native_group_norm.default, (image, ones, ones, 1, 16, 4096, 4, 1e-5))
    yield Case(
        "norm",
        "batch",
        aten._native_batch_norm_legit_no_training.default,
        (image, ones, ones, ones, ones, 0.1, 1e-5),
    )
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        label = str(dtype).removeprefix("torch.")
        a = torch.randn(128, 128, dtype=torch.float32).to(dtype)
        yield Case("matmul", f"mm {label}", aten.mm.default, (a, a))
        yield Case("matmul", f"linear {label}", aten.linear.default, (a[:1].contiguous(), a, a[0]))
        for format, layout in ((torch.contiguous_format, ""), (torch.channels_last, ", channels last")):
            x = image.to(dtype).to(memory_format=format)
            weight = (torch.randn(16, 16, 3, 3) / 12).to(dtype).to(memory_format=format)
            plain: tuple[Any, ...] = ([1, 1], [1, 1], [1, 1], False, [0, 0])
            yield Case("conv", f"3x3 {label}{layout}", aten.convolution.default, (x, weight, None, *plain, 1))
            narrow = weight[:, :1].contiguous()
            yield Case(
                "conv", f"depthwise {label}{layout}", aten.convolution.default, (x, narrow, None, *plain, 16)
            )
            point = weight[:, :, :1, :1].contiguous()
            arguments = (x, point, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
            yield Case("conv", f"1x1 {label}{layout}", aten.convolution.default, arguments)
    for format, layout in ((torch.contiguous_format, ""), (torch.channels_last, ", channels last")):
        x = image.to(memory_format=format)
        window = ([3, 3], [2, 2], [1, 1])
        yield Case("pool", f"max{layout}", aten.max_pool2d_with_indices.default, (x, *window))
        yield Case("pool", f"mean{layout}", aten.avg_pool2d.default, (x, *window))
        yield Case("pool", f"adaptive mean{layout}", aten._adaptive_avg_pool2d.default, (x, [7, 7]))
        yield Case("pool", f"global mean{layout}", aten._adaptive_avg_pool2d.default, (x, [1, 1]))
        small = x[:, :, :32, :32].contiguous(memory_format=format)
        yield Case("resample", f"nearest{layout}", aten.upsample_nearest2d.default, (small, [64, 64]))
        yield Case(
            "resample", f"bilinear{layout}", aten.upsample_bilinear2d.default, (small, [64, 64], False)
        )
        yield Case("resample", f"bicubic{layout}", aten.upsample_bicubic2d.default, (small, [64, 64], False))
    volume = image.reshape(1, 4, 16, 32, 32)
    yield Case("pool", "max, volume", aten.max_pool3d_with_indices.default, (volume, [2, 2, 2]))
    yield Case("pool", "mean, volume", aten.avg_pool3d.default, (volume, [2, 2, 2]))
    grid = torch.rand(1, 64, 64, 2) * 2 - 1
    yield Case("resample", "grid", aten.grid_sampler_2d.default, (image, grid, 0, 0, False))
    rows = torch.randint(0, 256, (256,))
    places = torch.randint(0, 256, (256, 256))
    yield Case("index", "embedding", aten.embedding.default, (matrix, rows))
    yield Case("index", "index_select, last", aten.index_select.default, (matrix, 1, rows))
    yield Case("index", "gather", aten.gather.default, (matrix, 1, places))
    yield Case("index", "scatter", aten.scatter.src, (matrix, 1, places, matrix))
    yield Case("index", "scatter_add", aten.scatter_add.default, (matrix, 1, places, matrix))
    yield Case("index", "scatter_reduce", aten.scatter_reduce.two, (matrix, 1, places, matrix, "amax"))
    yield Case("index", "index", aten.index.Tensor, (matrix, [places[0], places[1]]))
    yield Case("index", "nonzero", aten.nonzero.default, (matrix > 0,))
    yield Case("index", "masked_select", aten.masked_select.default, (matrix, matrix > 0))
    yield Case("sort", "sort", aten.sort.default, (matrix, 1))
    yield Case("sort", "topk", aten.topk.default, (matrix, 5))
    yield Case("sort", "median", aten.median.dim, (matrix, 1))
    yield Case("sort", "unique", aten._unique2.default, ((vector * 99).round(),))
    yield Case("sort", "searchsorted", aten.searchsorted.Tensor, (positive.sort().values, vector))
    yield Case(
        "distance", "cdist", aten._cdist_forward.default, (matrix[:, :32].contiguous(),) * 2 + (2.0, None)
    )
    yield Case("transform", "real, 256", aten._fft_r2c.default, (matrix, [1], 0, True))
    square = matrix @ matrix.mT + torch.eye(256)
    yield Case("linalg", "cholesky, 256", aten.linalg_cholesky_ex.default, (square,))
    yield Case("linalg", "lu_factor, 256", aten.linalg_lu_factor_ex.default, (matrix,))
    yield Case("linalg", "geqrf, 256", aten.geqrf.default, (matrix,))
    yield Case("linalg", "eigh, 256", aten._linalg_eigh.default, (square,))
    yield Case("linalg", "svd, 256", aten._linalg_svd.default, (matrix,))
    yield Case("special", "bessel_j0", aten.special_bessel_j0.default, (positive,))
    yield Case(
        "special", "scaled_modified_bessel_k0", aten.special_scaled_modified_bessel_k0.default, (positive,)
    )
    yield Case("shape", "slice", aten.slice_copy.Tensor, (matrix, 1, 0, 256, 2))
    yield Case("shape", "constant_pad_nd", aten.constant_pad_nd.default, (image, [1, 1, 1, 1]))
    yield Case("shape", "reflection_pad2d", aten.reflection_pad2d.default, (image, [1, 1, 1, 1]))
    yield Case("shape", "repeat", aten.repeat.default, (matrix[:64].contiguous(), [4, 1]))
    yield Case("fill", "full", aten.full_like.default, (vector, 3.0))
    yield Case("fill", "arange", aten.arange.start_step, (0, N, 1))


def call_of(case: Case) -> tuple[Callable[[int], float], Callable[[], Any]]:
    """Returns the kernel, a function from a number of repeats to seconds, and the call of eager."""
    out = ops.out_variant(case.op)
    assert out is not None, case.op
    result = eager(case)
    outs = list(result) if isinstance(result, (tuple, list)) else [result]
    values = dict(zip((a.name for a in case.op._schema.arguments), case.arguments, strict=False))
    inputs = [a for a in out._schema.arguments if a.alias_info is None or not a.alias_info.is_write]
    arguments = tuple(values.get(a.name, a.default_value) for a in inputs)
    name = ".".join(filter(None, ops.kernel_name(out)))
    return functools.partial(time_kernel, name, (*arguments, *outs)), functools.partial(eager, case)


def eager(case: Case) -> Any:
    positional = [a for a in case.op._schema.arguments if not a.kwarg_only]
    if case.op is aten._to_copy.default:
        return case.op(case.arguments[0], dtype=case.arguments[1])
    return case.op(*case.arguments[: len(positional)])


def reason_for(label: str) -> str:
    """Returns the reason why a case may be slower than the bar, or an empty text."""
    return next((reason for word, reason in REASONS.items() if word in label), "")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench kernels", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="only families or labels that contain one of these"
    )
    names = parser.parse_args(arguments).names
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for case in cases():
        if names and not any(name in f"{case.family} {case.label}" for name in names):
            continue
        ours, theirs = interleaved(*call_of(case), budget=0.03, rounds=15)
        rows.append((ours / theirs, ours, theirs, case))
    rows.sort(key=lambda row: -row[0])
    print(f"{'ours / eager':>12}{'ours us':>10}{'eager us':>10}  {'family':12} case")
    for ratio, ours, theirs, case in rows:
        reason = f"  ({reason_for(case.label)})" if reason_for(case.label) and ratio > BAR else ""
        print(f"{ratio:12.2f}{ours * 1e6:10.1f}{theirs * 1e6:10.1f}  {case.family:12} {case.label}{reason}")
    slow = [case.label for ratio, *_, case in rows if ratio > BAR and not reason_for(case.label)]
    print(
        f"{len(rows)} cases; slower than {BAR:g} times eager without a written reason: {', '.join(slow) or 'none'}"
    )
    return 0
