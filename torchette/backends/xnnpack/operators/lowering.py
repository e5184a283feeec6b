# SPDX-License-Identifier: BSD-3-Clause
# In: the nodes of a torch graph, one at a time. Out: nodes of XNNPACK in a payload.
"""`Lowering` creates the values and nodes of a payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.integers import fused_clamp, integer_form, limits_of
from torchette.backends.xnnpack.operators.nodes import (
    IMAGES,
    TO_NCHW,
    TO_NHWC,
    arg,
    dims_of,
    image_dims,
    image_tensor,
    sizes_of,
)
from torchette.backends.xnnpack.operators.table import OPERATORS
from torchette.backends.xnnpack.payload import DYNAMIC, DYNAMIC_IMAGE, FLOATS, FP32, NONE, Element, Payload
from torchette.backends.xnnpack.quantization import Weights, int8_element, role, weights_of
from torchette.exir.arguments import function
from torchette.exir.delegation.named_data import NamedDataStoreOutput
from torchette.exir.graph import map_nodes

aten = torch.ops.aten


class Lowering:
    """Builds a payload from a graph. An image may have two values, one in torch's order of dimensions and one in NHWC."""

    def __init__(
        self, arguments: int, constants: dict[Node, torch.Tensor], external_tag: str | None = None
    ) -> None:
        self.payload = Payload(arguments, external_tag)
        self._constants = constants
        self._plain: dict[Node, int] = {}
        self._nhwc: dict[Node, int] = {}
        self._results: dict[
            Node, list[int]
        ] = {}  # -> its indices among the arguments, of outputs that have no value yet
        self._done: set[Node] = set()  # lowered together with an earlier node
        self.fused: dict[Node, Node] = {}  # clamp -> the floating-point node that applies it
        self._transposed: set[Node] = set()
        self._joined: dict[tuple[Any, ...], Node] = {}  # sources and dimension -> their concatenation
        # Of the node that is being lowered: the nodes whose values replace its value and those of its sources, whether they are
        # integer nodes, and the range of the result if it includes a clamp.
        self._stands_for: dict[Node, Node] = {}
        self._is_integer = False
        self._limits: tuple[float, float] | None = None
        self._element = FP32

    def add_input(self, node: Node, argument: int) -> None:
        """Adds an input of the delegate."""
        dims = dims_of(node.meta["val"])
        self._plain[node] = self.payload.value(dims, self.element(node), argument=argument)

    def add_output(self, node: Node, argument: int) -> None:
        """Declares an output of the delegate. Call it before `lower` of the node that computes the output."""
        self._results.setdefault(node, []).append(argument)

    def lower(self, node: Node) -> None:
        """Adds the nodes of one call."""
        if node in self._done:
            return
        kind = role(node)
        if kind == "quantize":
            (source,), result = operands_and_result(self, node, arg(node, 0))
            self.add("XNNConvert", node, input_id=source, output_id=result)
        elif kind == "quantize rows":
            self._quantize_rows(node)
        elif kind == "dequantize rows":
            for values in (self._plain, self._nhwc):
                if arg(node, 0) in values:
                    values[node] = values[arg(node, 0)]
        elif kind is None:
            on_integers = integer_form(node, self._constants, self.element)
            if on_integers is not None:
                self._stands_for, self._limits, covered = on_integers
                self._is_integer = True
                self._done |= covered
            elif clamp := fused_clamp(node):
                self._stands_for, self._limits = {node: clamp}, limits_of(clamp)
                self._done.add(clamp)
                self.fused[clamp] = node
            self._element = self.element(node)
            OPERATORS[node.target].emit(self, node)
            self._stands_for, self._is_integer, self._limits = {}, False, None

    def _quantize_rows(self, node: Node) -> None:
        """Adds a quantization at run time: by row for linear layers, by image for convolutions."""
        source, dims = arg(node, 0), dims_of(node.meta["val"])
        readers = {reader.target for user in node.users for reader in user.users}
        if readers - {aten.convolution.default}:
            self._plain[node] = self.payload.value(dims, DYNAMIC)
            self.add("XNNConvert", node, input_id=self.plain(source), output_id=self._plain[node])
        if aten.convolution.default in readers:
            self._nhwc[node] = self.payload.value(image_dims(dims), DYNAMIC_IMAGE)
            self.add("XNNConvert", node, input_id=self.image(source), output_id=self._nhwc[node])

    def finish(self) -> tuple[bytes, NamedDataStoreOutput]:
        """Assigns a value to each remaining output; returns the payload and its constants."""
        for node in list(self._results):
            source = self.plain(node)  # converts an NHWC value, and may define the first output
            for argument in self._results.pop(node, ()):
                dims = dims_of(node.meta["val"])
                result = self.payload.value(dims, self.element(node), argument=argument, output=True)
                self.add("XNNCopy", node, input_id=source, output_id=result)
        self._tap()
        return self.payload.finish()

    def _tap(self) -> None:
        """Records the values of the captured calls, for tools that read the delegate's intermediate results.

        The nodes of a decomposed call share its debug handle; only the last of them have its value. The value of a fused clamp
        has the debug handle of the node that applies it.
        """
        known = self._plain | self._nhwc
        for node in next(iter(known)).graph.nodes if known else ():
            handle = node.meta.get("debug_handle")
            inner = any(user.meta.get("debug_handle") == handle for user in node.users)
            if node in known and node.op == "call_function" and handle and not inner:
                layout = 0 if node in self._plain else node.meta["val"].dim()
                handle = self.fused.get(node, node).meta.get("debug_handle", handle)
                self.payload.tap(handle, self._plain.get(node, known[node]), layout, node.meta["val"].dtype)

    def joined(self, node: Node, sources: list[Node], dim: int) -> list[Node]:
        """Returns the sources of a concatenation; an earlier concatenation replaces the longest prefix that it joined."""
        if self.is_integer:  # each concatenation has its own scale
            return sources
        self._joined[tuple(sources), dim] = node
        for count in range(len(sources) - 1, 1, -1) if len(sources) > MAX_CONCATENATED else ():
            if earlier := self._joined.get((tuple(sources[:count]), dim)):
                return [earlier, *sources[count:]]
        return sources

    # -- values --

    def add(self, kind: str, node: Node, limits: tuple[float, float] | None = None, **fields: object) -> None:
        """Adds an XNNPACK node for a node of the graph. If the node includes a clamp, it applies to its last XNNPACK node."""
        handle = node.meta.get("debug_handle", 0)
        if self._limits is not None:
            result = self._stands_for[node]
            if fields["output_id"] in (self._plain.get(result), self._nhwc.get(result)):
                limits = self._limits
        self.payload.node(kind, handle, limits, flags=fields.pop("flags", 0), **fields)

    def binary(self, kind: str, node: Node, left: int, right: int, result: int) -> None:
        """Adds an XNNPACK node with two operands."""
        self.add(kind, node, input1_id=left, input2_id=right, output_id=result)

    def element(self, node: Node) -> Element:
        """Returns the element type of a node's value."""
        node = self._stands_for.get(node, node)
        val = node.meta["val"]
        val = val[0] if isinstance(val, (list, tuple)) else val
        element = FLOATS.get(val.dtype) or int8_element(node)
        assert element is not None, f"{node}: checked before"
        return element

    def constant(self, node: Node) -> torch.Tensor | None:
        """Returns the tensor that a node stores or dequantizes from stored integers; None if the node is computed."""
        node = self._stands_for.get(node, node)
        if node not in self._constants and role(node) in ("weights", "dequantize"):
            sources = [arg(node, 0), *(other for other in node.all_input_nodes if other is not arg(node, 0))]
            if all(source in self._constants for source in sources):
                args, kwargs = map_nodes((node.args, dict(node.kwargs)), self._constants.__getitem__)
                self._constants[node] = function(node)(*args, **kwargs)
        return self._constants.get(node)

    def stored(self, node: Node) -> torch.Tensor:
        """Returns the same for a node that `check` found to be stored."""
        tensor = self.constant(node)
        assert tensor is not None, f"{node}: checked before"
        return tensor

    def mark_transposed(self, node: Node) -> None:
        """Marks a node as lowered by its users, which transpose its source themselves."""
        self._transposed.add(node)

    def is_transposed(self, node: Node) -> bool:
        """Returns whether `mark_transposed` marked a node."""
        return node in self._transposed

    def is_result(self, node: Node) -> bool:
        """Returns whether a node is an output of the delegate that has no value yet."""
        return node in self._results

    @property
    def is_integer(self) -> bool:
        """Whether the node that is being lowered becomes an integer node."""
        return self._is_integer

    @property
    def is_clamped(self) -> bool:
        """Whether the node that is being lowered includes a clamp."""
        return self._limits is not None

    def compute_in(self, element: Element) -> None:
        """Sets the element type of intermediate values until the next node of the graph is lowered."""
        self._element = element

    def scalar(self, value: float) -> int:
        """Adds a constant of one element, with the type of the node that is being lowered."""
        dtype = torch.float16 if self._element.type == "fp16" else torch.float32
        return self.payload.constant(torch.tensor([value], dtype=dtype))

    def weights(self, node: Node, source: Node, axis: int = 0, order: Sequence[int] = (0, 1)) -> int:
        """Adds stored weights with their dimensions in another order; returns the id. Computed weights keep their order.

        Args:
            node: the weights.
            source: the input of the layer.
            axis: the dimension of the outputs, in the new order.
            order: the permutation of the dimensions.
        """

        def arrange(tensor: torch.Tensor) -> torch.Tensor:
            tensor = tensor.unsqueeze(-2) if tensor.dim() == 3 else tensor
            return tensor.permute(tuple(order))

        stored = weights_of(node, self._constants)
        if stored is None or not self._uses_integers(stored, source):
            tensor = self.constant(node)
            return self.plain(node) if tensor is None else self.payload.constant(arrange(tensor))
        arranged = arrange(stored.data)
        outputs = arranged.shape[axis]
        if not self.is_integer:
            scales = stored.scales.expand(outputs) if stored.scales.numel() == 1 else stored.scales
            if stored.bits == 4 and arranged.dim() == 2:
                return self.payload.four_bits(arranged, scales)
            return self.payload.channelwise(arranged, scales, axis)
        if stored.scales.numel() == 1 and outputs != 1:
            return self.payload.constant(arranged, Element("qint8", stored.scales.item()))
        return self.payload.channelwise(arranged, stored.scales, axis)

    def _uses_integers(self, weights: Weights, source: Node) -> bool:
        """Returns whether XNNPACK receives stored weights as integers if the layer's input is `source`."""
        by_rows = role(source) == "dequantize rows"
        of_image = by_rows and weights.data.dim() != 2
        fit = (
            self.is_integer
            or of_image
            or (weights.supports_rows() and (by_rows or weights.scales.dim() == 1))
        )
        return fit and self._element.type != "fp16"

    def scales_bias(self, source: Node, weight: Node) -> bool:
        """Returns whether a linear layer has a floating-point source and integer weights."""
        stored = weights_of(weight, self._constants)
        if stored is None or self.is_integer or role(source) == "dequantize rows":
            return False
        return self._uses_integers(stored, source)

    def bias(self, node: Node | None, source: Node, weight: Node) -> int:
        """Adds a layer's bias and returns its id, or NONE. A bias of an integer layer has the scales of the accumulators."""
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
        quantized = torch.round(tensor.double() / scales.double()).clamp(-(2**31), 2**31 - 1).to(torch.int32)
        if scales.numel() == 1 and quantized.numel() != 1:  # one scale for several outputs
            return self.payload.constant(quantized, Element("qint32", scales.item()))
        return self.payload.channelwise(quantized, scales, 0)

    def plain(self, node: Node) -> int:
        """Returns the value of a node in torch's order of dimensions."""
        node = self._stands_for.get(node, node)
        if node in self._plain:
            return self._plain[node]
        stored = self.constant(node)
        dims = dims_of(node.meta["val"])
        if stored is not None:
            value_id = self.payload.constant(stored, self.element(node))
        elif node in self._nhwc:
            value_id = self._permuted(node, self._nhwc[node], dims, TO_NCHW)
        else:
            value_id = self._dequantized(node, self.plain(arg(node, 0)), self._result_value(node, dims))
        self._plain[node] = value_id
        return value_id

    def image(self, node: Node) -> int:
        """Returns the value of a node in NHWC. The node has four dimensions, or three, which get a height of 1."""
        node = self._stands_for.get(node, node)
        if node not in self._nhwc:
            stored = self.constant(node)
            dims = image_dims(dims_of(node.meta["val"]))
            if stored is not None:
                value_id = self.payload.constant(image_tensor(stored, stored.dim()), self.element(node))
            elif node not in self._plain and self.is_image(node):
                value = self.payload.value(dims, self.element(node))
                value_id = self._dequantized(node, self.image(arg(node, 0)), value)
            else:
                value_id = self._permuted(node, self.plain(node), dims, TO_NHWC)
            self._nhwc[node] = value_id
        return self._nhwc[node]

    def is_image(self, node: Node) -> bool:
        """Returns whether a node's value exists in NHWC only."""
        node = self._stands_for.get(node, node)
        if node in self._plain or node in self._nhwc:
            return node not in self._plain
        return role(node) == "dequantize" and self.is_image(arg(node, 0))

    def _dequantized(self, node: Node, source: int, result: int) -> int:
        self.payload.node(
            "XNNConvert", node.meta.get("debug_handle", 0), input_id=source, output_id=result, flags=0
        )
        return result

    def _permuted(self, node: Node, source: int, dims: list[int], order: Sequence[int]) -> int:
        """Converts a node's value to NHWC or NCHW with the given dimensions."""
        to_image = order == TO_NHWC
        result = self.payload.value(dims, self.element(node)) if to_image else self._result_value(node, dims)
        image = dims if to_image else image_dims(dims)
        static = not any(isinstance(size, torch.SymInt) for size in node.meta["val"].shape)
        if static and (image[3] == 1 or image[1] * image[2] == 1):
            self.reshape_to(node, source, dims, result)  # moving dimensions of size 1 moves no element
        elif node.meta["val"].dim() == 3:
            # adds or removes the height of 1
            middle = self.payload.value([image[0], image[2], image[3]], self.element(node))
            batch, height, width, channels = image_dims(sizes_of(node.meta["val"]))
            if to_image:
                self.transpose(node, source, (0, 2, 1), middle)
                self.reshape_to(node, middle, [batch, height, width, channels], result)
            else:
                self.reshape_to(node, source, [batch, width, channels], middle)
                self.transpose(node, middle, (0, 2, 1), result)
        else:
            self.transpose(node, source, order, result)
        return result

    def transpose(self, node: Node, source: int, order: Sequence[int], result: int) -> None:
        """Adds a node that permutes dimensions."""
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
        """Adds a value for a node in torch's order. It is an output of the delegate if the node is an output without a value."""
        argument_indices = self._results.get(node)
        if argument_indices:
            argument = argument_indices.pop(0)
            if not argument_indices:
                del self._results[node]
            return self.payload.value(dims, self.element(node), argument=argument, output=True)
        return self.payload.value(dims, self.element(node))

    def result(self, node: Node) -> int:
        """Adds the value of a node's result in torch's order of dimensions."""
        node = self._stands_for.get(node, node)
        self._plain[node] = self._result_value(node, dims_of(node.meta["val"]))
        return self._plain[node]

    def image_result(self, node: Node) -> int:
        """Adds the value of a node's result in NHWC."""
        node = self._stands_for.get(node, node)
        dims = image_dims(dims_of(node.meta["val"]))
        self._nhwc[node] = self.payload.value(dims, self.element(node))
        return self._nhwc[node]

    def scratch(self, dims: Sequence[int], element: Element | None = None) -> int:
        """Adds an intermediate value."""
        return self.payload.value(dims, element or self._element)

    def scratch_like(self, node: Node) -> int:
        """Adds an intermediate value with the shape and order of a node's value."""
        dims = dims_of(node.meta["val"])
        return self.scratch(image_dims(dims) if self.is_image(node) else dims)

    def alias(self, node: Node, source: Node) -> None:
        """Makes a node share the values of another node."""
        node, source = (self._stands_for.get(one, one) for one in (node, source))
        if source not in self._plain and source not in self._nhwc and source not in self._constants:
            self.plain(source)  # dequantizes it
        for values in (self._plain, self._nhwc):
            if source in values:
                values[node] = values[source]
        if source in self._constants:
            self._constants[node] = self._constants[source]

    def reshape_to(self, node: Node, source: int, sizes: Sequence[int], result: int) -> None:
        """Adds a node that reshapes a value. One size may be 0; XNNPACK infers it from the others."""
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
        """Lowers a node that reshapes its source."""
        value = self.plain(source)
        self.reshape_to(node, value, sizes_of(node.meta["val"]), self.result(node))


