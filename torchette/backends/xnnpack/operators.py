# SPDX-License-Identifier: BSD-3-Clause
# One entry per operator: why the library cannot run a node of it, or None; and the library's nodes for it. Partitioner
# and preprocess read the same table, so what is claimed is what can be lowered.
"""The operators that XNNPACK runs in float32, and how."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchette.backends.xnnpack.payload import NONE, Payload
from torchette.exir.tensor import upper_bound

aten = torch.ops.aten

MAX_DIMS = 6
_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


class Refused(Exception):
    """Why a node stays outside."""


Check = Callable[[Node, Callable[[Node], bool]], None]
Emit = Callable[["Lowering", Node], None]


@dataclass(frozen=True)
class Operator:
    """`check(node, is_constant)` raises `Refused`; `emit(lowering, node)` adds nodes and sets the node's value."""

    check: Check
    emit: Emit


OPERATORS: dict[Any, Operator] = {}


def _register(*targets: Any, check: Check | None = None) -> Callable[[Emit], Emit]:
    def decorate(emit: Emit) -> Emit:
        for target in targets:
            OPERATORS[target] = Operator(check or (lambda node, is_constant: None), emit)
        return emit

    return decorate


def why_not(node: Node, is_constant: Callable[[Node], bool]) -> str | None:
    """Why the library cannot run a node, None if it can.

    Args:
        is_constant: whether a node is a stored tensor that nothing writes.
    """
    operator = OPERATORS.get(node.target)
    if operator is None:
        return "XNNPACK has no such operator"
    try:
        for value in (node, *node.all_input_nodes):
            _check_value(value.meta.get("val"))
        operator.check(node, is_constant)
    except Refused as reason:
        return str(reason)
    return None


def _check_value(val: Any) -> None:
    for tensor in val if isinstance(val, (list, tuple)) else [val]:
        if not isinstance(tensor, torch.Tensor):
            raise Refused("a symbolic number is no tensor")
        if tensor.dtype is not torch.float32 and not (
            tensor.dtype is torch.int64 and isinstance(val, (list, tuple))
        ):
            raise Refused(f"dtype {str(tensor.dtype).removeprefix('torch.')}")
        if tensor.dim() > MAX_DIMS:
            raise Refused(f"{tensor.dim()} dimensions, the limit is {MAX_DIMS}")
        if 0 in tensor.shape:
            raise Refused("an empty tensor")
        if any(upper_bound(size) is None for size in tensor.shape):
            raise Refused("a dimension without an upper bound")


def _static(node: Node) -> None:
    values = [node.meta["val"], *(source.meta["val"] for source in node.all_input_nodes)]
    for value in values:
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            if any(isinstance(size, torch.SymInt) for size in tensor.shape):
                raise Refused("a dynamic dimension")


def dims_of(tensor: torch.Tensor) -> list[int]:
    """Its greatest shape; the library's scalars have one dimension."""
    return [upper_bound(size) or 0 for size in tensor.shape] or [1]


