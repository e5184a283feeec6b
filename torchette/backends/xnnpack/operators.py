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

from torchette.backends.xnnpack.payload import DYNAMIC, FLOATS, FP16, FP32, NONE, Element, Payload
from torchette.backends.xnnpack.quantization import (
    Weights,
    int8_element,
    role,
    rows_source,
    weights_of,
)
from torchette.exir.delegation.delegate import NamedDataStoreOutput
from torchette.exir.graph import is_dense, map_nodes, same_size
from torchette.exir.tensor import upper_bound

aten = torch.ops.aten

MAX_DIMS = 6
_TRANSPOSE_B, _TRANSPOSE_WEIGHTS, _ALIGN_CORNERS = 1, 1, 8  # flags of the library
_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
_IMAGES = (3, 4)  # dimensions of what may lie in NHWC; a sequence is an image of height 1


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
        # Places are no values of the library's: they are known ahead of time.
        read = node.all_input_nodes[:1] if node.target in _PLACED else node.all_input_nodes
        for value in (node, *read):
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
        if isinstance(val, (list, tuple)) and 0 in tensor.shape:
            continue  # what a batch norm would keep for training
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


def _static_channels(node: Node) -> None:
    """An image whose batch, height and width may vary."""
    for value in (node, node.args[0]):
        val = value.meta["val"]  # type: ignore[union-attr]
        val = val[0] if isinstance(val, (list, tuple)) else val
        if val.dim() > 1 and isinstance(val.shape[1], torch.SymInt):
            raise Refused("a dynamic number of channels")
        if val.dim() == 3 and any(isinstance(size, torch.SymInt) for size in val.shape):
            raise Refused("a sequence with a dynamic dimension")


def dims_of(tensor: torch.Tensor) -> list[int]:
    """Its greatest shape; the library's scalars have one dimension."""
    return [upper_bound(size) or 0 for size in tensor.shape] or [1]


def sizes_of(tensor: torch.Tensor) -> list[int]:
    """Its shape for a node that reshapes: 0 where it varies."""
    return [0 if isinstance(size, torch.SymInt) else size for size in tensor.shape] or [1]


def _image_dims(dims: Sequence[int]) -> list[int]:
    """Dimensions of an image, or of a sequence, in NHWC."""
    batch, channels, *size = dims
    return [batch, *([1] if len(size) == 1 else []), *size, channels]


def _image_axis(dim: int, rank: int) -> int:
    """Where a dimension of an image, or of a sequence, is in NHWC."""
    return (0, 3, 2)[dim] if rank == 3 else _TO_NHWC.index(dim)


