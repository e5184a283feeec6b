# SPDX-License-Identifier: BSD-3-Clause
"""Activations with parameters, or that become several nodes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.elementwise import emit_unary
from torchette.backends.xnnpack.operators.lowering import Lowering, operands_and_result
from torchette.backends.xnnpack.operators.nodes import (
    arg,
    arguments,
    check_no_float16_overflow,
    check_static_channels,
    option,
)
from torchette.backends.xnnpack.operators.table import Refused, register

aten = torch.ops.aten


@register(aten.gelu.default)
def _gelu(lowering: Lowering, node: Node) -> None:
    if node.kwargs.get("approximate", "none") == "none":
        emit_unary("XNNGelu")(lowering, node)
        return
    # x / 2 * (1 + tanh(u)) is x * sigmoid(2 u), with u = sqrt(2 / pi) * (x + 0.044715 x^3)
    (source,), result = operands_and_result(lowering, node, arg(node, 0))
    factor = 2 * math.sqrt(2 / math.pi)
    square, cubic, slope, twice, gate = (lowering.scratch_like(node) for _ in range(5))
    lowering.add("XNNSquare", node, input_id=source, output_id=square)
    lowering.binary("XNNMultiply", node, square, lowering.scalar(0.044715 * factor), cubic)
    lowering.binary("XNNAdd", node, cubic, lowering.scalar(factor), slope)
    lowering.binary("XNNMultiply", node, source, slope, twice)
    lowering.add("XNNSigmoid", node, input_id=twice, output_id=gate)
    lowering.binary("XNNMultiply", node, source, gate, result)


@register(aten.leaky_relu.default)
def _leaky_relu(lowering: Lowering, node: Node) -> None:
    slope = option(node, 1) if len(node.args) > 1 else 0.01
    (source,), result = operands_and_result(lowering, node, arg(node, 0))
    lowering.add("XNNLeakyReLU", node, negative_slope=slope, input_id=source, output_id=result)


def _prelu_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if not is_constant(option(node, 1)):
        raise Refused("the slopes are computed, not constants")
    check_static_channels(node)


@register(aten.prelu.default, check=_prelu_check)
def _prelu(lowering: Lowering, node: Node) -> None:
    slopes = lowering.constant(option(node, 1))
    assert slopes is not None
    (source,), result = operands_and_result(lowering, node, arg(node, 0))
    if not lowering.is_image(node):  # in NHWC the channels are already the last dimension
        slopes = slopes.reshape(-1, *[1] * (node.meta["val"].dim() - 2))
    lowering.binary("XNNPReLU", node, source, lowering.payload.constant(slopes), result)


def _elu_options(node: Node) -> tuple[float, float, float]:
    """Returns alpha, the factor of the result and the factor of the exponent."""
    if node.target == aten.selu.default:
        return 1.6732632423543772, 1.0507009873554805, 1.0
    alpha, scale, inner = [*arguments(node)[1:], 1.0, 1.0, 1.0][:3]
    if node.target == aten.celu.default:
        inner = 1 / alpha
    return float(alpha), float(scale), float(inner)


def _elu_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    inner = _elu_options(node)[2]
    if node.kwargs or not inner > 0:
        raise Refused("elu with an input_scale that is not positive")
    check_no_float16_overflow(node, inner)


@register(aten.elu.default, aten.selu.default, aten.celu.default, check=_elu_check)
def _elu(lowering: Lowering, node: Node) -> None:
    alpha, scale, inner = _elu_options(node)
    (source,), result = operands_and_result(lowering, node, arg(node, 0))
    scaled, curve = source, result
    if inner != 1:
        scaled = lowering.scratch_like(node)
        lowering.binary("XNNMultiply", node, source, lowering.scalar(inner), scaled)
    if scale != inner:
        curve = lowering.scratch_like(node)
    lowering.add("XNNELU", node, alpha=alpha * inner, input_id=scaled, output_id=curve)
    if scale != inner:
        lowering.binary("XNNMultiply", node, curve, lowering.scalar(scale / inner), result)


def _softplus_of(lowering: Lowering, node: Node, source: int, result: int) -> None:
    """Computes log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    size, low, small, above, logarithm, positive = (lowering.scratch_like(node) for _ in range(6))
    lowering.add("XNNAbs", node, input_id=source, output_id=size)
    lowering.add("XNNNegate", node, input_id=size, output_id=low)
    lowering.add("XNNExp", node, input_id=low, output_id=small)
    lowering.binary("XNNAdd", node, small, lowering.scalar(1.0), above)
    lowering.add("XNNLog", node, input_id=above, output_id=logarithm)
    lowering.add("XNNClamp", node, (0.0, math.inf), input_id=source, output_id=positive)
    lowering.binary("XNNAdd", node, positive, logarithm, result)


def _softplus_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    beta, threshold = (1.0, 20.0) if len(node.args) == 1 else (*arguments(node)[1:], 20.0)[:2]
    if not beta > 0 or threshold < 16:
        raise Refused("a softplus with a beta that is not positive, or a threshold below 16")
    check_no_float16_overflow(node, beta)


@register(aten.softplus.default, check=_softplus_check)
def _softplus(lowering: Lowering, node: Node) -> None:
    beta = float(option(node, 1)) if len(node.args) > 1 else 1.0
    (source,), result = operands_and_result(lowering, node, arg(node, 0))
    if beta == 1:
        _softplus_of(lowering, node, source, result)
        return
    scaled, curve = (lowering.scratch_like(node) for _ in range(2))
    lowering.binary("XNNMultiply", node, source, lowering.scalar(beta), scaled)
    _softplus_of(lowering, node, scaled, curve)
    lowering.binary("XNNMultiply", node, curve, lowering.scalar(1 / beta), result)


@register(aten.mish.default)
def _mish(lowering: Lowering, node: Node) -> None:
    (source,), result = operands_and_result(lowering, node, arg(node, 0))
    curve, gate = (lowering.scratch_like(node) for _ in range(2))
    _softplus_of(lowering, node, source, curve)
    lowering.add("XNNTanh", node, input_id=curve, output_id=gate)
    lowering.binary("XNNMultiply", node, source, gate, result)


@register(aten.silu.default)
def _silu(lowering: Lowering, node: Node) -> None:
    (source,), result = operands_and_result(lowering, node, arg(node, 0))
    gate = lowering.scratch_like(node)
    lowering.add("XNNSigmoid", node, input_id=source, output_id=gate)
    lowering.add("XNNMultiply", node, input1_id=source, input2_id=gate, output_id=result)


@register(aten.hardsigmoid.default)
def _hardsigmoid(lowering: Lowering, node: Node) -> None:
    (source,), result = operands_and_result(lowering, node, arg(node, 0))
    shifted = lowering.scratch_like(node)
    three, sixth = lowering.scalar(3.0), lowering.scalar(1 / 6)
    lowering.add("XNNAdd", node, (0.0, 6.0), input1_id=source, input2_id=three, output_id=shifted)
    lowering.add("XNNMultiply", node, input1_id=shifted, input2_id=sixth, output_id=result)