class Lowering:
    """Builds a payload from a graph. An image may have two values, one in its own order and one in NHWC."""

    def __init__(self, arguments: int, constants: dict[Node, torch.Tensor]) -> None:
        self.payload = Payload(arguments)
        self._constants = constants
        self._plain: dict[Node, int] = {}
        self._nhwc: dict[Node, int] = {}
        self._results: dict[Node, list[int]] = {}  # -> its places among the arguments, not yet given

    def add_input(self, node: Node, argument: int) -> None:
        """A tensor that is given to the delegate."""
        self._plain[node] = self.payload.value(dims_of(node.meta["val"]), argument=argument)

    def add_output(self, node: Node, argument: int) -> None:
        """A tensor that the delegate gives; to be told before the node that computes it is lowered."""
        self._results.setdefault(node, []).append(argument)

    def lower(self, node: Node) -> None:
        """Add the nodes of one call."""
        OPERATORS[node.target].emit(self, node)

    def finish(self) -> bytes:
        """The payload, after every output has got its value."""
        for node in list(self._results):
            source = self.plain(node)  # which may be the first of its places, where it lies in NHWC only
            for argument in self._results.pop(node, ()):
                result = self.payload.value(dims_of(node.meta["val"]), argument=argument, output=True)
                self.add("XNNCopy", node, input_id=source, output_id=result)
        return bytes(self.payload)

    # -- values --

    def add(self, kind: str, node: Node, limits: tuple[float, float] | None = None, **fields: Any) -> None:
        """A node of the library that comes from a node of the graph."""
        self.payload.node(
            kind, node.meta.get("debug_handle", 0), limits, flags=fields.pop("flags", 0), **fields
        )

    def constant(self, node: Node) -> torch.Tensor | None:
        """The stored tensor behind a node."""
        return self._constants.get(node)

    def plain(self, node: Node) -> int:
        """The value of a node in the order of its dimensions."""
        if node in self._plain:
            return self._plain[node]
        stored = self._constants.get(node)
        if stored is not None:
            number = self.payload.constant(stored)
        else:
            number = self._permuted(node, self._nhwc[node], dims_of(node.meta["val"]), _TO_NCHW)
        self._plain[node] = number
        return number

    def image(self, node: Node) -> int:
        """The value of a node of four dimensions in NHWC."""
        if node not in self._nhwc:
            stored = self._constants.get(node)
            if stored is not None:
                self._nhwc[node] = self.payload.constant(stored.permute(_TO_NHWC))
            else:
                dims = dims_of(node.meta["val"])
                self._nhwc[node] = self._permuted(
                    node, self._plain[node], [dims[i] for i in _TO_NHWC], _TO_NHWC
                )
        return self._nhwc[node]

    def is_image(self, node: Node) -> bool:
        """Whether a node's value is there in NHWC, and only so."""
        return node in self._nhwc and node not in self._plain

    def _permuted(self, node: Node, source: int, dims: list[int], order: Sequence[int]) -> int:
        result = self._result_value(node, dims) if order == _TO_NCHW else self.payload.value(dims)
        image = dims if order == _TO_NHWC else [dims[i] for i in _TO_NHWC]
        if image[3] == 1 or image[1] * image[2] == 1:  # moving dimensions of one element moves nothing
            self.reshape_to(node, source, dims, result)
        else:
            self.add(
                "XNNStaticTranspose", node, num_dims=4, perm=list(order), input_id=source, output_id=result
            )
        return result

    def _result_value(self, node: Node, dims: list[int]) -> int:
        """A new value for a node in its own order: an output of the delegate, if it is one."""
        places = self._results.get(node)
        if places:
            argument = places.pop(0)
            if not places:
                del self._results[node]
            return self.payload.value(dims, argument=argument, output=True)
        return self.payload.value(dims)

    def result(self, node: Node) -> int:
        """The value that a node's result shall have, in the order of its dimensions."""
        self._plain[node] = self._result_value(node, dims_of(node.meta["val"]))
        return self._plain[node]

    def image_result(self, node: Node) -> int:
        """The value that a node's result shall have, in NHWC."""
        dims = dims_of(node.meta["val"])
        self._nhwc[node] = self.payload.value([dims[i] for i in _TO_NHWC])
        return self._nhwc[node]

    def scratch(self, dims: Sequence[int]) -> int:
        """A value between two nodes of the library that come from one of the graph."""
        return self.payload.value(dims)

    def alias(self, node: Node, source: Node) -> None:
        """A node that is another one."""
        for values in (self._plain, self._nhwc):
            if source in values:
                values[node] = values[source]
        if source in self._constants:
            self._constants[node] = self._constants[source]

    def reshape_to(self, node: Node, source: int, sizes: Sequence[int], result: int) -> None:
        """The same elements in the same order, between two values; one size may be 0, which the others decide."""
        self.add(
            "XNNStaticReshape",
            node,
            num_dims=len(sizes),
            new_shape=list(sizes),
            input_id=source,
            output_id=result,
        )

    def reshape(self, node: Node, source: Node) -> None:
        """A node with the same elements in the same order."""
        sizes = [0 if isinstance(size, torch.SymInt) else size for size in node.meta["val"].shape] or [1]
        value = self.plain(source)
        self.reshape_to(node, value, sizes, self.result(node))