MAX_CONCATENATED = 5  # the maximum number of values that one node concatenates


def operands_and_result(lowering: Lowering, node: Node, *sources: Node) -> tuple[list[int], int]:
    """Returns the operands and the result of an operator that works in any order of dimensions: in NHWC if an operand is NHWC."""
    rank = node.meta["val"].dim()
    if any(lowering.is_image(source) for source in sources) and all(
        _fits_image(lowering, source, rank) for source in sources
    ):
        return [_as_image(lowering, source, rank) for source in sources], lowering.image_result(node)
    values = [lowering.plain(source) for source in sources]
    return values, lowering.result(node)


def _fits_image(lowering: Lowering, node: Node, rank: int) -> bool:
    if rank not in IMAGES or lowering.constant(node) is not None:
        return rank in IMAGES
    value = node.meta["val"]
    if value.dim() != rank:
        return bool(value.numel() == 1)
    # A reshape adds the height of 1 to a sequence and infers one dimension.
    return rank == 4 or lowering.is_image(node) or sizes_of(value).count(0) <= 1


def _as_image(lowering: Lowering, node: Node, rank: int) -> int:
    if node.meta["val"].dim() == rank:
        return lowering.image(node)
    stored = lowering.constant(node)
    if stored is None:
        return lowering.plain(node)  # a single element broadcasts in any order
    return lowering.payload.constant(image_tensor(stored, rank), lowering.element(node))
