# SPDX-License-Identifier: BSD-3-Clause
"""Elementwise operators with one operand, and clamps."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.integers import limits_of
from torchette.backends.xnnpack.operators.lowering import Lowering, operands_and_result
from torchette.backends.xnnpack.operators.nodes import arg, arguments
from torchette.backends.xnnpack.operators.table import OPERATORS, UNARY, Emit, Operator, Refused, register
from torchette.backends.xnnpack.payload import FP16, FP32
from torchette.backends.xnnpack.quantization import role

aten = torch.ops.aten


def emit_unary(kind: str) -> Emit:
    """Returns a function that lowers an operator to one node with one operand."""

    def emit(lowering: Lowering, node: Node) -> None:
        (source,), result = operands_and_result(lowering, node, arg(node, 0))
        lowering.add(kind, node, input_id=source, output_id=result)

    return emit


for _target, _kind in UNARY.items():
    OPERATORS[_target] = Operator(lambda node, is_constant: None, emit_unary(_kind))


def emit_root(lowering: Lowering, node: Node) -> None:
    """Lowers a square root. Computes float16 in float32: XNNPACK's float16 kernel returns -0 instead of NaN for negative values."""
    if lowering.element(node) != FP16:
        emit_unary("XNNSquareRoot")(lowering, node)
        return
    (source,), result = operands_and_result(lowering, node, arg(node, 0))
    lowering.compute_in(FP32)
    wide, root = lowering.scratch_like(node), lowering.scratch_like(node)
    lowering.add("XNNConvert", node, input_id=source, output_id=wide)
    lowering.add("XNNSquareRoot", node, input_id=wide, output_id=root)
    lowering.add("XNNConvert", node, input_id=root, output_id=result)


OPERATORS[aten.sqrt.default] = Operator(lambda node, is_constant: None, emit_root)


def _clamped(low: float, high: float) -> Emit:
    def emit(lowering: Lowering, node: Node) -> None:
        (source,), result = operands_and_result(lowering, node, arg(node, 0))
        if low <= 0 <= high:
            lowering.add("XNNClamp", node, (low, high), input_id=source, output_id=result)
            return
        # XNNPACK fuses a clamp with a range that excludes 0 into the convolution before it, and then fails.
        steps = [("XNNMaximum", low), ("XNNMinimum", high)]
        steps = [(kind, limit) for kind, limit in steps if math.isfinite(limit)]
        for i, (kind, limit) in enumerate(steps):
            last = i + 1 == len(steps)
            value = result if last else lowering.scratch_like(node)
            lowering.binary(kind, node, source, lowering.scalar(limit), value)
            source = value

    return emit


OPERATORS[aten.relu.default] = Operator(lambda node, is_constant: None, _clamped(0.0, math.inf))


def _clamp_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if any(isinstance(arg, Node) for arg in arguments(node)[1:]) or node.kwargs:
        raise Refused("a limit is a tensor")
    if limits_of(node)[0] >= limits_of(node)[1]:
        raise Refused("the minimum is not less than the maximum")
    if not limits_of(node)[0] <= 0 <= limits_of(node)[1] and role(arg(node, 0)) == "dequantize":
        raise Refused("limits on integers that exclude 0")


@register(aten.clamp.default, aten.hardtanh.default, check=_clamp_check)
def _clamp(lowering: Lowering, node: Node) -> None:
    _clamped(*limits_of(node))(lowering, node)