# ---- element by element ----

_UNARY = {
    aten.abs.default: "XNNAbs", aten.ceil.default: "XNNCeiling", aten.floor.default: "XNNFloor",
    aten.exp.default: "XNNExp", aten.log.default: "XNNLog", aten.neg.default: "XNNNegate",
    aten.rsqrt.default: "XNNReciprocalSquareRoot", aten.sigmoid.default: "XNNSigmoid", aten.sqrt.default: "XNNSquareRoot",
    aten.tanh.default: "XNNTanh", aten.sin.default: "XNNSin", aten.cos.default: "XNNCos",
    aten.hardswish.default: "XNNHardswish",
}  # fmt: skip


def _places(lowering: Lowering, node: Node, *sources: Node) -> tuple[list[int], int]:
    """The values of operands and result of an operator that does not care for the order of dimensions."""
    if any(lowering.is_image(source) for source in sources) and all(
        _fits_image(lowering, source) for source in sources
    ):
        return [_as_image(lowering, source) for source in sources], lowering.image_result(node)
    values = [lowering.plain(source) for source in sources]
    return values, lowering.result(node)


def _fits_image(lowering: Lowering, node: Node) -> bool:
    return node.meta["val"].dim() == 4 or lowering.constant(node) is not None or node.meta["val"].numel() == 1


def _as_image(lowering: Lowering, node: Node) -> int:
    if node.meta["val"].dim() == 4:
        return lowering.image(node)
    stored = lowering.constant(node)
    if stored is None:
        return lowering.plain(node)  # a single element fits everything
    return lowering.payload.constant(
        stored.reshape((1,) * (4 - stored.dim()) + tuple(stored.shape)).permute(_TO_NHWC)
    )


