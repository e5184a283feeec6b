# SPDX-License-Identifier: BSD-3-Clause
# In: linear layers and convolutions of the engine, followed by an addition or an activation. Out: operators that apply
# the addition and the activation to the result before they store it. Also additions after quantized convolutions.
"""Fuses additions and activations into the preceding operator."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.engine.passes.activations import Activations
from torchette.exir.arguments import overload
from torchette.exir.graph import call, calls, note, replace, same_shape

aten = torch.ops.aten
cpu = torch.ops.cpu

# Operators with the arguments `residual` and `activation`; `activation` is the last argument.
_OPERATORS = (
    cpu.linear.default,
    cpu.dynamic_linear.default,
    cpu.convolution.default,
    cpu.planar_convolution.default,
    cpu.depthwise.default,
    cpu.transposed_convolution.default,
)


def fuse_epilogues(program: ExportedProgram) -> ExportedProgram:
    """Fuses additions and activations into the preceding linear layer or convolution."""
    residuals = activations = 0
    finder = Activations(program)
    for node in calls(program, *_OPERATORS):
        added = _add_residual(program, node)
        residuals += added is not node
        finished = _add_activation(program, finder, added)
        activations += finished is not added
    for node in calls(program, cpu.quantized_add.default):
        residuals += _fuse_quantized(program, node)
    if residuals or activations:
        note(
            program, f"{residuals} additions and {activations} activations fused into the preceding operator"
        )
    return program


def _add_residual(program: ExportedProgram, node: Node) -> Node:
    users = list(node.users)
    if len(users) != 1 or users[0].target is not aten.add.Tensor or users[0].kwargs:
        return node
    (addition,) = users
    left, right = addition.args[:2]
    residual = right if left is node else left
    if (
        residual is node
        or not isinstance(residual, Node)
        or not isinstance(residual.meta.get("val"), torch.Tensor)
    ):
        return node
    value, result = residual.meta["val"], node.meta["val"]
    if value.dtype != result.dtype or not same_shape(value.shape, result.shape):
        return node
    index = [argument.name for argument in overload(node)._schema.arguments].index("residual")
    args = (*node.args[:index], residual, *node.args[index + 1 :])
    return _move(program, node, addition, args)


def _fuse_quantized(program: ExportedProgram, addition: Node) -> bool:
    """Moves an addition of 8-bit tensors into the convolution that computes one of them. Returns whether it did."""
    a, b, *schemes = addition.args
    of_a, of_b, of_sum = schemes[:2], schemes[2:4], schemes[4:]
    for term, residual, of_term, of_residual in ((a, b, of_a, of_b), (b, a, of_b, of_a)):
        if (
            not isinstance(term, Node)
            or term.target is not cpu.quantized_convolution.default
            or len(term.users) != 1
            or term is residual
        ):
            continue
        *operands, zero, low, high = term.args
        if zero != of_term[1]:
            continue
        of_convolution = operands[:3], operands[3:]
        args = (*of_convolution[0], residual, *of_convolution[1], *of_term, low, high, *of_residual, *of_sum)
        target = cpu.quantized_convolution_add.default
        new = call(addition, target, args, val=addition.meta["val"], like=term)
        replace(program, addition, new)
        return True
    return False


def _add_activation(program: ExportedProgram, finder: Activations, node: Node) -> Node:
    activation = finder.after(node)
    if activation is None:
        return node
    return _move(program, node, activation.end, (*node.args[:-1], activation.name))


def _move(program: ExportedProgram, node: Node, end: Node, args: tuple[Any, ...]) -> Node:
    """Replaces `end` by a call of `node`'s operator with these arguments. The calls between them become dead code."""
    new = call(end, node.target, args, val=node.meta["val"], like=node)
    replace(program, end, new)
    return new