def _image_tensor(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """A stored tensor that is broadcast to `rank` dimensions, in NHWC."""
    tensor = tensor.reshape((1,) * (rank - tensor.dim()) + tuple(tensor.shape))
    return (tensor.unsqueeze(2) if rank == 3 else tensor).permute(_TO_NHWC)


class Lowering:
    """Builds a payload from a graph. An image may have two values, one in its own order and one in NHWC."""

    def __init__(
        self, arguments: int, constants: dict[Node, torch.Tensor], external_tag: str | None = None
    ) -> None:
        self.payload = Payload(arguments, external_tag)
        self._constants = constants
        self._plain: dict[Node, int] = {}
        self._nhwc: dict[Node, int] = {}
        self._results: dict[Node, list[int]] = {}  # -> its places among the arguments, not yet given
        self._done: set[Node] = set()  # lowered together with an earlier one
        self._transposed: set[Node] = set()
        self._joined: dict[tuple, Node] = {}  # sources and dimension -> their concatenation
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
        if node.target == aten.mean.dim and (node.args[0].meta["val"].dim(), _reduced(node)) != (4, [2, 3]):  # type: ignore[union-attr]
            return None
        for low, high in [limits] if limits else [_limits(node)] if node.target in _CLAMPS else []:
            least, most = (max(-128, min(127, round(x / element.scale + element.zero_point) if abs(x) < 1e30 else math.copysign(128, x))) for x in (low, high))  # type: ignore[union-attr]  # fmt: skip
            if least >= most:
                return None
        self._done |= {*covered, result}
        return {**sources, node: result, holder: result}, limits  # type: ignore[dict-item]

    def finish(self) -> tuple[bytes, NamedDataStoreOutput]:
        """The payload and its constants, after every output has got its value."""
        for node in list(self._results):
            source = self.plain(node)  # which may be the first of its places, where it lies in NHWC only
            for argument in self._results.pop(node, ()):
                dims = dims_of(node.meta["val"])
                result = self.payload.value(dims, self.element(node), argument=argument, output=True)
                self.add("XNNCopy", node, input_id=source, output_id=result)
        return self.payload.finish()

    def joined(self, node: Node, sources: list[Node], dim: int) -> list[Node]:
        """What a concatenation joins; the longest beginning that an earlier one has joined is one of them."""
        if self.is_integer:  # each has its own scale
            return sources
        self._joined[tuple(sources), dim] = node
        for count in range(len(sources) - 1, 1, -1) if len(sources) > _MOST_JOINED else ():
            if earlier := self._joined.get((tuple(sources[:count]), dim)):
                return [earlier, *sources[count:]]
        return sources

    # -- values --

    def add(self, kind: str, node: Node, limits: tuple[float, float] | None = None, **fields: Any) -> None:
        """A node of the library that comes from a node of the graph."""
        handle = node.meta.get("debug_handle", 0)
        self.payload.node(kind, handle, limits or self._limits, flags=fields.pop("flags", 0), **fields)

    def binary(self, kind: str, node: Node, left: int, right: int, result: int) -> None:
        """A node of the library with two operands."""
        self.add(kind, node, input1_id=left, input2_id=right, output_id=result)

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

    def leave_transposed(self, node: Node) -> None:
        """What reads a node transposes its source itself."""
        self._transposed.add(node)

    def is_transposed(self, node: Node) -> bool:
        """Whether a node is there only as its source, to be transposed."""
        return node in self._transposed

    def is_result(self, node: Node) -> bool:
        """Whether the delegate gives a node's value."""
        return node in self._results

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
        """Stored weights in another order of dimensions, for what they are multiplied with; computed ones as they are.

        Args:
            axis: where the outputs are in that order.
        """

        def arrange(tensor: torch.Tensor) -> torch.Tensor:
            tensor = tensor.unsqueeze(-2) if tensor.dim() == 3 else tensor
            return tensor.permute(tuple(order))

        stored = weights_of(node, self._constants)
        if stored is None or not self._are_whole(stored, source):
            tensor = self.constant(node)
            return self.plain(node) if tensor is None else self.payload.constant(arrange(tensor))
        arranged = arrange(stored.data)
        outputs = arranged.shape[axis]
        if not self.is_integer:
            scales = stored.scales.expand(outputs) if stored.scales.numel() == 1 else stored.scales
            if stored.bits == 4:
                return self.payload.four_bits(arranged, scales)
            return self.payload.channelwise(arranged, scales, axis)
        if stored.scales.numel() == 1 and outputs != 1:
            return self.payload.constant(arranged, Element("qint8", stored.scales.item()))
        return self.payload.channelwise(arranged, stored.scales, axis)

    def _are_whole(self, weights: Weights, source: Node) -> bool:
        """Whether the library gets stored weights as whole numbers, for what they are multiplied with."""
        by_rows = role(source) == "dequantize rows"
        fit = self.is_integer or (weights.fit_rows() and (by_rows or weights.scales.dim() == 1))
        return fit and self._element.type != "fp16"

    def scales_what_is_added(self, source: Node, weight: Node) -> bool:
        """Whether a linear layer's source is in floating point and its weights are whole numbers."""
        stored = weights_of(weight, self._constants)
        if stored is None or self.is_integer or role(source) == "dequantize rows":
            return False
        return self._are_whole(stored, source)

    def bias(self, node: Any, source: Node, weight: Node) -> int:
        """What a product adds; between integers it has the scales of the sum."""
        if node is None:
            return NONE
        tensor = self.constant(node)
        if tensor is None:
            return self.plain(node)
        if not self.is_integer:
            return self.payload.constant(tensor)
        stored = weights_of(weight, self._constants)
        assert stored is not None
        scales = stored.scales * self.element(source).scale
        whole = torch.round(tensor.double() / scales.double()).clamp(-(2**31), 2**31 - 1).to(torch.int32)
        if scales.numel() == 1 and whole.numel() != 1:  # one scale for several outputs
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
        """The value of a node of four dimensions (or three, which get a height of 1) in NHWC."""
        node = self._stands_for.get(node, node)
        if node not in self._nhwc:
            stored = self.constant(node)
            dims = _image_dims(dims_of(node.meta["val"]))
            if stored is not None:
                number = self.payload.constant(_image_tensor(stored, stored.dim()), self.element(node))
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
        """A node's value in the other order, of these dimensions."""
        to_image = order == _TO_NHWC
        result = self.payload.value(dims, self.element(node)) if to_image else self._result_value(node, dims)
        image = dims if to_image else _image_dims(dims)
        static = not any(isinstance(size, torch.SymInt) for size in node.meta["val"].shape)
        if static and (image[3] == 1 or image[1] * image[2] == 1):
            self.reshape_to(node, source, dims, result)  # moving dimensions of one element moves nothing
        elif node.meta["val"].dim() == 3:
            rows = [image[0], image[2], image[3]]  # the height of 1 comes and goes
            middle = self.payload.value(rows, self.element(node))
            if to_image:
                self.transpose(node, source, (0, 2, 1), middle)
                self.reshape_to(node, middle, dims, result)
            else:
                self.reshape_to(node, source, rows, middle)
                self.transpose(node, middle, (0, 2, 1), result)
        else:
            self.transpose(node, source, order, result)
        return result

    def transpose(self, node: Node, source: int, order: Sequence[int], result: int) -> None:
        """The same elements with the dimensions in another order, between two values."""
        self.payload.node(
            "XNNStaticTranspose",
            node.meta.get("debug_handle", 0),
            num_dims=len(order),
            perm=list(order),
            input_id=source,
            output_id=result,
            flags=0,
        )

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
        dims = _image_dims(dims_of(node.meta["val"]))
        self._nhwc[node] = self.payload.value(dims, self.element(node))
        return self._nhwc[node]

    def scratch(self, dims: Sequence[int], element: Element | None = None) -> int:
        """A value between two nodes of the library that come from one of the graph."""
        return self.payload.value(dims, element or self._element)

    def scratch_like(self, node: Node) -> int:
        """A value as that of a node, in the order in which the node's is."""
        dims = dims_of(node.meta["val"])
        return self.scratch(_image_dims(dims) if self.is_image(node) else dims)

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
        value = self.plain(source)
        self.reshape_to(node, value, sizes_of(node.meta["val"]), self.result(node))


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
    rank = node.meta["val"].dim()
    if any(lowering.is_image(source) for source in sources) and all(
        _fits_image(lowering, source, rank) for source in sources
    ):
        return [_as_image(lowering, source, rank) for source in sources], lowering.image_result(node)
    values = [lowering.plain(source) for source in sources]
    return values, lowering.result(node)


def _fits_image(lowering: Lowering, node: Node, rank: int) -> bool:
    value = node.meta["val"]
    return rank in _IMAGES and (
        value.dim() == rank or lowering.constant(node) is not None or value.numel() == 1
    )


def _as_image(lowering: Lowering, node: Node, rank: int) -> int:
    if node.meta["val"].dim() == rank:
        return lowering.image(node)
    stored = lowering.constant(node)
    if stored is None:
        return lowering.plain(node)  # a single element fits everything
    return lowering.payload.constant(_image_tensor(stored, rank), lowering.element(node))


def _unary(kind: str) -> Emit:
    def emit(lowering: Lowering, node: Node) -> None:
        (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
        lowering.add(kind, node, input_id=source, output_id=result)

    return emit


for _target, _kind in _UNARY.items():
    OPERATORS[_target] = Operator(lambda node, is_constant: None, _unary(_kind))


def _root(lowering: Lowering, node: Node) -> None:
    """Of halves in float32: the library's own kernel gives -0 for what is below 0, where NaN is right."""
    if lowering.element(node) != FP16:
        _unary("XNNSquareRoot")(lowering, node)
        return
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    lowering.compute_in(FP32)
    wide, root = lowering.scratch_like(node), lowering.scratch_like(node)
    lowering.add("XNNConvert", node, input_id=source, output_id=wide)
    lowering.add("XNNSquareRoot", node, input_id=wide, output_id=root)
    lowering.add("XNNConvert", node, input_id=root, output_id=result)


OPERATORS[aten.sqrt.default] = Operator(lambda node, is_constant: None, _root)


@_register(aten.gelu.default)
def _gelu(lowering: Lowering, node: Node) -> None:
    if node.kwargs.get("approximate", "none") == "none":
        _unary("XNNGelu")(lowering, node)
        return
    # x / 2 * (1 + tanh(u)) is x * sigmoid(2 u), with u = sqrt(2 / pi) * (x + 0.044715 x^3)
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    factor = 2 * math.sqrt(2 / math.pi)
    square, cubic, slope, twice, gate = (lowering.scratch_like(node) for _ in range(5))
    lowering.add("XNNSquare", node, input_id=source, output_id=square)
    lowering.binary("XNNMultiply", node, square, lowering.number(0.044715 * factor), cubic)
    lowering.binary("XNNAdd", node, cubic, lowering.number(factor), slope)
    lowering.binary("XNNMultiply", node, source, slope, twice)
    lowering.add("XNNSigmoid", node, input_id=twice, output_id=gate)
    lowering.binary("XNNMultiply", node, source, gate, result)


def _clamped(low: float, high: float) -> Emit:
    def emit(lowering: Lowering, node: Node) -> None:
        (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
        if low <= 0 <= high:
            lowering.add("XNNClamp", node, (low, high), input_id=source, output_id=result)
            return
        # The library would take such a clamp into a convolution before it, and then fail.
        steps = [("XNNMaximum", low), ("XNNMinimum", high)]
        steps = [(kind, limit) for kind, limit in steps if math.isfinite(limit)]
        for i, (kind, limit) in enumerate(steps):
            last = i + 1 == len(steps)
            value = result if last else lowering.scratch_like(node)
            lowering.binary(kind, node, source, lowering.number(limit), value)
            source = value

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
    if not _limits(node)[0] <= 0 <= _limits(node)[1] and role(node.args[0]) == "dequantize":
        raise Refused("limits of integers that leave 0 out")


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


def _prelu_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if not is_constant(node.args[1]):  # type: ignore[arg-type]
        raise Refused("the slopes are computed")
    _static_channels(node)


@_register(aten.prelu.default, check=_prelu_check)
def _prelu(lowering: Lowering, node: Node) -> None:
    slopes = lowering.constant(node.args[1])  # type: ignore[arg-type]
    assert slopes is not None
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    if not lowering.is_image(node):  # where the channels are the last dimension
        slopes = slopes.reshape(-1, *[1] * (node.meta["val"].dim() - 2))
    lowering.binary("XNNPReLU", node, source, lowering.payload.constant(slopes), result)


def _elu_numbers(node: Node) -> tuple[float, float, float]:
    """alpha, and what results and the exponent are multiplied with"""
    if node.target == aten.selu.default:
        return 1.6732632423543772, 1.0507009873554805, 1.0
    alpha, scale, inner = [*node.args[1:], 1.0, 1.0, 1.0][:3]
    if node.target == aten.celu.default:
        inner = 1 / alpha  # type: ignore[operator]
    return float(alpha), float(scale), float(inner)  # type: ignore[arg-type]


def _elu_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    inner = _elu_numbers(node)[2]
    if node.kwargs or not inner > 0:
        raise Refused("elu with a scale that is not positive")
    _fits_halves(node, inner)


def _fits_halves(node: Node, factor: float) -> None:
    if factor > 1 and node.meta["val"].dtype is torch.float16:
        raise Refused("a product beyond what float16 can count")


@_register(aten.elu.default, aten.selu.default, aten.celu.default, check=_elu_check)
def _elu(lowering: Lowering, node: Node) -> None:
    alpha, scale, inner = _elu_numbers(node)
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    given, curve = source, result
    if inner != 1:
        given = lowering.scratch_like(node)
        lowering.binary("XNNMultiply", node, source, lowering.number(inner), given)
    if scale != inner:
        curve = lowering.scratch_like(node)
    lowering.add("XNNELU", node, alpha=alpha * inner, input_id=given, output_id=curve)
    if scale != inner:
        lowering.binary("XNNMultiply", node, curve, lowering.number(scale / inner), result)


def _softplus_of(lowering: Lowering, node: Node, source: int, result: int) -> None:
    """log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|)), which has no large numbers."""
    size, low, small, above, logarithm, positive = (lowering.scratch_like(node) for _ in range(6))
    lowering.add("XNNAbs", node, input_id=source, output_id=size)
    lowering.add("XNNNegate", node, input_id=size, output_id=low)
    lowering.add("XNNExp", node, input_id=low, output_id=small)
    lowering.binary("XNNAdd", node, small, lowering.number(1.0), above)
    lowering.add("XNNLog", node, input_id=above, output_id=logarithm)
    lowering.add("XNNClamp", node, (0.0, math.inf), input_id=source, output_id=positive)
    lowering.binary("XNNAdd", node, positive, logarithm, result)


def _softplus_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    beta, threshold = (1.0, 20.0) if len(node.args) == 1 else (*node.args[1:], 20.0)[:2]
    if not beta > 0 or threshold < 16:  # type: ignore[operator]
        raise Refused("a softplus that is cut off early")
    _fits_halves(node, beta)  # type: ignore[arg-type]


@_register(aten.softplus.default, check=_softplus_check)
def _softplus(lowering: Lowering, node: Node) -> None:
    beta = float(node.args[1]) if len(node.args) > 1 else 1.0  # type: ignore[arg-type]
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    if beta == 1:
        _softplus_of(lowering, node, source, result)
        return
    given, curve = (lowering.scratch_like(node) for _ in range(2))
    lowering.binary("XNNMultiply", node, source, lowering.number(beta), given)
    _softplus_of(lowering, node, given, curve)
    lowering.binary("XNNMultiply", node, curve, lowering.number(1 / beta), result)


@_register(aten.mish.default)
def _mish(lowering: Lowering, node: Node) -> None:
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    curve, gate = (lowering.scratch_like(node) for _ in range(2))
    _softplus_of(lowering, node, source, curve)
    lowering.add("XNNTanh", node, input_id=curve, output_id=gate)
    lowering.binary("XNNMultiply", node, source, gate, result)


@_register(aten.silu.default)
def _silu(lowering: Lowering, node: Node) -> None:
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    gate = lowering.scratch_like(node)
    lowering.add("XNNSigmoid", node, input_id=source, output_id=gate)
    lowering.add("XNNMultiply", node, input1_id=source, input2_id=gate, output_id=result)


@_register(aten.hardsigmoid.default)
def _hardsigmoid(lowering: Lowering, node: Node) -> None:
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    shifted = lowering.scratch_like(node)
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


def _changes_nothing(lowering: Lowering, node: Node) -> bool:
    """Whether the second operand is a constant that leaves the first one as it is."""
    neutral = 1.0 if node.target in (aten.mul.Tensor, aten.div.Tensor) else 0.0
    stored = lowering.constant(node.args[1])  # type: ignore[arg-type]
    kept = node.args[0].meta["val"].shape == node.meta["val"].shape  # type: ignore[union-attr]
    return kept and stored is not None and not lowering.is_integer and bool((stored == neutral).all())


def _binary(kind: str) -> Emit:
    def emit(lowering: Lowering, node: Node) -> None:
        if node.target in _NEUTRAL and _changes_nothing(lowering, node):
            lowering.alias(node, node.args[0])  # type: ignore[arg-type]
            return
        (left, right), result = _places(lowering, node, *node.args[:2])  # type: ignore[arg-type]
        lowering.add(kind, node, input1_id=left, input2_id=right, output_id=result)

    return emit


_NEUTRAL = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor}

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


_POWERS = {2.0: "XNNSquare", 0.5: "XNNSquareRoot", -0.5: "XNNReciprocalSquareRoot"}


def _known_power(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if node.args[1] not in (*_POWERS, 3.0, -1.0):
        raise Refused("a power other than 2, 3, 0.5, -0.5 and -1")


@_register(aten.pow.Tensor_Scalar, check=_known_power)
def _pow(lowering: Lowering, node: Node) -> None:
    exponent = node.args[1]
    if exponent == -1:
        _reciprocal(lowering, node)
        return
    if exponent == 0.5:
        _root(lowering, node)
        return
    if exponent in _POWERS:
        _unary(_POWERS[exponent])(lowering, node)  # type: ignore[index]
        return
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    square = lowering.scratch_like(node)
    lowering.add("XNNSquare", node, input_id=source, output_id=square)
    lowering.binary("XNNMultiply", node, square, source, result)


@_register(aten.reciprocal.default)
def _reciprocal(lowering: Lowering, node: Node) -> None:
    (source,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    lowering.binary("XNNDiv", node, lowering.number(1.0), source, result)


# ---- products ----


def _weights_known(node: Node, is_constant: Callable[[Node], bool]) -> None:
    for arg in node.args[1:3]:
        if isinstance(arg, Node) and not is_constant(arg):
            raise Refused("the weights are computed")


def _layer_weights(weight: Any, bias: Any, is_constant: Callable[[Node], bool]) -> None:
    """A linear layer's weights are stored, or computed in float32 and of a known size; what it adds then may be, too."""
    if is_constant(weight):
        if bias is not None and not is_constant(bias):
            raise Refused("what is added is computed, the weights are not")
        return
    given = [value.meta["val"] for value in (weight, bias) if value is not None]
    if any(value.dtype is not torch.float32 for value in given):
        raise Refused("the weights are computed, and not in float32")
    if any(isinstance(size, torch.SymInt) for value in given for size in value.shape):
        raise Refused("the weights are computed, and of a size that varies")


def _linear_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _, weight, bias = (*node.args, None)[:3]
    _layer_weights(weight, bias, is_constant)
    if node.args[0].meta["val"].dim() < 1 or node.args[1].meta["val"].dim() != 2:  # type: ignore[union-attr]
        raise Refused("weights without two dimensions")


@_register(aten.linear.default, check=_linear_check)
def _linear(lowering: Lowering, node: Node) -> None:
    source, weight, bias = (*node.args, None)[:3]
    value, stored = lowering.plain(source), lowering.weights(weight, source)  # type: ignore[arg-type]
    # Between floats and whole numbers the library multiplies what it adds with the weights' scales.
    apart = bias is not None and lowering.scales_what_is_added(source, weight)  # type: ignore[arg-type]
    added = lowering.bias(bias, source, weight)  # type: ignore[arg-type]
    product = lowering.scratch(dims_of(node.meta["val"])) if apart else lowering.result(node)
    lowering.add(
        "XNNFullyConnected",
        node,
        input1_id=value,
        filter_id=stored,
        bias_id=NONE if apart else added,
        output_id=product,
    )
    if apart:
        lowering.binary("XNNAdd", node, product, added, lowering.result(node))


def _addmm_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    bias, _, weight = node.args[:3]
    _layer_weights(weight, bias, is_constant)
    if bias.meta["val"].dim() != 1 or node.kwargs.get("beta", 1) != 1 or node.kwargs.get("alpha", 1) != 1:  # type: ignore[union-attr]
        raise Refused("no plain linear layer")


@_register(aten.addmm.default, check=_addmm_check)
def _addmm(lowering: Lowering, node: Node) -> None:
    bias, source, weight = node.args[:3]
    stored = lowering.constant(weight)  # type: ignore[arg-type]
    lowering.add(
        "XNNFullyConnected",
        node,
        input1_id=lowering.plain(source),  # type: ignore[arg-type]
        filter_id=lowering.plain(weight) if stored is None else lowering.payload.constant(stored.t()),  # type: ignore[arg-type]
        bias_id=lowering.plain(bias),  # type: ignore[arg-type]
        output_id=lowering.result(node),
        flags=_TRANSPOSE_WEIGHTS if stored is None else 0,
    )


def _product_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    left, right = node.args[:2]
    if min(factor.meta["val"].dim() for factor in (left, right)) < 2:  # type: ignore[union-attr]
        raise Refused("a product with a vector")
    if all(is_constant(factor) for factor in (left, right)):  # type: ignore[arg-type]
        raise Refused("both factors are constants")


def _swaps_last(node: Node) -> bool:
    """Whether a node exchanges the last two dimensions of its source."""
    if node.target != aten.permute_copy.default:
        return False
    rank = node.meta["val"].dim()
    order = [dim % rank for dim in node.args[1]]  # type: ignore[union-attr]
    return rank > 1 and order == [*range(rank - 2), rank - 1, rank - 2]


def _only_transposes(node: Node, lowering: Lowering) -> bool:
    """Whether a node does nothing but transpose matrices that products read from the right: they do that themselves."""
    return (
        _swaps_last(node)
        and not lowering.is_result(node)
        and all(user.target in _PRODUCTS and user.args[1] is node is not user.args[0] for user in node.users)
    )


_PRODUCTS = (aten.bmm.default, aten.mm.default, aten.matmul.default)


@_register(*_PRODUCTS, check=_product_check)
def _product(lowering: Lowering, node: Node) -> None:
    left, right = node.args[:2]
    stored = lowering.constant(right)  # type: ignore[arg-type]
    if stored is not None and stored.dim() == 2:
        lowering.add(
            "XNNFullyConnected",
            node,
            input1_id=lowering.plain(left),  # type: ignore[arg-type]
            filter_id=lowering.payload.constant(stored.t()),
            bias_id=NONE,
            output_id=lowering.result(node),
        )
        return
    flags = 0
    if lowering.is_transposed(right):  # type: ignore[arg-type]
        right, flags = right.args[0], _TRANSPOSE_B  # type: ignore[union-attr]
    lowering.add(
        "XNNBatchMatrixMultiply",
        node,
        input1_id=lowering.plain(left),  # type: ignore[arg-type]
        input2_id=lowering.plain(right),  # type: ignore[arg-type]
        output_id=lowering.result(node),
        flags=flags,
    )


# Fields of a convolution.
_WINDOW = [f"{what}_{side}" for what in ("kernel", "subsampling", "dilation") for side in ("height", "width")]
_AROUND = [f"padding_{side}" for side in ("top", "right", "bottom", "left")] + [
    f"adjustment_{side}" for side in ("height", "width")
]


def _pair(value: Any) -> tuple[int, int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return (values * 2)[0], (values * 2)[1]


def _one(value: Any) -> tuple[int]:
    return (value[0] if isinstance(value, (list, tuple)) else value,)


def _convolution_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _static_channels(node)
    _weights_known(node, is_constant)
    weight = node.args[1].meta["val"]  # type: ignore[union-attr]
    transposed, output_padding, groups = node.args[6:9]
    if weight.dim() not in _IMAGES or node.args[0].meta["val"].dim() != weight.dim():  # type: ignore[union-attr]
        raise Refused("a convolution of three dimensions, or without a batch")
    if transposed and groups != 1:
        raise Refused("a transposed convolution in groups")
    if transposed and any(p >= s for p, s in zip(_pair(output_padding), _pair(node.args[3]), strict=True)):
        raise Refused("output padding beyond the stride")


@_register(aten.convolution.default, check=_convolution_check)
def _convolution(lowering: Lowering, node: Node) -> None:
    source, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    shape = weight.meta["val"].shape  # type: ignore[union-attr]
    if len(shape) == 3:  # of a sequence
        shape = (*shape[:2], 1, shape[2])
        (stride, dilation), (padding, output_padding) = (
            [(fill, *_one(given)) for given in pair]
            for fill, pair in ((1, (stride, dilation)), (0, (padding, output_padding)))
        )
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


def _counts_beyond(node: Node) -> bool:
    """Whether an average has windows that reach beyond the padding, or another divisor: sums with weights."""
    if node.target != aten.avg_pool2d.default:
        return False
    kernel, stride, padding, _, ceil = _pool_numbers(node)
    before, after = node.args[0].meta["val"].shape[-2:], node.meta["val"].shape[-2:]  # type: ignore[union-attr]
    longer = ceil and any(
        (after[i] - 1) * stride[i] + kernel[i] > before[i] + 2 * padding[i] for i in range(2)
    )
    return longer or (len(node.args) > 6 and node.args[6] is not None)


def _pool_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _static_channels(node)
    kernel, stride, _, _, ceil = _pool_numbers(node)
    if node.args[0].meta["val"].dim() != 4:  # type: ignore[union-attr]
        raise Refused("a pool of an image without a batch")
    if ceil:
        _static(node)
    if kernel == (1, 1):
        raise Refused("a pool of one element")
    if _counts_beyond(node):
        _resample_check(node, is_constant)
    elif node.target != aten.avg_pool2d.default:
        if any(user.args[1] != 0 for user in node.users):
            raise Refused("the places of the maxima are used")
        if any(step > size for step, size in zip(stride, kernel, strict=True)):
            raise Refused("the windows of a maximum pool leave elements out")


@_register(aten.avg_pool2d.default, aten.max_pool2d_with_indices.default, check=_pool_check)
def _pool(lowering: Lowering, node: Node) -> None:
    if _counts_beyond(node):
        _resample(lowering, node)
        return
    kernel, stride, padding, dilation, ceil = _pool_numbers(node)
    source = node.args[0]
    image = lowering.image(source)  # type: ignore[arg-type]
    average = node.target == aten.avg_pool2d.default
    # The values of a maximum pool are a part of its result, its places another one.
    holder, *others = (node,) if average else tuple(node.users)
    after = list(padding)
    if ceil:  # the last window may reach further
        before, got = source.meta["val"].shape[2:], holder.meta["val"].shape[2:]  # type: ignore[union-attr]
        for i in range(2):
            reach = (got[i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1
            after[i] = max(after[i], reach - before[i] - padding[i])
    if average and any(padding) and (len(node.args) < 6 or node.args[5]):  # the padding counts
        n, h, w, c = _image_dims(dims_of(source.meta["val"]))  # type: ignore[union-attr]
        padded = lowering.scratch([n, h + 2 * padding[0], w + 2 * padding[1], c])
        around = [0, *padding, 0]
        _surround(lowering, node, image, around, around, 0.0, padded)
        image, padding, after = padded, (0, 0), [0, 0]
    lowering.add(
        "XNNAvgPooling2d" if average else "XNNMaxPooling2d",
        node,
        padding_top=padding[0],
        padding_right=after[1],
        padding_bottom=after[0],
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


def _mean_of(
    lowering: Lowering, node: Node, value: int, dims: Sequence[int], over: Sequence[int], fixed: bool
) -> int:
    """The mean over neighbouring dimensions `over` of a value of dimensions `dims`: the library's mean is that of an
    image, (outer, inner, 1, rest). The result's dimensions are (outer, 1, 1, rest).

    Args:
        fixed: none of the other dimensions varies.
    """
    outer, inner, rest = (
        math.prod(part) for part in (dims[: over[0]], dims[over[0] : over[-1] + 1], dims[over[-1] + 1 :])
    )
    image, pooled = lowering.scratch([outer, inner, 1, rest]), lowering.scratch([outer, 1, 1, rest])
    lowering.reshape_to(node, value, [outer if fixed else 0, inner, 1, rest], image)
    lowering.add("XNNGlobalAvgPooling2d", node, input_id=image, output_id=pooled)
    return pooled


def _reduced(node: Node) -> list[int]:
    rank = node.args[0].meta["val"].dim()  # type: ignore[union-attr]
    given = node.args[1] if len(node.args) > 1 and node.args[1] else range(rank)
    return sorted(dim % rank for dim in given)  # type: ignore[union-attr]


def _mean_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _one_dynamic(node, is_constant)
    value, dims = node.args[0].meta["val"], _reduced(node)  # type: ignore[union-attr]
    if value.dim() == 0:
        raise Refused("a mean of one number")
    if node.kwargs.get("dtype") not in (None, value.dtype):
        raise Refused("another dtype for the sum")
    if sum(isinstance(size, torch.SymInt) for size in value.shape) > 1:
        raise Refused("more than one dynamic dimension")
    varies = [dim for dim, size in enumerate(value.shape) if isinstance(size, torch.SymInt)]
    if any(dim >= dims[0] for dim in varies):
        raise Refused("a dynamic dimension is added up, or behind one that is")
    if value.dtype is torch.float16 and math.prod(dims_of(value)[dim] for dim in dims) > 60_000:
        raise Refused("a sum beyond what float16 can count")


@_register(aten.mean.dim, aten.sum.dim_IntList, check=_mean_check)
def _mean(lowering: Lowering, node: Node) -> None:
    source, dims = node.args[0], _reduced(node)
    given = source.meta["val"]  # type: ignore[union-attr]
    sizes = sizes_of(given)
    if len(sizes) == 4 and dims == [2, 3] and (lowering.is_image(source) or lowering.is_integer):  # type: ignore[arg-type]
        image = lowering.image(source)  # type: ignore[arg-type]
        keeps = node.target == aten.mean.dim and node.meta["val"].dim() == 4  # the mean is an image, too
        value = (
            lowering.image_result(node)
            if keeps
            else lowering.scratch([dims_of(given)[0], 1, 1, dims_of(given)[1]])
        )
        lowering.add("XNNGlobalAvgPooling2d", node, input_id=image, output_id=value)
        if keeps:
            return
    else:
        value, left, now = lowering.plain(source), list(dims), dims_of(given)  # type: ignore[arg-type]
        while left:  # neighbours at once
            over = [left.pop()]
            while left and left[-1] == over[0] - 1:
                over.insert(0, left.pop())
            value = _mean_of(lowering, node, value, now, over, 0 not in sizes)
            now = [1 if dim in over else size for dim, size in enumerate(now)]
    shape, result = sizes_of(node.meta["val"]), lowering.result(node)
    if node.target == aten.sum.dim_IntList:
        count = math.prod(given.shape[dim] for dim in dims)
        mean = lowering.scratch(dims_of(node.meta["val"]))
        lowering.reshape_to(node, value, shape, mean)
        lowering.binary("XNNMultiply", node, mean, lowering.number(count), result)
    else:
        lowering.reshape_to(node, value, shape, result)


def _layer_norm_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    value = node.args[0].meta["val"]  # type: ignore[union-attr]
    varies = [dim for dim, size in enumerate(value.shape) if isinstance(size, torch.SymInt)]
    if len(varies) > 1 or any(dim >= value.dim() - len(node.args[1]) for dim in varies):  # type: ignore[arg-type]
        raise Refused("a dynamic dimension among the normalized ones, or more than one")
    if any(isinstance(arg, Node) and not is_constant(arg) for arg in node.args[2:4]):
        raise Refused("the weights are computed")
    if any(user.args[1] != 0 for user in node.users):
        raise Refused("mean or deviation are used")


@_register(aten.native_layer_norm.default, check=_layer_norm_check)
def _layer_norm(lowering: Lowering, node: Node) -> None:
    source, normalized, weight, bias, epsilon = node.args
    whole = dims_of(source.meta["val"])  # type: ignore[union-attr]
    sizes = sizes_of(source.meta["val"])  # type: ignore[union-attr]
    inner = math.prod(normalized)  # type: ignore[arg-type]
    holder, *others = node.users
    is_half = lowering.element(source) != FP32  # type: ignore[arg-type]
    flat = len(normalized) > 1  # type: ignore[arg-type]
    fixed = 0 not in sizes
    value = lowering.plain(source)  # type: ignore[arg-type]
    if is_half:  # the squares would leave its range
        half, value = value, lowering.scratch(whole, FP32)
        lowering.add("XNNConvert", node, input_id=half, output_id=value)
    lowering.compute_in(FP32)
    dims, outer = whole, sizes[:-1]
    if flat:
        dims, outer = [math.prod(whole) // inner, inner], [0]
        given, value = value, lowering.scratch(dims)
        lowering.reshape_to(node, given, [*outer, inner], value)
    column = [*dims[:-1], 1]

    def mean(of: int) -> int:
        return _mean_of(lowering, node, of, dims, [len(dims) - 1], fixed)

    def as_column(pooled: int) -> int:
        result = lowering.scratch(column)
        lowering.reshape_to(node, pooled, [*outer, 1], result)
        return result

    centred, squares = lowering.scratch(dims), lowering.scratch(dims)
    lowering.binary("XNNSubtract", node, value, as_column(mean(value)), centred)
    lowering.add("XNNSquare", node, input_id=centred, output_id=squares)
    variance = mean(squares)
    rows = math.prod(column)
    shifted, scale = lowering.scratch([rows, 1, 1, 1]), lowering.scratch([rows, 1, 1, 1])
    lowering.binary("XNNAdd", node, variance, lowering.number(float(epsilon)), shifted)  # type: ignore[arg-type]
    lowering.add("XNNReciprocalSquareRoot", node, input_id=shifted, output_id=scale)
    steps = [("XNNMultiply", as_column(scale))]
    for kind, operand in (("XNNMultiply", weight), ("XNNAdd", bias)):
        stored = lowering.constant(operand) if isinstance(operand, Node) else None
        if stored is not None:
            steps.append((kind, lowering.payload.constant(stored.reshape(inner).float())))
    value = centred
    for i, (kind, operand) in enumerate(steps):
        last = i + 1 == len(steps) and not flat and not is_half
        result = lowering.result(holder) if last else lowering.scratch(dims)
        lowering.binary(kind, node, value, operand, result)
        value = result
    if flat:
        result = lowering.scratch(whole) if is_half else lowering.result(holder)
        lowering.reshape_to(node, value, sizes, result)
        value = result
    if is_half:
        lowering.add("XNNConvert", node, input_id=value, output_id=lowering.result(holder))
    for other in others:
        lowering.alias(other, holder)


def _group_norm_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _static(node)
    if any(isinstance(arg, Node) and not is_constant(arg) for arg in node.args[1:3]):
        raise Refused("the weights are computed")
    if any(user.args[1] != 0 for user in node.users):
        raise Refused("mean or deviation are used")
    if node.args[0].meta["val"].dtype is not torch.float32:  # type: ignore[union-attr]
        raise Refused("a group norm in float16")


@_register(aten.native_group_norm.default, check=_group_norm_check)
def _group_norm(lowering: Lowering, node: Node) -> None:
    source, weight, bias, batch, channels, _, groups, epsilon = node.args
    given = dims_of(source.meta["val"])  # type: ignore[union-attr]
    holder, *others = node.users
    as_image = groups == 1 and lowering.is_image(source)  # type: ignore[arg-type]
    dims = _image_dims(given) if as_image else given
    rows = batch * groups  # type: ignore[operator]
    flat = [rows, math.prod(given) // rows]

    def mean(of: int) -> int:
        pooled, result = _mean_of(lowering, node, of, flat, [1], True), lowering.scratch([rows, 1])
        lowering.reshape_to(node, pooled, [rows, 1], result)
        return result

    value, centred, squares, scaled = (lowering.scratch(flat) for _ in range(4))
    shifted, scale = (lowering.scratch([rows, 1]) for _ in range(2))
    lowering.reshape_to(node, lowering.image(source) if as_image else lowering.plain(source), flat, value)  # type: ignore[arg-type]
    lowering.binary("XNNSubtract", node, value, mean(value), centred)
    lowering.add("XNNSquare", node, input_id=centred, output_id=squares)
    lowering.binary("XNNAdd", node, mean(squares), lowering.number(float(epsilon)), shifted)  # type: ignore[arg-type]
    lowering.add("XNNReciprocalSquareRoot", node, input_id=shifted, output_id=scale)
    lowering.binary("XNNMultiply", node, centred, scale, scaled)
    shape = [channels] if as_image else [channels, *[1] * (len(given) - 2)]
    steps = [
        (kind, lowering.payload.constant(lowering.constant(operand).reshape(shape)))  # type: ignore[arg-type, union-attr]
        for kind, operand in (("XNNMultiply", weight), ("XNNAdd", bias))
        if operand is not None
    ]

    def result() -> int:
        return lowering.image_result(holder) if as_image else lowering.result(holder)

    value = lowering.scratch(dims) if steps else result()
    lowering.reshape_to(node, scaled, dims, value)
    for i, (kind, operand) in enumerate(steps):
        before, value = value, result() if i + 1 == len(steps) else lowering.scratch(dims)
        lowering.binary(kind, node, before, operand, value)
    for other in others:
        lowering.alias(other, holder)


def _batch_norm_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _static_channels(node)
    if any(isinstance(arg, Node) and not is_constant(arg) for arg in node.args[1:5]):
        raise Refused("the weights are computed")
    if node.args[0].meta["val"].dim() not in (2, *_IMAGES):  # type: ignore[union-attr]
        raise Refused("a batch norm of other than 2 to 4 dimensions")
    if any(user.args[1] != 0 for user in node.users):
        raise Refused("mean or deviation are used")


@_register(aten._native_batch_norm_legit_no_training.default, check=_batch_norm_check)
def _batch_norm(lowering: Lowering, node: Node) -> None:
    """Of an image a depthwise convolution of single pixels, which the library computes in one pass."""
    source, *stored, _, epsilon = node.args
    weight, bias, mean, variance = (
        lowering.constant(arg).double() if isinstance(arg, Node) else torch.tensor(default)  # type: ignore[union-attr]
        for arg, default in zip(stored, (1.0, 0.0, 0.0, 1.0), strict=True)
    )
    scale = weight * torch.rsqrt(variance + epsilon)
    shift = bias - mean * scale
    value = source.meta["val"]  # type: ignore[union-attr]
    added = lowering.payload.constant(shift.to(value.dtype))
    holder, *others = node.users
    if value.dim() == 2:
        factor, product = lowering.payload.constant(scale.to(value.dtype)), lowering.scratch(dims_of(value))
        lowering.binary("XNNMultiply", node, lowering.plain(source), factor, product)  # type: ignore[arg-type]
        lowering.binary("XNNAdd", node, product, added, lowering.result(holder))
    else:
        filters = scale.to(value.dtype).reshape(1, 1, 1, -1)
        unit = dict.fromkeys(_WINDOW, 1) | dict.fromkeys(_AROUND, 0)
        lowering.add(
            "XNNDepthwiseConv2d",
            node,
            None,
            **unit,
            group_input_channels=1,
            group_output_channels=1,
            groups=scale.numel(),
            input1_id=lowering.image(source),  # type: ignore[arg-type]
            filter_id=lowering.payload.constant(filters),
            bias_id=added,
            output_id=lowering.image_result(holder),
        )
    for other in others:
        lowering.alias(other, holder)


def _softmax_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if node.meta["val"].dim() == 0:
        raise Refused("a softmax of one number")


@_register(aten._softmax.default, check=_softmax_check)
def _softmax(lowering: Lowering, node: Node) -> None:
    rank, dim = node.meta["val"].dim(), node.args[1]
    value = lowering.plain(node.args[0])  # type: ignore[arg-type]
    if dim in (-1, rank - 1):
        lowering.add("XNNSoftmax", node, input_id=value, output_id=lowering.result(node))
        return
    order = list(range(rank))  # exchanges two dimensions, and does so again
    order[dim], order[-1] = order[-1], order[dim]  # type: ignore[index]
    dims = [dims_of(node.meta["val"])[i] for i in order]
    swapped, soft = lowering.scratch(dims), lowering.scratch(dims)
    lowering.transpose(node, value, order, swapped)
    lowering.add("XNNSoftmax", node, input_id=swapped, output_id=soft)
    lowering.transpose(node, soft, order, lowering.result(node))


# ---- shapes ----


@_register(
    aten.view_copy.default, aten.unsqueeze_copy.default, aten.squeeze_copy.dim, aten.squeeze_copy.dims,
    check=_one_dynamic,
)  # fmt: skip
def _reshape(lowering: Lowering, node: Node) -> None:
    lowering.reshape(node, node.args[0])  # type: ignore[arg-type]


def _expand_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    given, wanted = (source.meta["val"].shape for source in (node.args[0], node))  # type: ignore[union-attr]
    given = (1,) * (len(wanted) - len(given)) + tuple(given)
    if any(isinstance(b, torch.SymInt) and not same_size(a, b) for a, b in zip(given, wanted, strict=True)):
        raise Refused("expanded to a dynamic size")
    if len(wanted) > node.args[0].meta["val"].dim():  # type: ignore[union-attr]
        _one_dynamic(node, is_constant)
    if node.meta["val"].dtype not in FLOATS:
        raise Refused("no floating point")


def _broadcasts(user: Node, operand: Node) -> bool:
    """Whether a node's other operand has its shape already."""
    others = [arg for arg in user.args[:2] if arg is not operand]
    shape = user.meta["val"].shape
    return user.target in _BINARY and len(others) == 1 and others[0].meta["val"].shape == shape  # type: ignore[union-attr]


@_register(aten.expand_copy.default, check=_expand_check)
def _expand(lowering: Lowering, node: Node) -> None:
    """Times one, which broadcasts; where the users broadcast there is nothing to do."""
    source, wanted = node.args[0], dims_of(node.meta["val"])
    if (
        len(wanted) < 3
        and not lowering.is_result(node)
        and all(_broadcasts(user, node) for user in node.users)
    ):
        lowering.alias(node, source)  # type: ignore[arg-type]
        return
    given, sizes = dims_of(source.meta["val"]), sizes_of(source.meta["val"])  # type: ignore[union-attr]
    more = [1] * (len(wanted) - len(given))
    given, value = more + given, lowering.plain(source)  # type: ignore[arg-type]
    if more:
        plain, value = value, lowering.scratch(given)
        lowering.reshape_to(node, plain, more + sizes, value)
    ones = torch.ones([b if a != b else 1 for a, b in zip(given, wanted, strict=True)])
    factor = lowering.payload.constant(ones.to(node.meta["val"].dtype))
    lowering.binary("XNNMultiply", node, value, factor, lowering.result(node))


def _resize_numbers(node: Node) -> tuple[list[float], bool]:
    """How much larger height and width become, and whether corners are aligned."""
    before, after = node.args[0].meta["val"].shape[2:], node.meta["val"].shape[2:]  # type: ignore[union-attr]
    aligned = node.target == aten.upsample_bilinear2d.vec and bool(node.args[2])
    return [b / a for a, b in zip(before, after, strict=True)], aligned


_WIDEST = 128  # pixels: matrices that make images of other sizes grow with the square


def _resample_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    given, wanted = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    if given.dim() != 4:
        raise Refused("an image without a batch")
    _static_channels(node)
    sizes = (*given.shape[2:], *wanted.shape[2:])
    if any(isinstance(arg, Node) for arg in node.all_input_nodes[1:]) or any(
        isinstance(size, torch.SymInt) for size in sizes
    ):
        raise Refused("a dynamic height or width")
    if max(sizes) > _WIDEST:
        raise Refused(f"an image of more than {_WIDEST} pixels to a side, in another way than the library's")


def _weights_of_pixels(node: Node) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrices (after, before) that an operator multiplies the rows and the columns of an image with."""

    def run(image: torch.Tensor) -> torch.Tensor:
        return node.target(image, *node.args[1:], **node.kwargs)[0]  # type: ignore[operator]

    height, width = node.args[0].meta["val"].shape[2:]  # type: ignore[union-attr]
    ones = torch.ones(1, 1, height, width, dtype=torch.float64)
    whole = run(ones)[0]
    place = int(whole.abs().argmax())
    row, column = place // whole.shape[1], place % whole.shape[1]
    down = run(torch.eye(height, dtype=torch.float64)[None, :, :, None].expand(1, height, height, width))
    across = run(torch.eye(width, dtype=torch.float64)[None, :, None, :].expand(1, width, height, width))
    return down[:, :, column].T, across[:, row].T / whole[row, column]


@_register(
    aten._adaptive_avg_pool2d.default, aten.upsample_bicubic2d.default, aten._upsample_bilinear2d_aa.default,
    aten._upsample_bicubic2d_aa.default, aten._upsample_nearest_exact2d.default, check=_resample_check,
)  # fmt: skip
def _resample(lowering: Lowering, node: Node) -> None:
    """A product with the rows of an image and one with its columns."""
    dtype = node.meta["val"].dtype
    down, across = (lowering.payload.constant(part.to(dtype)) for part in _weights_of_pixels(node))
    batch, height, _, channels = _image_dims(dims_of(node.args[0].meta["val"]))  # type: ignore[union-attr]
    _, high, wide, _ = _image_dims(dims_of(node.meta["val"]))
    fixed = 0 if isinstance(node.meta["val"].shape[0], torch.SymInt) else batch
    widened = lowering.scratch([batch, height, wide, channels])
    rows, product = (lowering.scratch([batch, size, wide * channels]) for size in (height, high))
    image = lowering.image(node.args[0])  # type: ignore[arg-type]
    for left, right, result in ((across, image, widened), (down, rows, product)):
        if right == rows:
            lowering.reshape_to(node, widened, [fixed, height, wide * channels], rows)
        lowering.add("XNNBatchMatrixMultiply", node, input1_id=left, input2_id=right, output_id=result)
    lowering.reshape_to(node, product, [fixed, high, wide, channels], lowering.image_result(node))


def _by_other_factors(node: Node) -> bool:
    """Whether a resize has no node of its own: its factors are not those of the sizes, or not whole."""
    factors, aligned = _resize_numbers(node)
    given = node.args[-1] if isinstance(node.args[-1], (list, tuple)) else None
    if given is not None and not aligned and any(a != b for a, b in zip(given, factors, strict=True)):
        return True
    return node.target == aten.upsample_nearest2d.vec and any(factor % 1 for factor in factors)


def _resize_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _static(node)
    if _by_other_factors(node):
        _resample_check(node, is_constant)


@_register(aten.upsample_bilinear2d.vec, check=_resize_check)
def _resize(lowering: Lowering, node: Node) -> None:
    if _by_other_factors(node):
        _resample(lowering, node)
        return
    image = lowering.image(node.args[0])  # type: ignore[arg-type]
    _, height, width, _ = _image_dims(dims_of(node.meta["val"]))
    lowering.add(
        "XNNStaticResizeBilinear2D",
        node,
        new_height=height,
        new_width=width,
        input_id=image,
        output_id=lowering.image_result(node),
        flags=_ALIGN_CORNERS if _resize_numbers(node)[1] else 0,
    )


@_register(aten.upsample_nearest2d.vec, check=_resize_check)
def _repeat_pixels(lowering: Lowering, node: Node) -> None:
    if _by_other_factors(node):
        _resample(lowering, node)
        return
    batch, height, width, channels = _image_dims(dims_of(node.args[0].meta["val"]))  # type: ignore[union-attr]
    down, right = (int(factor) for factor in _resize_numbers(node)[0])
    apart, repeated = [batch * height, 1, width, 1, channels], [batch * height, down, width, right, channels]
    value, product = lowering.scratch(apart), lowering.scratch(repeated)
    lowering.reshape_to(node, lowering.image(node.args[0]), apart, value)  # type: ignore[arg-type]
    ones = lowering.payload.constant(torch.ones(1, down, 1, right, 1).to(node.meta["val"].dtype))
    lowering.binary("XNNMultiply", node, value, ones, product)
    shape = [batch, height * down, width * right, channels]
    lowering.reshape_to(node, product, shape, lowering.image_result(node))


def _is_noop(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if node.kwargs.get("memory_format") not in (None, torch.contiguous_format, torch.preserve_format):
        raise Refused("another order of dimensions")


@_register(aten.clone.default, check=_is_noop)
def _clone(lowering: Lowering, node: Node) -> None:
    lowering.alias(node, node.args[0])  # type: ignore[arg-type]


def _same_strides(node: Node, is_constant: Callable[[Node], bool]) -> None:
    given, wanted = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    _static(node)
    strides = [stride for size, stride in zip(wanted.shape, node.args[2], strict=True) if size != 1]  # type: ignore[call-overload]
    expected = [math.prod(wanted.shape[i + 1 :]) for i, size in enumerate(wanted.shape) if size != 1]
    offset = node.args[3] if len(node.args) > 3 else None
    if strides != expected or wanted.numel() != given.numel() or offset or not is_dense(given):
        raise Refused("strides that are not those of a tensor side by side")


@_register(aten.as_strided_copy.default, check=_same_strides)
def _as_strided(lowering: Lowering, node: Node) -> None:
    if node.meta["val"].shape == node.args[0].meta["val"].shape:  # type: ignore[union-attr]
        lowering.alias(node, node.args[0])  # type: ignore[arg-type]
    else:
        lowering.reshape(node, node.args[0])  # type: ignore[arg-type]


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
    if _only_transposes(node, lowering):
        lowering.leave_transposed(node)
        return
    rank = node.meta["val"].dim()
    value = lowering.plain(node.args[0])  # type: ignore[arg-type]
    order = [dim % rank for dim in node.args[1]]  # type: ignore[union-attr]
    lowering.add(
        "XNNStaticTranspose", node, num_dims=rank, perm=order, input_id=value, output_id=lowering.result(node)
    )


def _slice_numbers(node: Node) -> tuple[int, int, int, int]:
    """dimension, first element, elements, and how far they are apart"""
    before = node.args[0].meta["val"].shape  # type: ignore[union-attr]
    dim = (node.args[1] if len(node.args) > 1 else 0) % len(before)  # type: ignore[operator]
    if node.target == aten.select_copy.int:
        index = node.args[2]
        return dim, index % before[dim], 1, 1  # type: ignore[operator]
    start = node.args[2] if len(node.args) > 2 and node.args[2] is not None else 0
    start = min(max(start + before[dim] if start < 0 else start, 0), before[dim])  # type: ignore[operator]
    count, step = node.meta["val"].shape[dim], node.args[4] if len(node.args) > 4 else 1
    return dim, start, count, 1 if count == 1 else step  # type: ignore[return-value]


def _slice_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if any(isinstance(arg, Node) for arg in node.args[1:]):
        raise Refused("a computed place")
    before = node.args[0].meta["val"].shape  # type: ignore[union-attr]
    dim = (node.args[1] if len(node.args) > 1 else 0) % len(before)  # type: ignore[operator]
    after = node.meta["val"].shape
    if isinstance(before[dim], torch.SymInt) or any(
        isinstance(size, torch.SymInt) for size in after[dim : dim + 1] if node.target != aten.select_copy.int
    ):
        raise Refused("a slice of a dynamic dimension")
    *_, step = _slice_numbers(node)
    if node.target == aten.select_copy.int or step > 1:
        _one_dynamic(node, is_constant)


def _cut(
    lowering: Lowering,
    node: Node,
    value: int,
    dims: Sequence[int],
    dim: int,
    start: int,
    count: int,
    result: int,
) -> None:
    """`count` elements of a dimension; `dims`: 0 where all that there are shall be taken."""
    offsets, sizes = [0] * len(dims), list(dims)
    offsets[dim], sizes[dim] = start, count
    lowering.add(
        "XNNStaticSlice",
        node,
        num_dims=len(sizes),
        offsets=offsets,
        sizes=sizes,
        input_id=value,
        output_id=result,
    )


def _ordered(lowering: Lowering, node: Node, dims: Sequence[int], dim: int) -> tuple[list[int], int]:
    """Dimensions of a node, and one of them, in the order in which it is."""
    if lowering.is_image(node):
        return _image_dims(dims), _image_axis(dim, len(dims))
    return list(dims), dim


@_register(aten.slice_copy.Tensor, check=_slice_check)
def _slice(lowering: Lowering, node: Node) -> None:
    dim, start, count, step = _slice_numbers(node)
    given = node.args[0].meta["val"]  # type: ignore[union-attr]
    (value,), result = _places(lowering, node, node.args[0])  # type: ignore[arg-type]
    sizes, at = _ordered(lowering, node, sizes_of(given), dim)
    if step == 1:
        _cut(lowering, node, value, sizes, at, start, count, result)
        return
    # Groups of as many as there are between two that are taken; of each the same one.
    whole, _ = _ordered(lowering, node, dims_of(given), dim)
    length = whole[at]
    first = max(min(start, length - count * step), 0)
    if count * step != length:
        part, whole[at] = value, count * step
        value = lowering.scratch(whole)
        if count * step < length:
            _cut(lowering, node, part, sizes, at, first, count * step, value)
        else:
            after = [0] * len(whole)
            after[at] = count * step - length
            _surround(lowering, node, part, [0] * len(whole), after, 0.0, value)
    outer, inner = (
        (math.prod(whole[a:b]), 0 if 0 in sizes[a:b] else math.prod(whole[a:b]))
        for a, b in ((0, at), (at + 1, None))
    )
    groups, taken = (lowering.scratch([outer[0], count, n, inner[0]]) for n in (step, 1))
    lowering.reshape_to(node, value, [outer[1], count, step, inner[1]], groups)
    _cut(lowering, node, groups, [outer[1], count, step, inner[1]], 2, start - first, 1, taken)
    sizes[at] = count
    lowering.reshape_to(node, taken, sizes, result)


@_register(aten.select_copy.int, check=_slice_check)
def _select(lowering: Lowering, node: Node) -> None:
    before = node.args[0].meta["val"]  # type: ignore[union-attr]
    dim, start, *_ = _slice_numbers(node)
    value, dims = lowering.plain(node.args[0]), dims_of(before)  # type: ignore[arg-type]
    part = lowering.scratch([*dims[:dim], 1, *dims[dim + 1 :]])
    _cut(lowering, node, value, sizes_of(before), dim, start, 1, part)
    lowering.reshape_to(node, part, sizes_of(node.meta["val"]), lowering.result(node))


def _split_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    given = node.args[0].meta["val"]  # type: ignore[union-attr]
    dim = node.args[2] if len(node.args) > 2 else 0
    if any(isinstance(size, (Node, torch.SymInt)) for size in (given.shape[dim], *node.args[1])):  # type: ignore[index, misc]
        raise Refused("a split of a dynamic dimension")


@_register(aten.split_with_sizes_copy.default, check=_split_check)
def _split(lowering: Lowering, node: Node) -> None:
    source, sizes = node.args[:2]
    given = source.meta["val"]  # type: ignore[union-attr]
    dim = (node.args[2] if len(node.args) > 2 else 0) % given.dim()  # type: ignore[operator]
    for part in node.users:
        start = sum(sizes[: part.args[1]])  # type: ignore[index, misc, arg-type]
        (value,), result = _places(lowering, part, source)  # type: ignore[arg-type]
        dims, at = _ordered(lowering, part, sizes_of(given), dim)
        _cut(lowering, node, value, dims, at, start, sizes[part.args[1]], result)  # type: ignore[index]


_MOST_CUT = 32  # slices that stand for one operator


def _places_known(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _static(node)
    chosen = [(dim, places) for dim, places in enumerate(node.args[1]) if places is not None]  # type: ignore[arg-type]
    if len(chosen) != 1 or not is_constant(chosen[0][1]):
        raise Refused("computed places, or those of several dimensions")
    if chosen[0][1].meta["val"].dim() != 1 or chosen[0][1].meta["val"].dtype not in (
        torch.int32,
        torch.int64,
    ):
        raise Refused("places that are no row of whole numbers")
    if chosen[0][1].meta["val"].numel() > _MOST_CUT:
        raise Refused(f"more than {_MOST_CUT} places")


_PLACED = {aten.index.Tensor}


@_register(aten.index.Tensor, check=_places_known)
def _index(lowering: Lowering, node: Node) -> None:
    """A slice for each run of neighbours, and those side by side."""
    source, places = node.args[:2]
    dim = next(i for i, given in enumerate(places) if given is not None)  # type: ignore[arg-type]
    sizes = sizes_of(source.meta["val"])  # type: ignore[union-attr]
    wanted = (lowering.constant(places[dim]) % sizes[dim]).tolist()  # type: ignore[index, operator, union-attr]
    runs: list[list[int]] = []
    for place in wanted:
        if runs and place == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([place, 1])
    value, result = lowering.plain(source), lowering.result(node)  # type: ignore[arg-type]
    parts = []
    for start, count in runs:
        parts.append(result if len(runs) == 1 else lowering.scratch([*sizes[:dim], count, *sizes[dim + 1 :]]))
        _cut(lowering, node, value, sizes, dim, start, count, parts[-1])
    if len(runs) > 1:
        _join(lowering, node, parts, [count for _, count in runs], dims_of(node.meta["val"]), dim, result)


_MOST_JOINED = 5  # values that one node of the library joins


def _cat_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if any(tensor.meta["val"].dim() != node.meta["val"].dim() for tensor in node.args[0]):  # type: ignore[union-attr]
        raise Refused("a concatenation with an empty tensor")


@_register(aten.cat.default, check=_cat_check)
def _cat(lowering: Lowering, node: Node) -> None:
    sources = list(node.args[0])  # type: ignore[arg-type]
    dim = (node.args[1] if len(node.args) > 1 else 0) % node.meta["val"].dim()  # type: ignore[operator]
    if len(sources) == 1:
        lowering.alias(node, sources[0])
        return
    sources = lowering.joined(node, sources, dim)
    sizes = [dims_of(source.meta["val"])[dim] for source in sources]
    values, result = _places(lowering, node, *sources)
    dims = dims_of(node.meta["val"])
    if lowering.is_image(node):
        dims, dim = _image_dims(dims), _image_axis(dim, len(dims))

    _join(lowering, node, values, sizes, dims, dim, result)


def _join(
    lowering: Lowering,
    node: Node,
    values: list[int],
    sizes: list[int],
    dims: Sequence[int],
    dim: int,
    result: int,
) -> None:
    """Values of these sizes side by side in a dimension, as many at once as the library takes."""

    def join(some: list[int], into: int) -> None:
        inputs = {f"input{i + 1}_id": value for i, value in enumerate(some)}
        lowering.add(f"XNNConcatenate{len(some)}", node, None, axis=dim, output_id=into, **inputs)

    while len(values) > _MOST_JOINED:
        parts = [slice(i, i + _MOST_JOINED) for i in range(0, len(values), _MOST_JOINED)]
        longer = []
        for part in parts:
            if len(values[part]) == 1:
                longer += values[part]
                continue
            longer.append(lowering.scratch([*dims[:dim], sum(sizes[part]), *dims[dim + 1 :]]))
            join(values[part], longer[-1])
        values, sizes = longer, [sum(sizes[part]) for part in parts]
    join(values, result)


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
        before, after = (
            [amount[0], 0, amount[2], amount[1]] if rank == 3 else [amount[i] for i in _TO_NHWC]
            for amount in (before, after)
        )
    amount = float(node.args[2]) if len(node.args) > 2 else 0.0  # type: ignore[arg-type]
    _surround(lowering, node, value, before, after, amount, result)


def _surround(
    lowering: Lowering,
    node: Node,
    value: int,
    before: Sequence[int],
    after: Sequence[int],
    amount: float,
    result: int,
) -> None:
    """Elements around those that there are."""
    lowering.add(
        "XNNStaticConstantPad",
        node,
        pre_paddings=list(before),
        post_paddings=list(after),
        padding_value=amount,
        input_id=value,
        output_id=result,
    )
