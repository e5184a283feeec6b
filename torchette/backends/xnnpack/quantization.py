# SPDX-License-Identifier: BSD-3-Clause
# In: nodes of PT2E and torchao that quantize and dequantize. Out: the equivalent types and weights of XNNPACK.
"""Reads quantized graphs, which have `quantize` and `dequantize` around operators in floating point."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # declares torch.ops.quantized_decomposed
from torch.fx import Node

from torchette.backends.xnnpack.payload import Element
from torchette.exir.arguments import ints_arg, node_arg, number_arg

_NAMES = {
    "quantized_decomposed.quantize_per_tensor.default": "quantize",
    "quantized_decomposed.dequantize_per_tensor.default": "dequantize",
    "quantized_decomposed.dequantize_per_channel.default": "weights",
    "quantized_decomposed.dequantize_per_channel_group.default": "weights",
    "quantized_decomposed.quantize_per_tensor.tensor": "quantize rows",
    "quantized_decomposed.quantize_per_token.default": "quantize rows",
    "quantized_decomposed.dequantize_per_tensor.tensor": "dequantize rows",
    "quantized_decomposed.dequantize_per_token.default": "dequantize rows",
    "quantized_decomposed.choose_qparams.tensor": "choose",
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default": "choose",
    "torchao.choose_qparams_affine.default": "choose",
    "torchao.quantize_affine.default": "quantize rows",
    "torchao.dequantize_affine.default": "affine",  # of rows or of weights
}

GROUP = 32  # XNNPACK's groups of weights have a multiple of this size


@functools.cache
def _role(target: object) -> str | None:
    return _NAMES.get(str(target))


def role(node: object) -> str | None:
    """Returns the role of a node in a quantized graph, or None.

    The roles are "quantize" and "dequantize" (with a constant scale and zero point), "choose" (computes the scale and zero point of
    rows), "quantize rows", "dequantize rows", and "weights" (dequantizes stored weights).
    """
    if not isinstance(node, Node) or node.op != "call_function":
        return None
    role_of_target = _role(node.target)
    if role_of_target == "affine":
        return "dequantize rows" if role(node.args[0]) == "quantize rows" else "weights"
    if role_of_target == "dequantize rows" and role(node.args[0]) != "quantize rows":
        return "weights"
    return role_of_target


def choose_node_of(node: Node) -> Node | None:
    """Returns the "choose" node that computes the scale and zero point of a "quantize rows" node from the same tensor, or None."""
    numbers = [arg for arg in node.all_input_nodes if arg is not node.args[0]]
    sources = {arg.args[0] for arg in numbers if arg.target is operator.getitem}
    if len(numbers) != 2 or len(sources) != 1:
        return None
    (source,) = sources
    if not isinstance(source, Node) or role(source) != "choose":
        return None
    return source if source.args[0] is node.args[0] else None


def rows_source(node: object, constants: Mapping[Node, torch.Tensor]) -> Node | None:
    """Returns the floating-point source of a "dequantize rows" node if XNNPACK can run the nodes between them, else None.

    A "choose" node must compute the scale and zero point from that source. The source must be quantized by row or as one tensor;
    XNNPACK quantizes by row or by image in both cases. All users must be layers with stored weights.
    """
    if not isinstance(node, Node) or role(node) != "dequantize rows":
        return None
    rows = node_arg(node)
    chosen = choose_node_of(rows)
    if chosen is None or node_arg(chosen).meta["val"].dtype is not torch.float32:
        return None
    if _role(rows.target) == "quantize rows" and str(rows.target).startswith("torchao"):
        *outer, inner = ints_arg(rows, 1)
        if set(outer) - {1} or inner != rows.meta["val"].shape[-1]:
            return None
    if rows.meta["val"].dtype is not torch.int8 or not all(
        role(user) == "dequantize rows" for user in rows.users
    ):
        return None
    numbers = {user for part in chosen.users for user in part.users}
    if not numbers <= {rows, *rows.users}:
        return None
    for reader in (reader for user in rows.users for reader in user.users):
        is_layer = reader.target in _LAYERS and role(reader.args[0]) == "dequantize rows"
        weights = weights_of(reader.args[1], constants) if is_layer else None
        if weights is None or not _layer_supports_rows(weights, reader):
            return None
        if any(bias is not None and bias not in constants for bias in reader.args[2:3]):
            return None
    return node_arg(chosen)


_LAYERS = {torch.ops.aten.linear.default, torch.ops.aten.convolution.default}


def _layer_supports_rows(weights: Weights, layer: Node) -> bool:
    """Returns whether XNNPACK has a layer for rows, or for images, that are quantized at run time."""
    if layer.target == torch.ops.aten.linear.default:
        return weights.supports_rows() and weights.accumulators_fit(0)
    transposed, groups = layer.args[6], layer.args[8]
    data, axis = weights.data, int(bool(transposed))
    if groups != 1 and (transposed or data.shape[1] == 1):  # grouped transposed, or depthwise
        return False
    fits = weights.scales.dim() == 1 and (weights.scales.numel() == 1 or weights.axis == axis)
    return fits and data.dim() in (3, 4) and weights.accumulators_fit(axis)


def _is_scale(scale: float) -> bool:
    """Returns whether XNNPACK accepts a scale: positive, finite and not subnormal."""
    return torch.finfo(torch.float32).tiny <= scale < math.inf


def element_of(node: Node) -> Element | None:
    """Returns the element type of the integers of a "quantize" or "dequantize" node; None if XNNPACK does not support it."""
    scale, _, low, high, dtype = node.args[1:6]
    if dtype is not torch.int8 or low not in (-128, -127) or high != 127:
        return None
    single = float(torch.tensor(scale, dtype=torch.float32))
    return Element("qint8", single, int(number_arg(node, 2))) if _is_scale(single) else None


def int8_element(node: Node) -> Element | None:
    """Returns the element type of an int8 tensor, from the nodes that produce and read it; None if they differ."""
    nodes = [node] if role(node) == "quantize" else []
    nodes += [user for user in node.users if role(user) == "dequantize"]
    elements = {element_of(other) for other in nodes}
    return elements.pop() if len(elements) == 1 else None


@dataclass
class Weights:
    """Stored integer weights and their scales; the zero point is 0.

    Attributes:
        data: the weights, int8.
        scales: float32, with the shape (1,), (size of dimension `axis`,) or (outputs, groups).
        axis: the dimension of the outputs.
        bits: the width of a weight, 8 or 4.
    """

    data: torch.Tensor
    scales: torch.Tensor
    axis: int
    bits: int

    def supports_rows(self) -> bool:
        """Returns whether a linear layer accepts them with an input in floating point or quantized by row."""
        if self.data.dim() != 2 or self.axis != 0:
            return False
        if self.scales.dim() == 1:
            return True
        return self.bits == 4 and self.data.shape[1] // self.scales.shape[1] % GROUP == 0

    def accumulators_fit(self, axis: int, added: float = 0.0) -> bool:
        """Returns whether all accumulators of a layer with 8-bit inputs fit in XNNPACK's 32 bits.

        Args:
            axis: the dimension of the outputs.
            added: the maximum magnitude of the quantized bias.
        """
        limit = (2**31 - added) / 255  # the maximum distance of an 8-bit value from its zero point
        if self.data.numel() // self.data.shape[axis] * 128 < limit:
            return True
        others = [dim for dim in range(self.data.dim()) if dim != axis]
        return int(self.data.to(torch.int16).abs().sum(others, dtype=torch.int64).max()) < limit


def weights_of(node: object, constants: Mapping[Node, torch.Tensor]) -> Weights | None:
    """Returns the stored weights that a node dequantizes; None if it does not dequantize weights, or XNNPACK does not support
    their quantization."""
    kind = role(node)
    if (
        not isinstance(node, Node)
        or kind not in ("weights", "dequantize")
        or not all(arg in constants for arg in node.all_input_nodes)
    ):
        return None
    data = constants[node_arg(node)]
    name = str(node.target)
    if kind == "dequantize":
        scale, zero_point, low, high, dtype = node.args[1:6]
        scales, zeros, axis = torch.tensor([scale]), torch.tensor([zero_point]), 0
    elif name == "quantized_decomposed.dequantize_per_channel.default":
        scales, zeros, axis, low, high, dtype = (_stored(arg, constants) for arg in node.args[1:7])
    elif name == "quantized_decomposed.dequantize_per_channel_group.default":
        scales, zeros, low, high, dtype = (_stored(arg, constants) for arg in node.args[1:6])
        axis = 0
    elif name == "torchao.dequantize_affine.default":
        block, scales, zeros, dtype, low, high = (
            _stored(arg, constants) for arg in (*node.args[1:], None, None)[:6]
        )
        if data.dim() != 2 or block[0] != 1 or data.shape[1] % block[1]:
            return None
        scales, axis = scales.reshape(data.shape[0], -1), 0
        low, high = (-128, 127) if low is None else (low, high)
    else:  # the scale is a tensor
        scales, zeros, low, high, dtype = (_stored(arg, constants) for arg in node.args[1:6])
        axis = 0
    if (
        data.dtype is not torch.int8
        or dtype is not torch.int8
        or (zeros is not None and torch.any(zeros != 0))
    ):
        return None
    if not all(map(_is_scale, scales.to(torch.float32).flatten().tolist())):
        return None
    if scales.dim() == 2 and scales.shape[1] == 1:
        scales = scales.reshape(-1)
    bits = 4 if (low, high) in ((-8, 7), (-7, 7)) else 8
    return Weights(data, scales.to(torch.float32).reshape(scales.shape or (1,)), axis, bits)


def _stored(value: object, constants: Mapping[Node, torch.Tensor]) -> Any:
    return constants[value] if isinstance(value, Node) else value
