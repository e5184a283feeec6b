# SPDX-License-Identifier: BSD-3-Clause
# In: a quantize node. Out: the integer layer of the runtime that computes its operand, or None.
"""`quantized_layer`: convolutions and linear layers between dequantize and quantize are computed in integers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchette.backends.vulkan.operators import name_of
from torchette.exir.arguments import node_arg, number_arg
from torchette.schema.engine import CONSTANTS

NAME = "torchette.quantized_convolution.default"
_QUANTIZE, _DEQUANTIZE = (
    f"quantized_decomposed.{way}_per_tensor.default" for way in ("quantize", "dequantize")
)
_MAX_DEPTH = CONSTANTS["kMaxIntegerDepth"]  # maximum number of 8-bit multiplications per 32-bit accumulator


@dataclass
class QuantizedLayer:
    """A layer: clamp(round((sum + bias) factor) + zero, low, high), with the integer sum of (input - input_zero)
    weight.

    Attributes:
        input: the node of the integers.
        weight: int8.
        terms: float32 (2, outputs), stored as int32: the addend of the accumulator, and the ratio of the accumulator's
            scale to the result's scale.
        parameters: input_zero, stride, padding, dilation, groups, zero, low, high.
    """

    input: Node
    weight: torch.Tensor
    terms: torch.Tensor
    parameters: list[Any]


def quantized_layer(node: Node, stored: Mapping[Node, torch.Tensor]) -> QuantizedLayer | None:
    """Returns the integer layer that ends in a quantize node, or None."""
    output_scheme = _scheme(node, _QUANTIZE)
    if output_scheme is None:
        return None
    scale, zero, low, high = output_scheme
    layer: Any = node.args[0]
    while len(layer.users) == 1 and (bounds := _bounds(layer)) is not None:
        inverse = torch.tensor(1.0 / scale)
        lower, upper = (int((torch.tensor(b) * inverse).round().clamp(-1e6, 1e6)) + zero for b in bounds)
        low, high, layer = max(low, lower), min(high, upper), layer.args[0]
    kind = name_of(layer.target) if layer.op == "call_function" else ""
    if kind not in ("aten.convolution.default", "aten.linear.default") or len(layer.users) > 1 or low > high:
        return None
    x, filters, bias = (*layer.args, None)[:3]
    input_scheme, weight = _scheme(x, _DEQUANTIZE), _weight(filters, stored)
    values = stored.get(bias) if bias is not None else torch.zeros(())
    if input_scheme is None or weight is None or values is None or x.args[0] in stored:
        return None
    integers, scales = weight
    if integers[0].numel() > _MAX_DEPTH or (kind == "aten.convolution.default" and layer.args[6]):
        return None
    scales = scales * input_scheme[0]
    terms = torch.stack([values.double() / scales, scales / scale]).float().view(torch.int32)
    geometry = [*layer.args[3:6], layer.args[8]] if kind == "aten.convolution.default" else [[1], [0], [1], 1]
    return QuantizedLayer(x.args[0], integers, terms, [input_scheme[1], *geometry, zero, low, high])


def _scheme(node: object, way: str) -> tuple[float, int, int, int] | None:
    """Returns scale, zero point and bounds of a quantize or dequantize node with 8-bit integers, or None."""
    if not isinstance(node, Node) or node.op != "call_function" or name_of(node.target) != way:
        return None
    real = node_arg(node) if way == _QUANTIZE else node
    if node.args[5] not in (torch.int8, torch.uint8) or real.meta["val"].dtype is not torch.float32:
        return None
    scale, zero, low, high = (number_arg(node, place) for place in (1, 2, 3, 4))
    return float(scale), int(zero), int(low), int(high)


def _bounds(node: Node) -> tuple[float, float] | None:
    """Returns the bounds of a clamp, or None."""
    kind = name_of(node.target) if node.op == "call_function" else ""
    if kind == "aten.relu.default":
        return 0.0, math.inf
    if kind not in ("aten.hardtanh.default", "aten.clamp.default"):
        return None
    limits: list[Any] = [*node.args[1:], None, None]
    low, high = (-1.0, 1.0) if kind == "aten.hardtanh.default" else (-math.inf, math.inf)
    return float(low if limits[0] is None else limits[0]), float(high if limits[1] is None else limits[1])


def _weight(node: object, stored: Mapping[Node, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Returns integers with zero point 0, and the float64 scale of each output, or None."""
    source = node.args[0] if isinstance(node, Node) and node.args else None
    values = stored.get(source) if isinstance(source, Node) else None
    if (
        not isinstance(node, Node)
        or values is None
        or values.dtype not in (torch.int8, torch.uint8)
        or values.dim() < 2
    ):
        return None
    kind = name_of(node.target)
    scale: Any = node.args[1]
    zero: Any = node.args[2]
    if kind == "quantized_decomposed.dequantize_per_channel.default" and node.args[3] == 0:
        scale, zero = stored.get(scale), torch.zeros(()) if zero is None else stored.get(zero)
    elif kind != _DEQUANTIZE:
        return None
    if scale is None or zero is None:
        return None
    outputs = (values.shape[0],)
    scales, zeros = (torch.as_tensor(value).detach().double().expand(outputs) for value in (scale, zero))
    integers = values.double() - zeros.reshape(-1, *[1] * (values.dim() - 1))
    if integers.numel() == 0 or integers.min() < -128 or integers.max() > 127:
        return None
    return integers.to(torch.int8), scales
