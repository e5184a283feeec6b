# SPDX-License-Identifier: BSD-3-Clause
# In: a linear layer with dequantized weights. Out: the layer of the runtime that reads the integers, or None.
"""`weight_only_linear`: linear layers with 8- and 4-bit weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.fx import Node

from torchette.backends.vulkan.operators import name_of
from torchette.exir.arguments import ints_arg, node_arg


@dataclass
class WeightOnlyLinear:
    """A linear layer with integer weights.

    Attributes:
        name: the operator of the runtime.
        weights: int8 (outputs, inputs), or two 4-bit weights per uint8 (outputs, inputs / 2).
        scales: (outputs), or (groups, outputs).
        group: number of inputs that share a scale.
    """

    name: str
    weights: torch.Tensor
    scales: torch.Tensor
    group: int


def weight_only_linear(node: Node, stored: Mapping[Node, torch.Tensor]) -> WeightOnlyLinear | None:
    """Returns the layer of a node, or None if the node is not a linear layer with supported quantized weights."""
    layer = name_of(node.target) if node.op == "call_function" else ""
    if layer not in ("aten.linear.default", "aten.mm.default") or not isinstance(
        weight := node.args[1], Node
    ):
        return None
    kind, args = name_of(weight.target), weight.args
    if layer == "aten.mm.default":  # torchao's form, which multiplies by the scales afterwards
        values = stored.get(node_arg(weight)) if kind == "aten._to_copy.default" else None
        if values is None or values.dtype is not torch.int8:
            return None
        depth, columns = values.shape
        ones = torch.ones(columns)
        return WeightOnlyLinear("aten._weight_int8pack_mm.default", values.t().contiguous(), ones, depth)
    if kind == "torchao.dequantize_affine.default":
        block, (scale, zero) = ints_arg(weight, 1), args[2:4]
        low, high = (args[5], args[6]) if len(args) > 6 else (-128, 127)
    elif kind == "quantized_decomposed.dequantize_per_channel.default" and args[3] == 0:
        (scale, zero), (low, high) = args[1:3], args[4:6]
        block = [1, -1]
    else:
        return None
    values, scales = stored.get(node_arg(weight)), stored.get(scale) if isinstance(scale, Node) else None
    zeros = stored.get(zero) if isinstance(zero, Node) else torch.zeros(()) if zero is None else None
    if values is None or scales is None or zeros is None or values.dtype is not torch.int8 or block[0] != 1:
        return None
    columns, depth = values.shape
    group = depth if block[1] == -1 else block[1]
    if zeros.any() or depth % group or scales.numel() != columns * depth // group:
        return None
    scales = scales.float().reshape(columns, -1).t().contiguous()
    if (
        isinstance(low, (int, float))
        and isinstance(high, (int, float))
        and low >= -8
        and high <= 7
        and depth % 2 == 0
    ):
        nibbles = (values + 8).to(torch.uint8)
        return WeightOnlyLinear(
            "et_vk.linear_q4gsw.default", nibbles[:, ::2] | nibbles[:, 1::2] << 4, scales, group
        )
    one = scales[0] if len(scales) == 1 else scales
    return WeightOnlyLinear("aten._weight_int8pack_mm.default", values, one, group)