def _unary(kind: str) -> Emit:
    def emit(lowering: Lowering, node: Node) -> None:
        (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
        lowering.add(kind, node, input_id=source, output_id=result)

    return emit


for _target, _kind in _UNARY.items():
    OPERATORS[_target] = Operator(lambda node, is_constant: None, _unary(_kind))


def _not_tanh(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if node.kwargs.get("approximate", "none") != "none":
        raise Refused("gelu by tanh")


OPERATORS[aten.gelu.default] = Operator(_not_tanh, _unary("XNNGelu"))


def _clamped(low: float, high: float) -> Emit:
    def emit(lowering: Lowering, node: Node) -> None:
        (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
        lowering.add("XNNClamp", node, (low, high), input_id=source, output_id=result)

    return emit


OPERATORS[aten.relu.default] = Operator(lambda node, is_constant: None, _clamped(0.0, math.inf))


def _limits(node: Node) -> tuple[float, float]:
    low, high = (*node.args[1:], None, None)[:2]
    if node.target == aten.hardtanh.default:
        low, high = (-1.0 if low is None else low), (1.0 if high is None else high)
    return (-math.inf if low is None else float(low)), (math.inf if high is None else float(high))  # type: ignore[arg-type]


def _has_limits(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if any(isinstance(arg, Node) for arg in node.args[1:]) or node.kwargs:
        raise Refused("a limit is a tensor")
    if _limits(node)[0] >= _limits(node)[1]:
        raise Refused("the limits leave nothing between them")


@_register(aten.clamp.default, aten.hardtanh.default, check=_has_limits)
def _clamp(lowering: Lowering, node: Node) -> None:
    _clamped(*_limits(node))(lowering, node)


def _one_dynamic(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if sum(isinstance(size, torch.SymInt) for size in node.meta["val"].shape) > 1:
        raise Refused("more than one dynamic dimension")


@_register(aten.leaky_relu.default)
def _leaky_relu(lowering: Lowering, node: Node) -> None:
    slope = node.args[1] if len(node.args) > 1 else 0.01
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    lowering.add("XNNLeakyReLU", node, negative_slope=slope, input_id=source, output_id=result)


def _plain_elu(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if tuple(node.args[2:]) not in ((), (1,), (1.0,), (1, 1), (1.0, 1.0)) or node.kwargs:
        raise Refused("elu with scales")


@_register(aten.elu.default, check=_plain_elu)
def _elu(lowering: Lowering, node: Node) -> None:
    alpha = node.args[1] if len(node.args) > 1 else 1.0
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    lowering.add("XNNELU", node, alpha=float(alpha), input_id=source, output_id=result)  # type: ignore[arg-type]


@_register(aten.silu.default)
def _silu(lowering: Lowering, node: Node) -> None:
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    gate = lowering.scratch(dims_of(node.meta["val"]))
    lowering.add("XNNSigmoid", node, input_id=source, output_id=gate)
    lowering.add("XNNMultiply", node, input1_id=source, input2_id=gate, output_id=result)


@_register(aten.hardsigmoid.default)
def _hardsigmoid(lowering: Lowering, node: Node) -> None:
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    shifted = lowering.scratch(dims_of(node.meta["val"]))
    three, sixth = (
        lowering.payload.constant(torch.tensor([3.0])),
        lowering.payload.constant(torch.tensor([1 / 6])),
    )
    lowering.add("XNNAdd", node, (0.0, 6.0), input1_id=source, input2_id=three, output_id=shifted)
    lowering.add("XNNMultiply", node, input1_id=shifted, input2_id=sixth, output_id=result)


_BINARY = {
    aten.add.Tensor: "XNNAdd", aten.sub.Tensor: "XNNSubtract", aten.mul.Tensor: "XNNMultiply",
    aten.div.Tensor: "XNNDiv", aten.maximum.default: "XNNMaximum", aten.minimum.default: "XNNMinimum",
}  # fmt: skip


def _two_tensors(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if not all(isinstance(arg, Node) for arg in node.args[:2]):
        raise Refused("an operand is a number")
    if node.kwargs.get("alpha", 1) != 1:
        raise Refused("alpha is not 1")
    if node.kwargs.get("rounding_mode") is not None:
        raise Refused("rounding")
    if all(is_constant(arg) for arg in node.args[:2]):  # type: ignore[arg-type]
        raise Refused("both operands are constants")


def _binary(kind: str) -> Emit:
    def emit(lowering: Lowering, node: Node) -> None:
        (left, right), result = _places(lowering, node, *node.args[:2])  # type: ignore[arg-type]
        lowering.add(kind, node, input1_id=left, input2_id=right, output_id=result)

    return emit


for _target, _kind in _BINARY.items():
    OPERATORS[_target] = Operator(_two_tensors, _binary(_kind))


def _square_only(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if node.args[1] not in (2, 2.0):
        raise Refused("a power other than 2")


OPERATORS[aten.pow.Tensor_Scalar] = Operator(_square_only, _unary("XNNSquare"))


# ---- products ----


def _weights_known(node: Node, is_constant: Callable[[Node], bool]) -> None:
    for arg in node.args[1:3]:
        if isinstance(arg, Node) and not is_constant(arg):
            raise Refused("the weights are computed")


def _linear_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _weights_known(node, is_constant)
    if node.args[0].meta["val"].dim() < 1 or node.args[1].meta["val"].dim() != 2:  # type: ignore[union-attr]
        raise Refused("weights without two dimensions")


@_register(aten.linear.default, check=_linear_check)
def _linear(lowering: Lowering, node: Node) -> None:
    weight, bias = node.args[1], node.args[2] if len(node.args) > 2 else None
    lowering.add(
        "XNNFullyConnected",
        node,
        input1_id=lowering.plain(node.args[0]),  # type: ignore[arg-type]
        filter_id=lowering.plain(weight),  # type: ignore[arg-type]
        bias_id=NONE if bias is None else lowering.plain(bias),  # type: ignore[arg-type]
        output_id=lowering.result(node),
    )


def _addmm_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    bias, _, weight = node.args[:3]
    if not is_constant(bias) or not is_constant(weight):  # type: ignore[arg-type]
        raise Refused("the weights are computed")
    if bias.meta["val"].dim() != 1 or node.kwargs.get("beta", 1) != 1 or node.kwargs.get("alpha", 1) != 1:  # type: ignore[union-attr]
        raise Refused("no plain linear layer")


@_register(aten.addmm.default, check=_addmm_check)
def _addmm(lowering: Lowering, node: Node) -> None:
    bias, source, weight = node.args[:3]
    stored = lowering.constant(weight)  # type: ignore[arg-type]
    assert stored is not None
    lowering.add(
        "XNNFullyConnected",
        node,
        input1_id=lowering.plain(source),  # type: ignore[arg-type]
        filter_id=lowering.payload.constant(stored.t()),
        bias_id=lowering.plain(bias),  # type: ignore[arg-type]
        output_id=lowering.result(node),
    )


def _not_both_known(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if any(is_constant(arg) for arg in node.args[:2]):  # type: ignore[arg-type]
        raise Refused("a factor is a constant")


@_register(aten.bmm.default, aten.mm.default, check=_not_both_known)
def _bmm(lowering: Lowering, node: Node) -> None:
    left, right = (lowering.plain(arg) for arg in node.args[:2])  # type: ignore[arg-type]
    lowering.add(
        "XNNBatchMatrixMultiply", node, input1_id=left, input2_id=right, output_id=lowering.result(node)
    )


def _pair(value: Any) -> tuple[int, int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return (values * 2)[0], (values * 2)[1]


def _convolution_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _static(node)
    _weights_known(node, is_constant)
    weight = node.args[1].meta["val"]  # type: ignore[union-attr]
    transposed, output_padding, groups = node.args[6:9]
    if weight.dim() != 4 or node.args[0].meta["val"].dim() != 4:  # type: ignore[union-attr]
        raise Refused("a convolution of one or three dimensions")
    if transposed and groups != 1:
        raise Refused("a transposed convolution in groups")
    if transposed and any(p >= s for p, s in zip(_pair(output_padding), _pair(node.args[3]), strict=True)):
        raise Refused("output padding beyond the stride")


@_register(aten.convolution.default, check=_convolution_check)
def _convolution(lowering: Lowering, node: Node) -> None:
    source, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    stored = lowering.constant(weight)  # type: ignore[arg-type]
    assert stored is not None and isinstance(groups, int)
    channels_in = source.meta["val"].shape[1]  # type: ignore[union-attr]
    channels_out = node.meta["val"].shape[1]
    (top, left), (stride_h, stride_w), (dilation_h, dilation_w) = (
        _pair(padding),
        _pair(stride),
        _pair(dilation),
    )
    adjust_h, adjust_w = _pair(output_padding) if transposed else (0, 0)
    depthwise = not transposed and groups == channels_in and groups > 1
    if transposed:
        kind, filter_ = "XNNConvTranspose2d", stored.permute(1, 2, 3, 0)
    elif depthwise:
        # one channel a group: height and width first, then all channels
        kind, filter_ = "XNNDepthwiseConv2d", stored.permute(1, 2, 3, 0)
    else:
        kind, filter_ = "XNNConv2d", stored.permute(_TO_NHWC)
    image = lowering.image(source)  # type: ignore[arg-type]
    lowering.add(
        kind,
        node,
        padding_top=top,
        padding_right=left,
        padding_bottom=top,
        padding_left=left,
        kernel_height=stored.shape[2],
        kernel_width=stored.shape[3],
        subsampling_height=stride_h,
        subsampling_width=stride_w,
        dilation_height=dilation_h,
        dilation_width=dilation_w,
        group_input_channels=channels_in // groups,
        group_output_channels=channels_out // groups,
        groups=groups,
        adjustment_height=adjust_h,
        adjustment_width=adjust_w,
        input1_id=image,
        filter_id=lowering.payload.constant(filter_),
        bias_id=NONE if bias is None else lowering.plain(bias),  # type: ignore[arg-type]
        output_id=lowering.image_result(node),
    )


# ---- pools, means, softmax ----


def _pool_numbers(
    node: Node,
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int], bool]:
    """kernel, stride, padding, dilation, and whether the last window may begin in the padding."""
    kernel = _pair(node.args[1])
    stride = _pair(node.args[2]) if len(node.args) > 2 and node.args[2] else kernel
    padding = _pair(node.args[3]) if len(node.args) > 3 else (0, 0)
    if node.target == aten.avg_pool2d.default:
        return kernel, stride, padding, (1, 1), bool(node.args[4]) if len(node.args) > 4 else False
    dilation = _pair(node.args[4]) if len(node.args) > 4 else (1, 1)
    return kernel, stride, padding, dilation, bool(node.args[5]) if len(node.args) > 5 else False


def _pool_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _static(node)
    kernel, _, padding, _, ceil = _pool_numbers(node)
    if node.args[0].meta["val"].dim() != 4:  # type: ignore[union-attr]
        raise Refused("a pool of an image without a batch")
    if ceil:
        raise Refused("ceil_mode")
    if kernel == (1, 1):
        raise Refused("a pool of one element")
    if node.target == aten.avg_pool2d.default:
        counts = node.args[5] if len(node.args) > 5 else True
        if any(padding) and counts:
            raise Refused("padding counts in the average")
        if len(node.args) > 6 and node.args[6] is not None:
            raise Refused("a divisor of its own")
    elif any(user.args[1] != 0 for user in node.users):
        raise Refused("the places of the maxima are used")


@_register(aten.avg_pool2d.default, aten.max_pool2d_with_indices.default, check=_pool_check)
def _pool(lowering: Lowering, node: Node) -> None:
    kernel, stride, padding, dilation, _ = _pool_numbers(node)
    image = lowering.image(node.args[0])  # type: ignore[arg-type]
    average = node.target == aten.avg_pool2d.default
    # The values of a maximum pool are a part of its result, its places another one.
    holder, *others = (node,) if average else tuple(node.users)
    lowering.add(
        "XNNAvgPooling2d" if average else "XNNMaxPooling2d",
        node,
        padding_top=padding[0],
        padding_right=padding[1],
        padding_bottom=padding[0],
        padding_left=padding[1],
        pooling_height=kernel[0],
        pooling_width=kernel[1],
        stride_height=stride[0],
        stride_width=stride[1],
        dilation_height=dilation[0],
        dilation_width=dilation[1],
        input_id=image,
        output_id=lowering.image_result(holder),
    )
    for other in others:
        lowering.alias(other, holder)


def _row_mean(lowering: Lowering, node: Node, value: int, rows: int, inner: int) -> int:
    """The mean of each row: the library's mean is that of an image, here of one channel."""
    image, pooled = lowering.scratch([rows, inner, 1, 1]), lowering.scratch([rows, 1, 1, 1])
    lowering.reshape_to(node, value, [rows, inner, 1, 1], image)
    lowering.add("XNNGlobalAvgPooling2d", node, input_id=image, output_id=pooled)
    column = lowering.scratch([rows, 1])
    lowering.reshape_to(node, pooled, [rows, 1], column)
    return column


def _mean_dims(node: Node) -> list[int]:
    rank = node.args[0].meta["val"].dim()  # type: ignore[union-attr]
    given = node.args[1] if len(node.args) > 1 and node.args[1] is not None else range(rank)
    return sorted(dim % rank for dim in given)  # type: ignore[union-attr]


def _mean_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _static(node)
    rank, dims = node.args[0].meta["val"].dim(), _mean_dims(node)  # type: ignore[union-attr]
    if node.kwargs.get("dtype") not in (None, torch.float32):
        raise Refused("another dtype for the sum")
    if not (rank == 4 and dims == [2, 3]) and dims != list(range(rank - len(dims), rank)):
        raise Refused("a mean of other dimensions than the last ones")


@_register(aten.mean.dim, check=_mean_check)
def _mean(lowering: Lowering, node: Node) -> None:
    source = node.args[0]
    dims = dims_of(source.meta["val"])  # type: ignore[union-attr]
    if len(dims) == 4 and _mean_dims(node) == [2, 3] and lowering.is_image(source):  # type: ignore[arg-type]
        value = lowering.scratch([dims[0], 1, 1, dims[1]])
        image = lowering.image(source)  # type: ignore[arg-type]
        lowering.add("XNNGlobalAvgPooling2d", node, input_id=image, output_id=value)
    else:
        inner = math.prod(dims[len(dims) - len(_mean_dims(node)) :])
        value = _row_mean(lowering, node, lowering.plain(source), math.prod(dims) // inner, inner)  # type: ignore[arg-type]
    shape = dims_of(node.meta["val"])
    lowering.reshape_to(node, value, shape, lowering.result(node))


def _layer_norm_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _static(node)
    if any(isinstance(arg, Node) and not is_constant(arg) for arg in node.args[2:4]):
        raise Refused("the weights are computed")
    if any(user.args[1] != 0 for user in node.users):
        raise Refused("mean or deviation are used")


@_register(aten.native_layer_norm.default, check=_layer_norm_check)
def _layer_norm(lowering: Lowering, node: Node) -> None:
    source, normalized, weight, bias, epsilon = node.args
    shape = dims_of(source.meta["val"])  # type: ignore[union-attr]
    inner = math.prod(normalized)  # type: ignore[arg-type]
    rows = math.prod(shape) // inner
    payload = lowering.payload

    def step(kind: str, left: int, right: int, dims: list[int]) -> int:
        result = lowering.scratch(dims)
        lowering.add(kind, node, input1_id=left, input2_id=right, output_id=result)
        return result

    value = lowering.scratch([rows, inner])
    lowering.reshape_to(node, lowering.plain(source), [rows, inner], value)  # type: ignore[arg-type]
    mean = _row_mean(lowering, node, value, rows, inner)
    centred = step("XNNSubtract", value, mean, [rows, inner])
    squares = lowering.scratch([rows, inner])
    lowering.add("XNNSquare", node, input_id=centred, output_id=squares)
    variance = _row_mean(lowering, node, squares, rows, inner)
    shifted = step("XNNAdd", variance, payload.constant(torch.tensor([float(epsilon)])), [rows, 1])  # type: ignore[arg-type]
    scale = lowering.scratch([rows, 1])
    lowering.add("XNNReciprocalSquareRoot", node, input_id=shifted, output_id=scale)
    value = step("XNNMultiply", centred, scale, [rows, inner])
    for kind, operand in (("XNNMultiply", weight), ("XNNAdd", bias)):
        stored = lowering.constant(operand) if isinstance(operand, Node) else None
        if stored is not None:
            value = step(kind, value, payload.constant(stored.reshape(1, inner)), [rows, inner])
    holder, *others = node.users
    lowering.reshape_to(node, value, shape, lowering.result(holder))
    for other in others:
        lowering.alias(other, holder)


def _last_dim(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if node.args[1] not in (-1, node.meta["val"].dim() - 1) or node.meta["val"].dim() == 0:
        raise Refused("a softmax of another dimension than the last")


@_register(aten._softmax.default, check=_last_dim)
def _softmax(lowering: Lowering, node: Node) -> None:
    value = lowering.plain(node.args[0])  # type: ignore[arg-type]
    lowering.add("XNNSoftmax", node, input_id=value, output_id=lowering.result(node))


# ---- shapes ----


@_register(
    aten.view_copy.default, aten.unsqueeze_copy.default, aten.squeeze_copy.dim, aten.squeeze_copy.dims,
    check=_one_dynamic,
)  # fmt: skip
def _reshape(lowering: Lowering, node: Node) -> None:
    lowering.reshape(node, node.args[0])  # type: ignore[arg-type]


def _is_noop(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if node.kwargs.get("memory_format") not in (None, torch.contiguous_format, torch.preserve_format):
        raise Refused("another order of dimensions")


@_register(aten.clone.default, check=_is_noop)
def _clone(lowering: Lowering, node: Node) -> None:
    lowering.alias(node, node.args[0])  # type: ignore[arg-type]


@_register(aten.permute_copy.default)
def _permute(lowering: Lowering, node: Node) -> None:
    rank = node.meta["val"].dim()
    value = lowering.plain(node.args[0])  # type: ignore[arg-type]
    order = [dim % rank for dim in node.args[1]]  # type: ignore[union-attr]
    lowering.add(
        "XNNStaticTranspose", node, num_dims=rank, perm=order, input_id=value, output_id=lowering.result(node)
    )


def _slice_numbers(node: Node) -> tuple[int, int, int]:
    """dimension, first element, elements"""
    before = node.args[0].meta["val"].shape  # type: ignore[union-attr]
    dim = (node.args[1] if len(node.args) > 1 else 0) % len(before)  # type: ignore[operator]
    if node.target == aten.select_copy.int:
        index = node.args[2]
        return dim, index % before[dim], 1  # type: ignore[operator]
    start = node.args[2] if len(node.args) > 2 and node.args[2] is not None else 0
    start = min(max(start + before[dim] if start < 0 else start, 0), before[dim])  # type: ignore[operator]
    return dim, start, node.meta["val"].shape[dim]


def _slice_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _static(node)
    if node.target == aten.slice_copy.Tensor and len(node.args) > 4 and node.args[4] != 1:
        raise Refused("a slice with steps")
    if any(isinstance(arg, Node) for arg in node.args[1:]):
        raise Refused("a computed place")


@_register(aten.slice_copy.Tensor, aten.select_copy.int, check=_slice_check)
def _slice(lowering: Lowering, node: Node) -> None:
    dims = dims_of(node.args[0].meta["val"])  # type: ignore[union-attr]
    dim, start, count = _slice_numbers(node)
    offsets, sizes = [0] * len(dims), list(dims)
    offsets[dim], sizes[dim] = start, count
    value = lowering.plain(node.args[0])  # type: ignore[arg-type]
    selects = node.target == aten.select_copy.int
    part = lowering.scratch(sizes) if selects else lowering.result(node)
    lowering.add(
        "XNNStaticSlice",
        node,
        num_dims=len(dims),
        offsets=offsets,
        sizes=sizes,
        input_id=value,
        output_id=part,
    )
    if selects:
        shape = dims_of(node.meta["val"])
        lowering.reshape_to(node, part, shape, lowering.result(node))


def _cat_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if not 2 <= len(node.args[0]) <= 5:  # type: ignore[arg-type]
        raise Refused("a concatenation of fewer than 2 or more than 5")
    if any(tensor.meta["val"].dim() != node.meta["val"].dim() for tensor in node.args[0]):  # type: ignore[union-attr]
        raise Refused("a concatenation with an empty tensor")


@_register(aten.cat.default, check=_cat_check)
def _cat(lowering: Lowering, node: Node) -> None:
    sources = node.args[0]
    dim = (node.args[1] if len(node.args) > 1 else 0) % node.meta["val"].dim()  # type: ignore[operator]
    values, result = _places(lowering, node, *sources)  # type: ignore[misc]
    if node in lowering._nhwc:
        dim = _TO_NHWC.index(dim)
    names = ("input1_id", "input2_id", "input3_id", "input4_id", "input5_id")
    lowering.add(
        f"XNNConcatenate{len(values)}",
        node,
        axis=dim,
        output_id=result,
        limits=None,
        **dict(zip(names, values, strict=False)),
    )


def _pad_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _static(node)
    if any(amount < 0 for amount in node.args[1]):  # type: ignore[union-attr]
        raise Refused("a pad that cuts")


@_register(aten.constant_pad_nd.default, check=_pad_check)
def _pad(lowering: Lowering, node: Node) -> None:
    rank, amounts = node.meta["val"].dim(), list(node.args[1])  # type: ignore[arg-type]
    before, after = [0] * rank, [0] * rank
    for i in range(len(amounts) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = amounts[2 * i], amounts[2 * i + 1]
    (value,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    if node in lowering._nhwc:
        before, after = [before[i] for i in _TO_NHWC], [after[i] for i in _TO_NHWC]
    lowering.add(
        "XNNStaticConstantPad",
        node,
        pre_paddings=before,
        post_paddings=after,
        padding_value=float(node.args[2]) if len(node.args) > 2 else 0.0,  # type: ignore[arg-type]
        input_id=value,
        output_id=result,
    )
