# SPDX-License-Identifier: BSD-3-Clause
# One entry per operator: why the library cannot run a node of it, or None; and the library's nodes for it. Partitioner
# and preprocess read the same table, so what is claimed is what can be lowered.
"""The operators that XNNPACK runs, and how.

Quantized graphs keep their operators in floating point, between nodes that dequantize and quantize. Where the library
has an operator on integers, those nodes and the operator become one of its nodes (`Lowering._integer_form`); elsewhere
they become conversions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchette.backends.xnnpack.payload import DYNAMIC, FLOATS, FP32, NONE, Element, Payload
from torchette.backends.xnnpack.quantization import (
    int8_element,
    role,
    rows_source,
    weights_of,
)
from torchette.exir.graph import map_nodes
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


def why_not(node: Node, constants: Mapping[Node, torch.Tensor]) -> str | None:
    """Why the library cannot run a node, None if it can.

    Args:
        constants: nodes of stored tensors that nothing writes.
    """
    try:
        if role(node) is not None:
            _check_quantized(node, constants)
            return None
        operator = OPERATORS.get(node.target)
        if operator is None:
            return "XNNPACK has no such operator"
        dtypes: set[torch.dtype] = set()
        for value in (node, *node.all_input_nodes):
            dtypes |= _check_value(value.meta.get("val"))
        if len(dtypes) > 1 and node.target != aten._to_copy.default:
            raise Refused("float16 and float32 in one operator")
        operator.check(node, lambda source: source in constants or weights_of(source, constants) is not None)
    except Refused as reason:
        return str(reason)
    return None


def _check_value(val: Any) -> set[torch.dtype]:
    """Raises Refused; gives the floating-point types."""
    found = set()
    for tensor in val if isinstance(val, (list, tuple)) else [val]:
        if not isinstance(tensor, torch.Tensor):
            raise Refused("a symbolic number is no tensor")
        if tensor.dtype in FLOATS:
            found.add(tensor.dtype)
        elif not (tensor.dtype is torch.int64 and isinstance(val, (list, tuple))):
            raise Refused(f"dtype {str(tensor.dtype).removeprefix('torch.')}")
        _check_shape(tensor)
    return found


def _check_shape(tensor: torch.Tensor) -> None:
    if tensor.dim() > MAX_DIMS:
        raise Refused(f"{tensor.dim()} dimensions, the limit is {MAX_DIMS}")
    if 0 in tensor.shape:
        raise Refused("an empty tensor")
    if any(upper_bound(size) is None for size in tensor.shape):
        raise Refused("a dimension without an upper bound")


def _check_quantized(node: Node, constants: Mapping[Node, torch.Tensor]) -> None:
    kind = role(node)
    if kind == "weights" or (kind == "dequantize" and node.args[0] in constants):
        if weights_of(node, constants) is None and kind == "weights":
            raise Refused("weights that are quantized in a way that the library does not have")
        for user in node.users:
            reason = "it is a result" if user.op == "output" else why_not(user, constants)
            if reason is not None:
                raise Refused(f"it is for {user.target}: {reason}")
        return
    if kind in ("quantize", "dequantize"):
        whole, real = (node, node.args[0]) if kind == "quantize" else (node.args[0], node)
        if real.meta["val"].dtype not in FLOATS or int8_element(whole) is None:  # type: ignore[union-attr, arg-type]
            raise Refused("not between float and int8 from -128 to 127, or with several scales")
        _check_shape(real.meta["val"])  # type: ignore[union-attr]
        return
    if kind == "choose":
        readers = {user for part in node.users for user in part.users if role(user) == "dequantize rows"}
    else:
        readers = set(node.users) if kind == "quantize rows" else {node}
    sources = [rows_source(reader, constants) for reader in readers]
    if not sources or None in sources:
        raise Refused(
            "its numbers are chosen at run time, and for more than linear layers that the library has"
        )
    _check_shape(sources[0].meta["val"])  # type: ignore[union-attr]


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
        self._done: set[Node] = set()  # lowered together with an earlier one
        # While one node is lowered: what stands for it and its sources, and what its results are clamped to.
        self._stands_for: dict[Node, Node] = {}
        self._limits: tuple[float, float] | None = None
        self._element = FP32

    def add_input(self, node: Node, argument: int) -> None:
        """A tensor that is given to the delegate."""
        dims = dims_of(node.meta["val"])
        self._plain[node] = self.payload.value(dims, self.element(node), argument=argument)

    def add_output(self, node: Node, argument: int) -> None:
        """A tensor that the delegate gives; to be told before the node that computes it is lowered."""
        self._results.setdefault(node, []).append(argument)

    def lower(self, node: Node) -> None:
        """Add the nodes of one call."""
        if node in self._done:
            return
        kind = role(node)
        if kind == "quantize":
            (source,), result = _places(self, node, node.args[0])  # type: ignore[arg-type]
            self.add("XNNConvert", node, input_id=source, output_id=result)
        elif kind == "quantize rows":
            source = self.plain(node.args[0])  # type: ignore[arg-type]
            self._plain[node] = self.payload.value(dims_of(node.meta["val"]), DYNAMIC)
            self.add("XNNConvert", node, input_id=source, output_id=self._plain[node])
        elif kind == "dequantize rows":
            self._plain[node] = self._plain[node.args[0]]  # type: ignore[index]
        elif kind is None:
            self._stands_for, self._limits = self._integer_form(node) or ({}, None)
            self._element = self.element(node)
            OPERATORS[node.target].emit(self, node)
            self._stands_for, self._limits = {}, None

    def _integer_form(self, node: Node) -> tuple[dict[Node, Node], tuple[float, float] | None] | None:
        """Where the library has this operator on integers: the integers for it and for its sources, and the limits of a
        clamp that is taken in; the nodes after it that this covers are done."""
        if node.target not in _SAME_SCALE and node.target not in _ANY_SCALE:
            return None
        holder, covered, limits = node, [], None
        if node.target == aten.max_pool2d_with_indices.default:
            holder = _only_user(node)  # type: ignore[assignment]
        result = _only_user(holder) if holder is not None else None
        if result is not None and node.target in _CLAMPED and result.target in _CLAMPS:
            limits, covered = _limits(result), [result]
            result = _only_user(result)
        if role(result) != "quantize":
            return None
        assert result is not None
        element = int8_element(result)
        sources = {}
        weighted = node.target in (aten.convolution.default, aten.linear.default)
        for source in node.all_input_nodes[:1] if weighted else node.all_input_nodes:
            if role(source) != "dequantize":
                return None
            sources[source] = source.args[0]
        if weighted:
            weights = weights_of(node.args[1], self._constants)
            if weights is None or weights.scales.dim() != 1:
                return None
            transposed = node.target == aten.convolution.default and node.args[6]
            if weights.scales.numel() > 1 and weights.axis != int(bool(transposed)):
                return None
        elements = [self.element(source) for source in sources.values()]  # type: ignore[arg-type]
        if node.target in _SAME_SCALE and any(other != element for other in elements):
            return None
        if node.target == aten.mean.dim and (node.args[0].meta["val"].dim(), _mean_dims(node)) != (4, [2, 3]):  # type: ignore[union-attr]
            return None
        for low, high in [limits] if limits else [_limits(node)] if node.target in _CLAMPS else []:
            least, most = (max(-128, min(127, round(x / element.scale + element.zero_point) if abs(x) < 1e30 else math.copysign(128, x))) for x in (low, high))  # type: ignore[union-attr]  # fmt: skip
            if least >= most:
                return None
        self._done |= {*covered, result}
        return {**sources, node: result, holder: result}, limits  # type: ignore[dict-item]

    def finish(self) -> bytes:
        """The payload, after every output has got its value."""
        for node in list(self._results):
            source = self.plain(node)  # which may be the first of its places, where it lies in NHWC only
            for argument in self._results.pop(node, ()):
                dims = dims_of(node.meta["val"])
                result = self.payload.value(dims, self.element(node), argument=argument, output=True)
                self.add("XNNCopy", node, input_id=source, output_id=result)
        return bytes(self.payload)

    # -- values --

    def add(self, kind: str, node: Node, limits: tuple[float, float] | None = None, **fields: Any) -> None:
        """A node of the library that comes from a node of the graph."""
        handle = node.meta.get("debug_handle", 0)
        self.payload.node(kind, handle, limits or self._limits, flags=fields.pop("flags", 0), **fields)

    def element(self, node: Node) -> Element:
        """The type of a node's value."""
        node = self._stands_for.get(node, node)
        val = node.meta["val"]
        val = val[0] if isinstance(val, (list, tuple)) else val
        element = FLOATS.get(val.dtype) or int8_element(node)
        assert element is not None, f"{node}: checked before"
        return element

    def constant(self, node: Node) -> torch.Tensor | None:
        """The stored tensor behind a node, or the one that it dequantizes."""
        node = self._stands_for.get(node, node)
        if node not in self._constants and role(node) in ("weights", "dequantize"):
            sources = [node.args[0], *(arg for arg in node.all_input_nodes if arg is not node.args[0])]
            if all(source in self._constants for source in sources):
                args, kwargs = map_nodes((node.args, dict(node.kwargs)), self._constants.__getitem__)
                self._constants[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return self._constants.get(node)

    @property
    def is_integer(self) -> bool:
        """Whether the node that is being lowered becomes one on integers."""
        return bool(self._stands_for)

    def compute_in(self, element: Element) -> None:
        """The type of what is between nodes of the library from here on, until the next node of the graph."""
        self._element = element

    def number(self, value: float) -> int:
        """A single element of the type of the node that is being lowered."""
        dtype = torch.float16 if self._element.type == "fp16" else torch.float32
        return self.payload.constant(torch.tensor([value], dtype=dtype))

    def weights(self, node: Node, source: Node, axis: int = 0, order: Sequence[int] = (0, 1)) -> int:
        """Stored weights in another order of dimensions, for what they are multiplied with.

        Args:
            axis: where the outputs are in that order.
        """

        def arrange(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.permute(tuple(order))

        stored = weights_of(node, self._constants)
        whole = stored is not None and (
            self.is_integer
            or (stored.fit_rows() and (role(source) == "dequantize rows" or stored.scales.dim() == 1))
        )
        if stored is None or not whole or self._element.type == "fp16":
            tensor = self.constant(node)
            assert tensor is not None
            return self.payload.constant(arrange(tensor))
        outputs = stored.data.shape[stored.axis]
        if not self.is_integer:
            scales = stored.scales.expand(outputs) if stored.scales.numel() == 1 else stored.scales
            if stored.bits == 4:
                return self.payload.four_bits(arrange(stored.data), scales)
            return self.payload.channelwise(arrange(stored.data), scales, axis)
        if stored.scales.numel() == 1 and outputs != 1:
            return self.payload.constant(arrange(stored.data), Element("qint8", stored.scales.item()))
        return self.payload.channelwise(arrange(stored.data), stored.scales, axis)

    def bias(self, node: Any, source: Node, weight: Node) -> int:
        """What a product adds; between integers it has the scales of the sum."""
        if node is None:
            return NONE
        tensor = self.constant(node)
        assert tensor is not None
        if not self.is_integer:
            return self.payload.constant(tensor)
        stored = weights_of(weight, self._constants)
        assert stored is not None
        scales = stored.scales * self.element(source).scale
        whole = torch.round(tensor.double() / scales.double()).clamp(-(2**31), 2**31 - 1).to(torch.int32)
        if scales.numel() == 1 and stored.data.shape[stored.axis] != 1:
            return self.payload.constant(whole, Element("qint32", scales.item()))
        return self.payload.channelwise(whole, scales, 0)

    def plain(self, node: Node) -> int:
        """The value of a node in the order of its dimensions."""
        node = self._stands_for.get(node, node)
        if node in self._plain:
            return self._plain[node]
        stored = self.constant(node)
        dims = dims_of(node.meta["val"])
        if stored is not None:
            number = self.payload.constant(stored, self.element(node))
        elif node in self._nhwc:
            number = self._permuted(node, self._nhwc[node], dims, _TO_NCHW)
        else:
            number = self._dequantized(node, self.plain(node.args[0]), self._result_value(node, dims))  # type: ignore[arg-type]
        self._plain[node] = number
        return number

    def image(self, node: Node) -> int:
        """The value of a node of four dimensions in NHWC."""
        node = self._stands_for.get(node, node)
        if node not in self._nhwc:
            stored = self.constant(node)
            dims = [dims_of(node.meta["val"])[i] for i in _TO_NHWC]
            if stored is not None:
                number = self.payload.constant(stored.permute(_TO_NHWC), self.element(node))
            elif node not in self._plain and self.is_image(node):
                value = self.payload.value(dims, self.element(node))
                number = self._dequantized(node, self.image(node.args[0]), value)  # type: ignore[arg-type]
            else:
                number = self._permuted(node, self.plain(node), dims, _TO_NHWC)
            self._nhwc[node] = number
        return self._nhwc[node]

    def is_image(self, node: Node) -> bool:
        """Whether a node's value is there in NHWC, and only so."""
        node = self._stands_for.get(node, node)
        if node in self._plain or node in self._nhwc:
            return node not in self._plain
        return role(node) == "dequantize" and self.is_image(node.args[0])  # type: ignore[arg-type]

    def _dequantized(self, node: Node, source: int, result: int) -> int:
        self.payload.node(
            "XNNConvert", node.meta.get("debug_handle", 0), input_id=source, output_id=result, flags=0
        )
        return result

    def _permuted(self, node: Node, source: int, dims: list[int], order: Sequence[int]) -> int:
        result = (
            self._result_value(node, dims)
            if order == _TO_NCHW
            else self.payload.value(dims, self.element(node))
        )
        image = dims if order == _TO_NHWC else [dims[i] for i in _TO_NHWC]
        if image[3] == 1 or image[1] * image[2] == 1:  # moving dimensions of one element moves nothing
            self.reshape_to(node, source, dims, result)
        else:
            self.payload.node(
                "XNNStaticTranspose",
                node.meta.get("debug_handle", 0),
                num_dims=4,
                perm=list(order),
                input_id=source,
                output_id=result,
                flags=0,
            )
        return result

    def _result_value(self, node: Node, dims: list[int]) -> int:
        """A new value for a node in its own order: an output of the delegate, if it is one."""
        places = self._results.get(node)
        if places:
            argument = places.pop(0)
            if not places:
                del self._results[node]
            return self.payload.value(dims, self.element(node), argument=argument, output=True)
        return self.payload.value(dims, self.element(node))

    def result(self, node: Node) -> int:
        """The value that a node's result shall have, in the order of its dimensions."""
        node = self._stands_for.get(node, node)
        self._plain[node] = self._result_value(node, dims_of(node.meta["val"]))
        return self._plain[node]

    def image_result(self, node: Node) -> int:
        """The value that a node's result shall have, in NHWC."""
        node = self._stands_for.get(node, node)
        dims = dims_of(node.meta["val"])
        self._nhwc[node] = self.payload.value([dims[i] for i in _TO_NHWC], self.element(node))
        return self._nhwc[node]

    def scratch(self, dims: Sequence[int], element: Element | None = None) -> int:
        """A value between two nodes of the library that come from one of the graph."""
        return self.payload.value(dims, element or self._element)

    def alias(self, node: Node, source: Node) -> None:
        """A node that is another one."""
        node, source = (self._stands_for.get(one, one) for one in (node, source))
        if source not in self._plain and source not in self._nhwc and source not in self._constants:
            self.plain(source)  # dequantized by now
        for values in (self._plain, self._nhwc):
            if source in values:
                values[node] = values[source]
        if source in self._constants:
            self._constants[node] = self._constants[source]

    def reshape_to(self, node: Node, source: int, sizes: Sequence[int], result: int) -> None:
        """The same elements in the same order, between two values; one size may be 0, which the others decide."""
        self.payload.node(
            "XNNStaticReshape",
            node.meta.get("debug_handle", 0),
            num_dims=len(sizes),
            new_shape=list(sizes),
            input_id=source,
            output_id=result,
            flags=0,
        )

    def reshape(self, node: Node, source: Node) -> None:
        """A node with the same elements in the same order."""
        sizes = [0 if isinstance(size, torch.SymInt) else size for size in node.meta["val"].shape] or [1]
        value = self.plain(source)
        self.reshape_to(node, value, sizes, self.result(node))


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


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
    image = stored.reshape((1,) * (4 - stored.dim()) + tuple(stored.shape)).permute(_TO_NHWC)
    return lowering.payload.constant(image, lowering.element(node))


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
    if node.target == aten.relu.default:
        return 0.0, math.inf
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
    three, sixth = lowering.number(3.0), lowering.number(1 / 6)
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


# Operators that the library has on integers too: where source and result have one scale, and with any.
_SAME_SCALE = {
    aten.max_pool2d_with_indices.default, aten.cat.default, aten.relu.default, aten.hardtanh.default, aten.clamp.default,
    aten.view_copy.default, aten.unsqueeze_copy.default, aten.squeeze_copy.dim, aten.squeeze_copy.dims, aten.clone.default,
    aten.permute_copy.default, aten.slice_copy.Tensor, aten.select_copy.int, aten.constant_pad_nd.default,
}  # fmt: skip
_ANY_SCALE = {
    aten.convolution.default, aten.linear.default, aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.mean.dim,
    aten.leaky_relu.default, aten.elu.default, *_UNARY,
}  # fmt: skip
_CLAMPS = {aten.relu.default, aten.hardtanh.default, aten.clamp.default}
# Those that can clamp their results.
_CLAMPED = {aten.convolution.default, aten.linear.default, aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor}


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
    source, weight, bias = (*node.args, None)[:3]
    lowering.add(
        "XNNFullyConnected",
        node,
        input1_id=lowering.plain(source),  # type: ignore[arg-type]
        filter_id=lowering.weights(weight, source),  # type: ignore[arg-type]
        bias_id=lowering.bias(bias, source, weight),  # type: ignore[arg-type]
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
    shape = weight.meta["val"].shape  # type: ignore[union-attr]
    assert isinstance(groups, int)
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
        kind, order, outputs = "XNNConvTranspose2d", (1, 2, 3, 0), 0
    elif depthwise:
        # one channel a group: height and width first, then all channels
        kind, order, outputs = "XNNDepthwiseConv2d", (1, 2, 3, 0), 3
    else:
        kind, order, outputs = "XNNConv2d", _TO_NHWC, 0
    image = lowering.image(source)  # type: ignore[arg-type]
    lowering.add(
        kind,
        node,
        padding_top=top,
        padding_right=left,
        padding_bottom=top,
        padding_left=left,
        kernel_height=shape[2],
        kernel_width=shape[3],
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
        filter_id=lowering.weights(weight, source, outputs, order),  # type: ignore[arg-type]
        bias_id=lowering.bias(bias, source, weight),  # type: ignore[arg-type]
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
    if len(dims) == 4 and _mean_dims(node) == [2, 3] and (lowering.is_image(source) or lowering.is_integer):  # type: ignore[arg-type]
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

    given = lowering.plain(source)  # type: ignore[arg-type]
    is_half = lowering.element(source) != FP32  # type: ignore[arg-type]
    if is_half:  # the squares would leave its range
        half, given = given, lowering.scratch(shape, FP32)
        lowering.add("XNNConvert", node, input_id=half, output_id=given)
    lowering.compute_in(FP32)
    value = lowering.scratch([rows, inner])
    lowering.reshape_to(node, given, [rows, inner], value)
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
            value = step(kind, value, payload.constant(stored.reshape(1, inner).float()), [rows, inner])
    holder, *others = node.users
    if is_half:
        whole = lowering.scratch(shape)
        lowering.reshape_to(node, value, shape, whole)
        lowering.add("XNNConvert", node, input_id=whole, output_id=lowering.result(holder))
    else:
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


def _between_floats(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if node.kwargs.get("memory_format") not in (None, torch.contiguous_format, torch.preserve_format):
        raise Refused("another order of dimensions")
    if node.meta["val"].dtype == node.args[0].meta["val"].dtype:  # type: ignore[union-attr]
        raise Refused("a copy")


@_register(aten._to_copy.default, check=_between_floats)
def _to_copy(lowering: Lowering, node: Node) -> None:
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    lowering.add("XNNConvert", node, input_id=source, output_id=result)


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
    if lowering.is_image(node):
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
    if lowering.is_image(node):
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
