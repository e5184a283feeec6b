# SPDX-License-Identifier: BSD-3-Clause
"""Calls of every operator that the XNNPACK partitioner claims, with each of its optional arguments.

A case defines the arguments. `test_xnnpack_generated.py` runs each case in float32, float16 and integers, with stored and computed
weights, for several batch sizes. `CASES` has the same keys as the backend's table of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from torchette.backends.xnnpack.payload import SCHEMA
from torchette.exir.program import EdgeProgramManager
from torchette.format import flatbuffer
from torchette.runtime import Runtime

# Whether this build has XNNPACK's library. Otherwise our kernels compute, in float32.
HAS_LIBRARY = Runtime.get().backend_registry.get_option("XnnpackBackend", "library")
of_the_library = pytest.mark.skipif(
    not HAS_LIBRARY, reason="this build has no XNNPACK library: ./dev xnnpack"
)
aten = torch.ops.aten
N = -1  # the batch size, which varies


def payload_of(edge: EdgeProgramManager) -> Any:
    """Returns the XNNPACK graph in the payload of the only delegate."""
    (module,) = (c for c in edge.exported_program().graph_module.children() if hasattr(c, "processed_bytes"))
    at = int.from_bytes(module.processed_bytes[10:14], "little")
    return flatbuffer.decode(SCHEMA, module.processed_bytes[at:])


def kinds_of(edge: EdgeProgramManager) -> list[str]:
    """Returns the kinds of the nodes of this graph."""
    return [type(node.xnode_union).__name__ for node in payload_of(edge).xnodes]


@dataclass(frozen=True)
class Case:
    """One call of an operator.

    Attributes:
        text: describes the case.
        call: the function of the inputs and then the weights.
        shapes: shapes of the inputs; `N` is the batch size.
        weights: shapes of stored weights, each with the dimension of its outputs (None: not quantized).
        refused: a part of the reason why the backend refuses the case; None if it must claim the case.
        values: the special values among the inputs. "any": all, if each result depends on one element of each input. "few": one
            special value in each sample, if a result depends on several elements. "moderate": like "any", without values
            that overflow in a step, in eager or here.
        quantized: whether the case also runs on integers.
        halves: whether the operator supports float16.
    """

    text: str
    call: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...] = ((N, 3, 5, 7),)
    weights: tuple[tuple[tuple[int, ...], int | None], ...] = ()
    refused: str | None = None
    values: str = "any"
    quantized: bool = True
    halves: bool = True


def _unary(call: Callable[[Tensor], Tensor], *more: Case) -> list[Case]:
    return [
        Case("an image", call),
        Case("a row", call, ((N, 37),)),
        Case("one number", call, ((N,),)),
        Case("six dimensions", call, ((N, 1, 2, 1, 3, 2),)),
        *more,
    ]


def _unquantized(cases: Iterable[Case]) -> list[Case]:
    """Cases with NaN results for random inputs: torch does not define the quantized value of NaN."""
    return [replace(case, quantized=False) for case in cases]


def _moderate(cases: Iterable[Case]) -> list[Case]:
    return [replace(case, values="moderate") for case in cases]


def _each(calls: dict[str, Callable[[Tensor], Tensor]], refused: dict[str, str] | None = None) -> list[Case]:
    return [
        *(Case(text, call) for text, call in calls.items()),
        *(Case(text, calls[text], ((N, 19),), refused=reason) for text, reason in (refused or {}).items()),
    ]


def _binary(call: Callable[[Tensor, Tensor], Tensor], *more: Case) -> list[Case]:
    image = (N, 3, 5, 7)
    return [
        Case("same shape", call, (image, image)),
        Case("row", call, (image, (7,))),
        Case("column", call, ((N, 3, 5, 1), image)),
        Case("channels", call, (image, (1, 3, 1, 1))),
        Case("each broadcast", call, ((N, 1, 5), (3, 1))),
        Case("one element", call, ((N, 9), (1,))),
        Case("itself", lambda x: call(x, x), (image,)),
        Case("stored right", call, (image,), (((3, 1, 1), None),)),
        Case("stored left", lambda x, y: call(y, x), (image,), (((5, 7), None),)),
        Case("a number", lambda x: call(x, torch.tensor(1.5, dtype=x.dtype)), (image,)),
        *more,
    ]


def _neutral(call: Callable[[Tensor, float], Tensor], number: float) -> Case:
    return Case("changes nothing", lambda x: call(x, number) * 2)


def _linear_cases() -> list[Case]:
    def case(text: str, rows: tuple[int, ...], inner: int, outer: int, bias: bool, **more: Any) -> Case:
        weights = (((outer, inner), 0), *([((outer,), None)] if bias else []))
        call = more.pop("call", F.linear)
        return Case(text, call, ((*rows, inner),), weights, values="few", **more)

    return [
        case("plain", (N,), 32, 5, False),
        case("bias", (N,), 32, 5, True),
        case("bias and relu", (N,), 32, 5, True, call=lambda x, w, b: F.linear(x, w, b).relu()),
        case("relu6", (N, 3), 32, 33, False, call=lambda x, w: F.relu6(F.linear(x, w))),
        case("three dimensions", (N, 3), 64, 35, True),
        case("one output", (N,), 32, 1, True),
        case("one input", (N,), 1, 3, True),
        case("odd input", (N, 2), 33, 4, True),
    ]


def _addmm_cases() -> list[Case]:
    shapes, weights = ((N, 9),), (((5,), None), ((9, 5), 1))
    return [
        Case("plain", lambda x, b, w: torch.addmm(b, x, w), shapes, weights, values="few"),
        Case("relu", lambda x, b, w: torch.addmm(b, x, w).relu(), shapes, weights, values="few"),
        Case("one output", lambda x, b, w: torch.addmm(b, x, w), shapes, (((1,), None), ((9, 1), 1)), values="few"),
    ]  # fmt: skip


def _product_cases(call: Callable[[Tensor, Tensor], Tensor], left: tuple, right: tuple) -> list[Case]:
    swapped = (*right[:-2], right[-1], right[-2])
    return [
        Case("two inputs", call, (left, right), values="few"),
        Case("transposed", lambda x, y: call(x, y.transpose(-1, -2)), (left, swapped), values="few"),
    ]


def _conv(
    text: str,
    inner: int,
    outer: int,
    kernel: tuple[int, ...],
    *,
    bias: bool = True,
    then: Callable = lambda x: x,
    transposed: bool = False,
    refused: str | None = None,
    size: tuple[int, ...] | None = None,
    **options: Any,
) -> Case:
    rank, groups = len(kernel), options.get("groups", 1)
    name = f"conv{'_transpose' if transposed else ''}{rank}d"
    shape = (inner, outer // groups, *kernel) if transposed else (outer, inner // groups, *kernel)
    weights = ((shape, int(transposed)), *([((outer,), None)] if bias else []))

    def call(x: Tensor, weight: Tensor, *added: Tensor) -> Tensor:
        return then(getattr(F, name)(x, weight, *(added or (None,)), **options))

    size = size or (9, 11, 5)[:rank]
    return Case(text, call, ((N, inner, *size),), weights, refused, "few")


def _convolution_cases() -> list[Case]:
    return [
        _conv("3x3", 3, 8, (3, 3)),
        _conv("no bias", 3, 8, (3, 3), bias=False),
        _conv("relu", 3, 8, (3, 3), padding=1, then=F.relu),
        _conv("relu6", 3, 8, (3, 3), padding=1, then=F.relu6),
        _conv("a clamp without 0", 3, 8, (3, 3), then=lambda x: x.clamp(0.25, 1.5)),
        _conv("pixels", 3, 8, (1, 1)),
        _conv("a pixel", 3, 8, (1, 1), size=(1, 1)),
        _conv("strides and padding", 3, 4, (3, 2), stride=(2, 3), padding=(1, 0)),
        _conv("padding to the same", 3, 4, (3, 3), padding="same"),
        _conv("dilated", 3, 4, (3, 2), dilation=(2, 3), padding=(2, 1)),
        _conv("groups", 4, 6, (3, 3), groups=2),
        _conv("depthwise", 4, 4, (3, 3), groups=4, padding=1, then=F.relu),
        _conv("depthwise, no bias", 4, 4, (5, 5), groups=4, bias=False),
        _conv("depthwise, two each", 3, 6, (3, 3), groups=3, stride=2),
        _conv("one channel", 1, 3, (3, 3)),
        _conv("to one channel", 3, 1, (3, 3)),
        _conv("one to one", 1, 1, (2, 2)),
        _conv("sequence", 3, 5, (3,), padding=1),
        _conv("sequence, strides", 4, 4, (3,), stride=2, dilation=2, groups=4),
        _conv("transposed", 3, 4, (3, 3), transposed=True),
        _conv("transposed, one to three", 1, 3, (3, 3), transposed=True),
        _conv("transposed, three to one", 3, 1, (2, 2), transposed=True, bias=False),
        _conv("transposed, all", 3, 4, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), transposed=True, then=F.relu),
        _conv("transposed, dilated", 3, 4, (3, 3), dilation=2, transposed=True),
        _conv("transposed sequence", 3, 4, (3,), stride=2, output_padding=1, transposed=True),
        _conv("transposed in groups", 4, 4, (3, 3), groups=2, transposed=True),
        _conv("three dimensions", 2, 3, (2, 2, 2), refused="three spatial dimensions"),
    ]  # fmt: skip


def _pools(name: str) -> list[Case]:
    call = getattr(F, name)
    shape = ((N, 3, 9, 11),)

    def case(text: str, *args: Any, refused: str | None = None, **options: Any) -> Case:
        return Case(
            text,
            lambda x: call(x, *args, **options),
            shape,
            refused=refused,
            values="few",
        )

    cases = [
        case("2x2", 2), case("3x2, stride", (3, 2), (2, 2) if name == "max_pool2d" else (2, 3)), case("padding", 3, 2, 1),
        case("stride 1", 3, 1), case("ceil", 3, 2, 1, ceil_mode=True), case("long", (1, 11)), case("one pixel", 1, refused="a window of one element"),
        Case("no batch", lambda x: call(x, 2), ((3, 9, 11),), refused="without a batch", values="few"),
    ]  # fmt: skip
    if name == "max_pool2d":
        return [
            *cases,
            case("dilated", 2, 1, 1, 2),
            case("dilated, ceil", (2, 3), 2, (1, 1), (3, 2), ceil_mode=True),
            case("leaves out", 2, 3, refused="the stride of a maximum pool is greater than its window"),
        ]
    return [
        *cases,
        case("leaves out", 2, 3),
        case("padding that does not count", 3, 2, 1, count_include_pad=False),
        case("ceil, padding that does not count", (3, 2), (2, 3), 1, ceil_mode=True, count_include_pad=False),
        case("another divisor", 3, 2, 1, divisor_override=5),
    ]


def _reductions(name: str) -> list[Case]:
    def case(text: str, shape: tuple[int, ...], *args: Any, **options: Any) -> Case:
        more = {"refused": options.pop("refused", None)}
        return Case(text, lambda x: getattr(x, name)(*args, **options), (shape,), values="few", **more)

    image = (N, 3, 5, 7)
    return [
        case("last", image, -1), case("last, kept", image, -1, True), case("height and width", image, (2, 3)),
        case("height and width, kept", image, (-1, -2), True), case("channels", image, 1), case("first and last", image, (1, -1), True),
        case("all but the batch", image, (1, 2, 3)), case("rows", (N, 9), 1), case("all", (3, 5)), case("the first", (3, 5, 2), 0),
        case("apart", (4, 3, 5, 2, 3), (0, 2, -1)),
    ]  # fmt: skip


def _maxima(name: str) -> list[Case]:
    def case(text: str, shape: tuple[int, ...], *args: Any, refused: str | None = None) -> Case:
        def call(x: Tensor) -> Any:
            result = getattr(x, name)(*args)
            return result if isinstance(result, Tensor) or refused else result.values

        return Case(text, call, (shape,), refused=refused, values="few")

    image = (N, 3, 5, 7)
    cases = [
        case("last", image, -1), case("height, kept", image, 2, True), case("channels", image, 1), case("rows", (N, 9), 1),
        case("the first", (3, 5, 2), 0), case("one", (N, 1, 4), 1),
    ]  # fmt: skip
    if name == "max":
        return [*cases, case("places", image, 1, refused="another node reads the indices of the maxima")]
    return [*cases, case("height and width", image, (2, 3)), case("apart", (4, 3, 5, 2, 3), (0, 2, -1))]


def _layer_norms() -> list[Case]:
    def case(text: str, shape: tuple[int, ...], inner: tuple[int, ...], affine: int = 2) -> Case:
        def call(x: Tensor, *parameters: Tensor) -> Tensor:
            weight, bias = (*parameters, None, None)[:2]
            return F.layer_norm(x, inner, weight, bias)

        return Case(text, call, (shape,), ((inner, None),) * affine, values="few")

    return [
        case("rows", (N, 9), (9,)), case("no weights", (N, 3, 9), (9,), 0), case("no bias", (N, 3, 9), (9,), 1),
        case("two dimensions", (N, 3, 4, 5), (4, 5)), case("three", (N, 3, 4, 5), (3, 4, 5), 0),
    ]  # fmt: skip


def _group_norms() -> list[Case]:
    def case(text: str, shape: tuple[int, ...], groups: int, affine: int = 2) -> Case:
        def call(x: Tensor, *parameters: Tensor) -> Tensor:
            weight, bias = (*parameters, None, None)[:2]
            return F.group_norm(x, groups, weight, bias)

        return Case(text, call, (shape,), (((shape[1],), None),) * affine, values="few")

    return [
        case("groups", (N, 6, 3, 4), 3), case("one group", (N, 4, 5), 1), case("each", (N, 4, 5), 4, 0), case("rows", (N, 6), 2),
        case("no bias", (N, 6, 3, 4), 2, 1),
    ]  # fmt: skip


def _batch_norms() -> list[Case]:
    def case(text: str, shape: tuple[int, ...], affine: int = 2, **more: Any) -> Case:
        channels = shape[1]
        mean, variance = torch.linspace(-1, 1, channels), torch.linspace(0.5, 2, channels)

        def call(x: Tensor, *parameters: Tensor) -> Tensor:
            weight, bias = (*parameters, None, None)[:2]
            return F.batch_norm(x, mean.to(x.dtype), variance.to(x.dtype), weight, bias)

        return Case(text, call, (shape,), (((channels,), None),) * affine, values="few", **more)

    return [
        case("image", (N, 4, 3, 5)), case("sequence", (N, 3, 5)), case("rows", (N, 6)), case("no weights", (N, 3, 2, 2), 0),
        case("five dimensions", (N, 3, 2, 2, 2), refused="fewer than 2 or more than 4 dimensions"),
    ]  # fmt: skip


def _resizes(mode: str, *more: dict[str, Any]) -> list[Case]:
    options: list[dict[str, Any]] = [
        {"size": (10, 14)}, {"size": (3, 19)}, {"scale_factor": 2.0}, {"scale_factor": (1.5, 0.6)},
        {"scale_factor": 1.7, "recompute_scale_factor": True}, {"size": (1, 1)}, *more,
    ]  # fmt: skip
    return [
        Case(
            f"{size_args}", lambda x, size_args=size_args: F.interpolate(x, mode=mode, **size_args), ((N, 3, 5, 7),),
            values="few",
        )
        for size_args in options
    ]  # fmt: skip


def _shape_cases(calls: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Any]]]) -> list[Case]:
    # A view alone is not delegated, so each case also multiplies.
    return [Case(text, call, (shape,)) for text, (shape, call) in calls.items()]


def _resampled(size: tuple[int, int]) -> Case:
    return Case(f"{size}", lambda x: F.adaptive_avg_pool2d(x, size), ((N, 3, 9, 8),), values="few")


_IMAGE = (N, 3, 5, 7)

CASES: dict[Any, list[Case]] = {
    **{
        getattr(aten, name).default: _unary(getattr(torch, name))
        for name in (
            "abs", "ceil", "floor", "exp", "neg", "sigmoid", "tanh", "sin", "cos", "reciprocal",
        )
    },
    **{getattr(aten, name).default: _unquantized(_unary(getattr(torch, name))) for name in ("log", "rsqrt", "sqrt")},
    **{
        getattr(aten, name).default: _unary(getattr(F, name))
        for name in ("relu", "selu", "mish", "silu", "hardsigmoid")
    },
    aten.hardswish.default: _moderate(_unary(F.hardswish)),
    aten.gelu.default: _moderate(_each({"exact": F.gelu, "tanh": lambda x: F.gelu(x, approximate="tanh")})),
    aten.clamp.default: [
        *_each({
            "both": lambda x: x.clamp(-0.5, 0.25), "least": lambda x: x.clamp(min=-0.5), "most": lambda x: x.clamp(max=0.5),
            "least above 0": lambda x: x.clamp(min=0.1), "above 0": lambda x: x.clamp(0.1, 2), "below 0": lambda x: x.clamp(-2, -0.1),
            "from 0": lambda x: x.clamp(0, 2), "to 0": lambda x: x.clamp(-2, 0), "wide": lambda x: x.clamp(-3e4, 3e4),
        }),
        Case("nothing between", lambda x: x.clamp(0.5, 0.5), refused="the minimum is not less than the maximum"),
    ],
    aten.hardtanh.default: _each({
        "plain": F.hardtanh, "limits": lambda x: F.hardtanh(x, -2, 0.5), "relu6": F.relu6,
        "above 0": lambda x: F.hardtanh(x, 0.25, 0.5),
    }),
    aten.leaky_relu.default: _each({
        "plain": F.leaky_relu, **{f"{slope}": lambda x, slope=slope: F.leaky_relu(x, slope) for slope in (0.3, 0.0, -0.5, 2.0, 1e-3)},
    }),
    aten.prelu.default: [
        Case("one", F.prelu, (_IMAGE,), (((1,), None),)), Case("each", F.prelu, (_IMAGE,), (((3,), None),)),
        Case("rows", F.prelu, ((N, 3),), (((3,), None),)), Case("sequence", F.prelu, ((N, 3, 5),), (((3,), None),)),
    ],
    aten.elu.default: _each({"plain": F.elu, "0.6": lambda x: F.elu(x, 0.6), "2": lambda x: F.elu(x, 2.0), "negative": lambda x: F.elu(x, -0.5)}),
    aten.celu.default: _moderate(_each({"plain": F.celu, "0.6": lambda x: F.celu(x, 0.6), "2": lambda x: F.celu(x, 2.0)})),
    aten.softplus.default: _moderate(_each({
        "plain": F.softplus, "beta": lambda x: F.softplus(x, 2.0), "small beta": lambda x: F.softplus(x, 0.3),
        "threshold": lambda x: F.softplus(x, 1.0, 30.0), "cut off early": lambda x: F.softplus(x, 1.0, 5.0),
    })),
    aten.add.Tensor: _binary(
        torch.add, _neutral(torch.add, 0.0),
        Case("alpha", lambda x, y: torch.add(x, y, alpha=2), (_IMAGE, _IMAGE), refused="alpha is not 1"),
    ),
    aten.sub.Tensor: _binary(
        torch.sub, _neutral(torch.sub, 0.0),
        Case("alpha", lambda x, y: torch.sub(x, y, alpha=2), (_IMAGE, _IMAGE), refused="alpha is not 1"),
    ),
    aten.mul.Tensor: _binary(torch.mul, _neutral(torch.mul, 1.0)),
    aten.div.Tensor: _unquantized(_binary(torch.div, _neutral(torch.div, 1.0))),
    aten.maximum.default: _binary(torch.maximum),
    aten.minimum.default: _binary(torch.minimum),
    aten.pow.Tensor_Scalar: [
        *(Case(f"{power}", lambda x, power=power: x**power) for power in (2, 3, 2.0)),
        *_unquantized(Case(f"{power}", lambda x, power=power: x**power) for power in (0.5, -0.5, -1)),
        Case("of 1.7", lambda x: x**1.7, refused="an exponent other than"),
    ],
    aten.linear.default: _linear_cases(),
    aten.addmm.default: _addmm_cases(),
    aten.mm.default: [
        Case("stored", torch.mm, ((N, 9),), (((9, 5), 1),), values="few"), *_product_cases(torch.mm, (N, 9), (9, 5)),
    ],
    aten.bmm.default: [
        Case("stored", torch.bmm, ((3, 4, 9),), (((3, 9, 5), None),), values="few"),
        *_product_cases(torch.bmm, (N, 4, 9), (N, 9, 5)),
    ],
    aten.matmul.default: [
        Case("stored", torch.matmul, ((N, 3, 9),), (((9, 5), 1),), values="few"),
        *_product_cases(torch.matmul, (N, 3, 4, 9), (3, 9, 5)),
        *_product_cases(torch.matmul, (N, 3, 4, 9), (9, 5)),
        *_product_cases(torch.matmul, (N, 1, 4, 9), (1, 3, 9, 1)),
    ],
    aten.convolution.default: _convolution_cases(),
    aten.avg_pool2d.default: _pools("avg_pool2d"),
    aten.max_pool2d_with_indices.default: _pools("max_pool2d"),
    aten.mean.dim: _reductions("mean"),
    aten.sum.dim_IntList: _reductions("sum"),
    aten.amax.default: _maxima("amax"),
    aten.max.dim: _maxima("max"),
    aten.native_layer_norm.default: _layer_norms(),
    aten.native_group_norm.default: _group_norms(),
    aten._native_batch_norm_legit_no_training.default: _batch_norms(),
    aten._softmax.default: [
        Case("rows", lambda x: x.softmax(1), ((N, 9),), values="few"), Case("first", lambda x: x.softmax(0), ((4, 9),), values="few"),
    ] + [
        Case(f"{dim}", lambda x, dim=dim: x.softmax(dim), ((N, 3, 5),), values="few") for dim in (-1, 2, 1, -2)
    ],
    aten.view_copy.default: _shape_cases({
        "flat": (_IMAGE, lambda x: x.flatten(1) * 2), "apart": ((N, 12), lambda x: x.reshape(-1, 3, 2, 2) * 2),
        "over the batch": ((N, 4, 3), lambda x: x.reshape(-1, 3) * 2), "six": ((N, 12), lambda x: x.view(-1, 1, 2, 3, 1, 2) * 2),
    }),
    aten.unsqueeze_copy.default: _shape_cases({f"{dim}": ((N, 3, 5), lambda x, dim=dim: x.unsqueeze(dim) * 2) for dim in (0, 1, -1, -2, 3)}),
    aten.squeeze_copy.dim: _shape_cases({f"{dim}": ((N, 1, 5, 1), lambda x, dim=dim: aten.squeeze.dim(x, dim) * 2) for dim in (1, -1, 2)}),
    aten.squeeze_copy.dims: _shape_cases({f"{dims}": ((N, 1, 5, 1), lambda x, dims=dims: x.squeeze(dims) * 2) for dims in ((1, 3), (-1,), (-1, 1, 2))}),
    aten.expand_copy.default: _shape_cases({
        "channels": ((N, 1, 5), lambda x: x.expand(-1, 3, -1) * 2), "more dimensions": ((N, 5), lambda x: x.expand(3, -1, 5) * 2),
        "pixels": ((N, 3, 1, 1), lambda x: x.expand(-1, 3, 4, 5) * 2), "as it is": ((N, 3), lambda x: x.expand(-1, 3) * 2),
    }),
    aten._adaptive_avg_pool2d.default: [_resampled(size) for size in ((3, 4), (1, 1), (2, 8), (9, 8), (4, 16))],
    aten.upsample_bicubic2d.default: _resizes("bicubic", {"size": (3, 9), "align_corners": True}),
    aten._upsample_bilinear2d_aa.default: [
        Case(f"{size_args}", lambda x, size_args=size_args: F.interpolate(x, mode="bilinear", antialias=True, **size_args), (_IMAGE,), values="few", halves=False)
        for size_args in ({"size": (3, 4)}, {"size": (10, 2)}, {"scale_factor": 0.6}, {"size": (9, 9)})
    ],
    aten._upsample_bicubic2d_aa.default: [
        Case(f"{size_args}", lambda x, size_args=size_args: F.interpolate(x, mode="bicubic", antialias=True, **size_args), (_IMAGE,), values="few", halves=False)
        for size_args in ({"size": (3, 4)}, {"size": (10, 2)}, {"scale_factor": 0.6}, {"size": (9, 9)})
    ],
    aten._upsample_nearest_exact2d.default: _resizes("nearest-exact"),
    aten.upsample_bilinear2d.vec: _resizes("bilinear", {"size": (3, 9), "align_corners": True}, {"scale_factor": 2.0, "align_corners": True}),
    aten.upsample_nearest2d.vec: _resizes("nearest"),
    aten.clone.default: _each({"plain": lambda x: x.clone() * 2}),
    aten.as_strided_copy.default: [Case("as it is", lambda x: x.as_strided((2, 6), (6, 1)) * 2, ((2, 6),)), Case("in another shape", lambda x: x.as_strided((4, 3), (3, 1)) * 2, ((2, 6),)), Case("across", lambda x: x.as_strided((6, 2), (1, 6)) * 2, ((2, 6),), refused="strides")],
    aten._to_copy.default: [
        Case("half and back", lambda x: (x.to(torch.float16) * 2).to(torch.float32), quantized=False, halves=False),
        Case("to half", lambda x: x.to(torch.float16), quantized=False, halves=False),
    ],
    aten.permute_copy.default: _shape_cases({
        f"{order}": (_IMAGE, lambda x, order=order: x.permute(order) * 2) for order in ((0, 2, 3, 1), (3, 0, 2, 1), (-1, -2, 0, 1), (0, 1, 3, 2))
    }),
    aten.slice_copy.Tensor: _shape_cases({
        "middle": (_IMAGE, lambda x: x[:, :, 1:3] * 2), "from behind": (_IMAGE, lambda x: x[..., -3:-1] * 2), "one": (_IMAGE, lambda x: x[:, 1:2] * 2),
        "steps": (_IMAGE, lambda x: x[:, ::2] * 2), "steps of 3": (_IMAGE, lambda x: x[..., 1::3] * 2), "all": (_IMAGE, lambda x: aten.slice.Tensor(x, 1, 0, 99) * 2),
        "of the first": ((6, 5), lambda x: x[2:] * 2), "beyond": ((N, 6), lambda x: x[:, -99:4] * 2),
    }),
    aten.select_copy.int: _shape_cases({
        "channel": (_IMAGE, lambda x: x[:, 1] * 2), "last": (_IMAGE, lambda x: x[..., -1] * 2), "first": ((3, 5), lambda x: x[0] * 2),
        "row": (_IMAGE, lambda x: x.select(-2, -5) * 2), "of one": ((N, 1), lambda x: x[:, 0] * 2),
    }),
    aten.split_with_sizes_copy.default: _shape_cases({
        "channels": (_IMAGE, lambda x: x.split([1, 2], 1)), "last": (_IMAGE, lambda x: x.split([3, 2, 2], -1)), "one": (_IMAGE, lambda x: x.split([5], 2)[0] * 2),
        "the first": ((4, 3), lambda x: x.split([3, 1])), "empty": ((N, 4), lambda x: x.split([0, 3, 1], 1)[1:]),
    }),
    aten.index.Tensor: _shape_cases({
        f"{dim}": ((4, 3, 5), lambda x, dim=dim, places=places: x[(slice(None),) * dim + (torch.tensor(places),)] * 2)
        for dim, places in ((0, [3, 0, 1]), (1, [-1, 0, 0]), (2, [1, 2, 3, 0]), (1, [1]))
    }),
    aten.cat.default: _shape_cases({
        "channels": (_IMAGE, lambda x: torch.cat([x, x * 2], 1)), "last of three": (_IMAGE, lambda x: torch.cat([x, x * 2, x[..., :2]], -1)),
        "four": (_IMAGE, lambda x: torch.cat([x] * 4, 2)), "five": ((N, 3), lambda x: torch.cat([x] * 5, 1)), "eleven": ((N, 3), lambda x: torch.cat([x] * 11, -1)),
        "one": ((N, 3), lambda x: torch.cat([x], 0) * 2), "the first": ((2, 3), lambda x: torch.cat([x, x * 2])),
    }),
    aten.constant_pad_nd.default: [Case("that cuts", lambda x: F.pad(x, (-1, 1)), refused="a negative padding"), *_shape_cases({
        "columns": (_IMAGE, lambda x: F.pad(x, (1, 2))), "rows too": (_IMAGE, lambda x: F.pad(x, (0, 2, 3, 0), value=0.5)), "channels": (_IMAGE, lambda x: F.pad(x, (0, 0, 0, 0, 1, 2), value=-1.0)),
        "of infinity": ((N, 5), lambda x: F.pad(x, (1, 1), value=float("-inf"))), "nothing": (_IMAGE, lambda x: F.pad(x, (0, 0, 0, 0)) * 2),
    })],
}  # fmt: skip
