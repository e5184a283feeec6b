# SPDX-License-Identifier: BSD-3-Clause
# In: a node between nodes that dequantize and quantize. Out: its integer form, or None.
"""Matches operators that XNNPACK runs on integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.nodes import arg, arguments, only_user, option, reduced_dims
from torchette.backends.xnnpack.operators.table import UNARY
from torchette.backends.xnnpack.payload import Element
from torchette.backends.xnnpack.quantization import int8_element, role, weights_of
from torchette.exir.arguments import checked

aten = torch.ops.aten


def limits_of(node: Node) -> tuple[float, float]:
    """Returns the minimum and maximum of a clamp."""
    low, high = (*arguments(node)[1:], None, None)[:2]
    if node.target == aten.relu.default:
        return 0.0, math.inf
    if node.target == aten.hardtanh.default:
        low, high = (-1.0 if low is None else low), (1.0 if high is None else high)
    return (-math.inf if low is None else float(low)), (math.inf if high is None else float(high))


# Operators that XNNPACK also has on integers: if source and result share a scale (SAME_SCALE), or with any scales (ANY_SCALE).
SAME_SCALE = {
    aten.max_pool2d_with_indices.default, aten.cat.default, aten.relu.default, aten.hardtanh.default, aten.clamp.default,
    aten.view_copy.default, aten.unsqueeze_copy.default, aten.squeeze_copy.dim, aten.squeeze_copy.dims, aten.clone.default,
    aten.permute_copy.default, aten.slice_copy.Tensor, aten.select_copy.int, aten.constant_pad_nd.default,
}  # fmt: skip


ANY_SCALE = {
    aten.convolution.default, aten.linear.default, aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.mean.dim,
    aten.leaky_relu.default, aten.elu.default, *UNARY,
}  # fmt: skip


CLAMPS = {aten.relu.default, aten.hardtanh.default, aten.clamp.default}


# Operators with nodes that can clamp their results.
CLAMPED = {
    aten.convolution.default, aten.linear.default, aten.addmm.default, aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor,
}  # fmt: skip


def fused_clamp(node: Node) -> Node | None:
    """Returns the clamp that the XNNPACK node of a floating-point operator applies to its result, or None."""
    clamp = only_user(node)
    if node.target not in CLAMPED or clamp is None or clamp.target not in CLAMPS:
        return None
    low, high = limits_of(clamp)
    return clamp if low <= 0 <= high else None  # XNNPACK rejects a fused range without 0


def integer_form(
    node: Node, constants: Mapping[Node, torch.Tensor], element_of: Callable[[Node], Element]
) -> tuple[dict[Node, Node], tuple[float, float] | None, set[Node]] | None:
    """Returns the integer form of an operator, or None if XNNPACK does not have it.

    Returns:
        The integer nodes that replace the node and its sources, the limits of a clamp that is fused, and the subsequent nodes that
        the integer form includes.
    """
    if node.target not in SAME_SCALE and node.target not in ANY_SCALE:
        return None
    holder: Node | None = node
    covered: list[Node] = []
    limits = None
    if node.target == aten.max_pool2d_with_indices.default:
        holder = only_user(node)
    result = only_user(holder) if holder is not None else None
    if result is not None and node.target in CLAMPED and result.target in CLAMPS:
        limits, covered = limits_of(result), [result]
        result = only_user(result)
    if role(result) != "quantize":
        return None
    assert result is not None
    element = int8_element(result)
    assert element is not None, f"{result}: checked before"
    sources = {}
    weighted = node.target in (aten.convolution.default, aten.linear.default)
    for source in node.all_input_nodes[:1] if weighted else node.all_input_nodes:
        if role(source) != "dequantize":
            return None
        sources[source] = arg(source, 0)
    if weighted:
        weights = weights_of(option(node, 1), constants)
        if weights is None or weights.scales.dim() != 1:
            return None
        axis = int(node.target == aten.convolution.default and bool(option(node, 6)))  # 1 if it is transposed
        if weights.scales.numel() > 1 and weights.axis != axis:
            return None
    elements = [element_of(source) for source in sources.values()]
    if weighted and weights is not None:
        bias = constants.get(option(node, 2))
        steps = weights.scales.double() * elements[0].scale
        if not weights.accumulators_fit(
            axis, 0.0 if bias is None else float((bias.detach().double() / steps).abs().max())
        ):
            return None
    if node.target in SAME_SCALE and any(other != element for other in elements):
        return None
    if node.target == aten.mean.dim and (arg(node, 0).meta["val"].dim(), reduced_dims(node)) != (4, [2, 3]):
        return None
    for low, high in [limits] if limits else [limits_of(node)] if node.target in CLAMPS else []:
        least, most = (max(-128, min(127, round(x / element.scale + element.zero_point) if abs(x) < 1e30 else math.copysign(128, x))) for x in (low, high))  # fmt: skip
        if least >= most:
            return None
    return {**sources, node: result, checked(holder, Node): result}, limits, {*covered, result}
