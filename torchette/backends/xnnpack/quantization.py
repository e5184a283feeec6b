# SPDX-License-Identifier: BSD-3-Clause
# Nodes that quantize and dequantize, as PT2E and torchao spell them, come in; what they mean to the library goes out.
"""Reads quantized graphs: `quantize` and `dequantize` around operators in floating point."""

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

GROUP = 32  # the library's groups of weights are multiples of it


@functools.cache
def _role(target: object) -> str | None:
    return _NAMES.get(str(target))


def role(node: object) -> str | None:
    """What a node does in a quantized graph: "quantize", "dequantize" (both with numbers that are known), "choose"
    (numbers for rows), "quantize rows", "dequantize rows", "weights"; None for any other node."""
    if not isinstance(node, Node) or node.op != "call_function":
        return None
    found = _role(node.target)
    if found == "affine":
        return "dequantize rows" if role(node.args[0]) == "quantize rows" else "weights"
    if found == "dequantize rows" and role(node.args[0]) != "quantize rows":
        return "weights"
    return found


def chosen_for(node: Node) -> Node | None:
    """The node whose numbers "quantize rows" uses: a "choose" of the same tensor."""
    numbers = [arg for arg in node.all_input_nodes if arg is not node.args[0]]
    sources = {arg.args[0] for arg in numbers if arg.target is operator.getitem}
    if len(numbers) != 2 or len(sources) != 1:
        return None
    (source,) = sources
    if not isinstance(source, Node) or role(source) != "choose":
        return None
    return source if source.args[0] is node.args[0] else None


def rows_source(node: object, constants: Mapping[Node, torch.Tensor]) -> Node | None:
    """The floating-point tensor behind a "dequantize rows", if the library can run all that belongs to it: numbers
    chosen for that tensor, rows quantized with them (or the whole tensor, which the library does by rows and by images
    too), and nothing but layers with stored weights that read them."""
    if not isinstance(node, Node) or role(node) != "dequantize rows":
        return None
    rows = node_arg(node)
    chosen = chosen_for(rows)
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
        if weights is None or not _fit_rows(weights, reader):
            return None
        if any(bias is not None and bias not in constants for bias in reader.args[2:3]):
            return None
    return node_arg(chosen)


_LAYERS = {torch.ops.aten.linear.default, torch.ops.aten.convolution.default}


def _fit_rows(weights: Weights, layer: Node) -> bool:
    """Whether the library has a layer of rows, or of whole images, that are quantized at run time."""
    if layer.target == torch.ops.aten.linear.default:
        return weights.fit_rows() and weights.sums_fit(0)
    transposed, groups = layer.args[6], layer.args[8]
    data, axis = weights.data, int(bool(transposed))
    if groups != 1 and (transposed or data.shape[1] == 1):  # in groups, or of single channels
        return False
    fits = weights.scales.dim() == 1 and (weights.scales.numel() == 1 or weights.axis == axis)
    return fits and data.dim() in (3, 4) and weights.sums_fit(axis)


def _is_scale(number: float) -> bool:
    """Whether the library takes a number as a scale: positive, finite, and no subnormal."""
    return torch.finfo(torch.float32).tiny <= number < math.inf


def element_of(node: Node) -> Element | None:
    """What the integers stand for that a "quantize" gives, or a "dequantize" takes; None if the library has no such."""
    scale, _, low, high, dtype = node.args[1:6]
    if dtype is not torch.int8 or low not in (-128, -127) or high != 127:
        return None
    single = float(torch.tensor(scale, dtype=torch.float32))
    return Element("qint8", single, int(number_arg(node, 2))) if _is_scale(single) else None


def int8_element(node: Node) -> Element | None:
    """What the elements of an int8 tensor stand for, as who gives it or who takes it says; None if they differ."""
    said = [node] if role(node) == "quantize" else []
    said += [user for user in node.users if role(user) == "dequantize"]
    elements = {element_of(other) for other in said}
    return elements.pop() if len(elements) == 1 else None


@dataclass
class Weights:
    """Stored whole numbers and their scales; the zero point is 0.

    Attributes:
        data: int8.
        scales: of one dimension, with one number or one per index of dimension `axis`; of two (outputs, groups).
        bits: 8 or 4.
    """

    data: torch.Tensor
    scales: torch.Tensor
    axis: int
    bits: int

    def fit_rows(self) -> bool:
        """Whether a linear layer can have them where its input is quantized by rows, or not at all."""
        if self.data.dim() != 2 or self.axis != 0:
            return False
        if self.scales.dim() == 1:
            return True
        return self.bits == 4 and self.data.shape[1] // self.scales.shape[1] % GROUP == 0

    def sums_fit(self, axis: int, added: float = 0.0) -> bool:
        """Whether no sum of products with 8-bit numbers leaves the 32 bits in which the library adds.

        Args:
            axis: where the outputs are.
            added: the greatest magnitude of what is added to a sum, as a whole number.
        """
        limit = (2**31 - added) / 255  # an 8-bit number is that far from its zero point at most
        if self.data.numel() // self.data.shape[axis] * 128 < limit:
            return True
        others = [dim for dim in range(self.data.dim()) if dim != axis]
        return int(self.data.to(torch.int16).abs().sum(others, dtype=torch.int64).max()) < limit


def weights_of(node: object, constants: Mapping[Node, torch.Tensor]) -> Weights | None:
    """The stored weights that a node dequantizes; None if it is none, or in a way that the library has not."""
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
    else:  # a tensor as scale
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
