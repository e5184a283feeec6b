# SPDX-License-Identifier: BSD-3-Clause
# In: normalisations of the last dimension, whole or written by hand. Out: `cpu::layer_norm` and `cpu::rms_norm`.
"""Layer and RMS norms become one operator."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.cpu.passes.constants import Weights
from torchette.exir.delegation.delegate import reject
from torchette.exir.graph import call, calls, note, replace, same_shape

aten = torch.ops.aten
cpu = torch.ops.cpu


class _Norm(NamedTuple):
    """A normalised value before its weight."""

    x: Node
    eps: float
    centred: bool
    end: Node


def place_norms(program: ExportedProgram) -> ExportedProgram:
    """Layer and RMS norms become cpu::layer_norm and cpu::rms_norm."""
    weights = Weights(program)
    whole = sum(_place_whole(program, node) for node in calls(program, aten.native_layer_norm.default))
    by_hand = 0
    for node in calls(program, aten.rsqrt.default, aten.sqrt.default):
        found = _by_hand(weights, node)
        if found is not None:
            _place(program, weights, found)
            by_hand += 1
    if whole or by_hand:
        note(program, f"{whole} norms, and {by_hand} written by hand, became one operator each")
    return program


def _place_whole(program: ExportedProgram, node: Node) -> bool:
    x, shape, weight, bias, eps = node.args
    first = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
    others = [user for user in node.users if user not in first and user.users]
    if others or not first or x.meta["val"].dtype != torch.float32:  # type: ignore[union-attr]
        reject(node, "its mean or deviation is read, too" if others else "its input is not float32")
        return False
    args = (x, weight, bias, list(shape), eps)  # type: ignore[arg-type]
    placed = call(node, cpu.layer_norm.default, args, val=first[0].meta["val"], like=node)
    for user in first:
        replace(program, user, placed)
    return True


def _place(program: ExportedProgram, weights: Weights, norm: _Norm) -> None:
    """Put an operator in the place of a norm, with the weight and the bias that follow it."""
    end, length = norm.end, norm.x.meta["val"].shape[-1]
    weight, end = _constant_operand(weights, end, aten.mul.Tensor, length)
    bias = None
    if norm.centred and weight is not None:
        bias, end = _constant_operand(weights, end, aten.add.Tensor, length)
    if norm.centred:
        target, args = cpu.layer_norm.default, (norm.x, weight, bias, [length], norm.eps)
    else:
        target, args = cpu.rms_norm.default, (norm.x, weight, [length], norm.eps)  # type: ignore[assignment]
    replace(program, end, call(end, target, args, val=end.meta["val"], like=end))


def _constant_operand(weights: Weights, node: Node, target: Any, length: int) -> tuple[Node | None, Node]:
    """The stored vector that a value's only reader combines it with, and that reader."""
    users = list(node.users)
    if len(users) == 1 and users[0].target is target and not users[0].kwargs:
        (user,) = users
        other = user.args[1] if user.args[0] is node else user.args[0]
        vector = weights.get(other)
        if vector is not None and tuple(vector.shape) == (length,):
            return other, user  # type: ignore[return-value]
    return None, node


def _by_hand(weights: Weights, root: Node) -> _Norm | None:
    """x / sqrt(mean(x^2) + eps), of x as it is or less its mean."""
    shifted = root.args[0]
    if not isinstance(shifted, Node) or shifted.target is not aten.add.Tensor or shifted.kwargs:
        return None
    mean, eps = shifted.args[0], weights.number(shifted.args[1])
    if eps is None:
        mean, eps = shifted.args[1], weights.number(shifted.args[0])
    square = _mean_of(mean)
    x = _squared(weights, square)
    if eps is None or x is None or x.meta["val"].dtype != torch.float32:
        return None
    if not isinstance(x.meta["val"].shape[-1], int) or len(root.users) != 1:
        return None
    (end,) = root.users
    if root.target is aten.rsqrt.default:
        divided = end.target is aten.mul.Tensor and {*end.args} == {x, root}
    else:
        divided = end.target is aten.div.Tensor and end.args[0] is x and end.args[1] is root
        reciprocal = end.target is aten.reciprocal.default and len(end.users) == 1
        if reciprocal:
            (product,) = end.users
            divided = product.target is aten.mul.Tensor and {*product.args} == {x, end}
            end = product
    if not divided or not same_shape(end.meta["val"].shape, x.meta["val"].shape):
        return None
    centre = x.args[0] if x.target is aten.sub.Tensor and not x.kwargs else None
    if isinstance(centre, Node) and _mean_of(x.args[1]) is centre:
        return _Norm(centre, eps, True, end)
    return _Norm(x, eps, False, end)


def _mean_of(node: Any) -> Any:
    """What a value is the mean of, along the last dimension, which it keeps."""
    if not isinstance(node, Node) or node.target is not aten.mean.dim or not isinstance(node.args[0], Node):
        return None
    last = node.args[0].meta["val"].dim() - 1
    dims = [dim % (last + 1) for dim in node.args[1] or ()]  # type: ignore[union-attr, operator]
    return node.args[0] if dims == [last] and len(node.args) > 2 and node.args[2] else None


def _squared(weights: Weights, node: Any) -> Node | None:
    if not isinstance(node, Node):
        return None
    power = node.target is aten.pow.Tensor_Scalar and node.args[1] == 2
    power = power or (node.target is aten.pow.Tensor_Tensor and weights.number(node.args[1]) == 2)
    product = node.target is aten.mul.Tensor and node.args[0] is node.args[1]
    return node.args[0] if (power or product) and isinstance(node.args[0], Node) else None
