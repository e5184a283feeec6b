# SPDX-License-Identifier: BSD-3-Clause
"""Elementwise operators with two operands, and powers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.elementwise import emit_root, emit_unary
from torchette.backends.xnnpack.operators.lowering import Lowering, operands_and_result
from torchette.backends.xnnpack.operators.nodes import arg, arguments, option
from torchette.backends.xnnpack.operators.table import BINARY, OPERATORS, Emit, Operator, Refused, register
from torchette.exir.graph import same_shape

aten = torch.ops.aten


def _binary_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if not all(isinstance(arg, Node) for arg in arguments(node)[:2]):
        raise Refused("an operand is a scalar, not a tensor")
    if node.kwargs.get("alpha", 1) != 1:
        raise Refused("alpha is not 1")
    if node.kwargs.get("rounding_mode") is not None:
        raise Refused("the division rounds")
    if all(is_constant(arg) for arg in arguments(node)[:2]):
        raise Refused("both operands are constants")


def _is_identity(lowering: Lowering, node: Node) -> bool:
    """Returns whether the second operand is the neutral element of the operator and does not broadcast the first."""
    if lowering.is_integer or lowering.is_clamped:
        return False
    neutral = 1.0 if node.target in (aten.mul.Tensor, aten.div.Tensor) else 0.0
    stored = lowering.constant(option(node, 1))
    has_same_shape = same_shape(arg(node, 0).meta["val"].shape, node.meta["val"].shape)
    return has_same_shape and stored is not None and bool((stored == neutral).all())


def _binary(kind: str) -> Emit:
    def emit(lowering: Lowering, node: Node) -> None:
        if node.target in _NEUTRAL and _is_identity(lowering, node):
            lowering.alias(node, arg(node, 0))
            return
        (left, right), result = operands_and_result(lowering, node, *arguments(node)[:2])
        lowering.add(kind, node, input1_id=left, input2_id=right, output_id=result)

    return emit


_NEUTRAL = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor}


for _target, _kind in BINARY.items():
    OPERATORS[_target] = Operator(_binary_check, _binary(_kind))


_POWERS = {2.0: "XNNSquare", 0.5: "XNNSquareRoot", -0.5: "XNNReciprocalSquareRoot"}


def _pow_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if option(node, 1) not in (*_POWERS, 3.0, -1.0):
        raise Refused("an exponent other than 2, 3, 0.5, -0.5 and -1")
    if abs(option(node, 1)) == 0.5 and node.meta["val"].dtype is torch.float16:
        raise Refused("a power of float16 that torch does not compute as a root")


@register(aten.pow.Tensor_Scalar, check=_pow_check)
def _pow(lowering: Lowering, node: Node) -> None:
    exponent = option(node, 1)
    if exponent == -1:
        _reciprocal(lowering, node)
        return
    if exponent == 0.5:
        emit_root(lowering, node)
        return
    if exponent in _POWERS:
        emit_unary(_POWERS[exponent])(lowering, node)
        return
    (source,), result = operands_and_result(lowering, node, arg(node, 0))
    square = lowering.scratch_like(node)
    lowering.add("XNNSquare", node, input_id=source, output_id=square)
    lowering.binary("XNNMultiply", node, square, source, result)


@register(aten.reciprocal.default)
def _reciprocal(lowering: Lowering, node: Node) -> None:
    (source,), result = operands_and_result(lowering, node, arg(node, 0))
    lowering.binary("XNNDiv", node, lowering.scalar(1.0), source, result)
