# SPDX-License-Identifier: BSD-3-Clause
# In: normalizations over the last dimensions, as one call or decomposed. Out: `cpu::layer_norm` and `cpu::rms_norm`.
"""Replaces layer and RMS norms by one operator."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import Argument

from torchette.backends.engine.passes.constants import Weights
from torchette.exir.arguments import checked, ints_arg, number_arg
from torchette.exir.delegation.delegate import reject
from torchette.exir.graph import call, calls, note, replace, same_shape

aten = torch.ops.aten
cpu = torch.ops.cpu


class _Norm(NamedTuple):
    """A normalization without its weight and bias: the input, the normalized shape, and the node of the result."""

    x: Node
    shape: list[int]
    eps: float
    centred: bool
    end: Node


def place_norms(program: ExportedProgram) -> ExportedProgram:
    """Replaces layer and RMS norms by cpu::layer_norm and cpu::rms_norm."""
    weights = Weights(program)
    layer_norms = sum(
        _place_layer_norm(program, node) for node in calls(program, aten.native_layer_norm.default)
    )
    decomposed = 0
    for node in calls(program, aten.rsqrt.default, aten.sqrt.default, aten.pow.Tensor_Scalar):
        norm = _decomposed(weights, node)
        if norm is not None:
            _place(program, weights, norm)
            decomposed += 1
    if layer_norms or decomposed:
        note(program, f"{layer_norms} norms and {decomposed} decomposed norms became one operator each")
    return program


def _place_layer_norm(program: ExportedProgram, node: Node) -> bool:
    x, _, weight, bias, eps = node.args
    first = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
    users = [user for user in node.users if user not in first and user.users]
    if users or not first or checked(x, Node).meta["val"].dtype != torch.float32:
        reject(node, "its mean or deviation is also read" if users else "its input is not float32")
        return False
    args = (x, weight, bias, ints_arg(node, 1), eps)
    placed = call(node, cpu.layer_norm.default, args, val=first[0].meta["val"], like=node)
    for user in first:
        replace(program, user, placed)
    return True


def _place(program: ExportedProgram, weights: Weights, norm: _Norm) -> None:
    """Replaces a normalization, with the weight and the bias that follow it, by one operator."""
    weight, end = _constant_operand(weights, norm.end, aten.mul.Tensor, norm.shape)
    bias = None
    if norm.centred and weight is not None:
        bias, end = _constant_operand(weights, end, aten.add.Tensor, norm.shape)
    args: tuple[Any, ...]
    if norm.centred:
        target, args = cpu.layer_norm.default, (norm.x, weight, bias, norm.shape, norm.eps)
    else:
        target, args = cpu.rms_norm.default, (norm.x, weight, norm.shape, norm.eps)
    replace(program, end, call(end, target, args, val=end.meta["val"], like=end))


def _constant_operand(
    weights: Weights, node: Node, target: object, shape: list[int]
) -> tuple[Node | None, Node]:
    """Returns the constant of this shape that the only user of `node` combines it with, and that user."""
    users = list(node.users)
    if len(users) == 1 and users[0].target is target and not users[0].kwargs:
        (user,) = users
        operand = user.args[1] if user.args[0] is node else user.args[0]
        tensor = weights.get(operand)
        if tensor is not None and isinstance(operand, Node):
            sizes = list(tensor.shape)
            if sizes == shape:
                return operand, user
            # Leading dimensions of size 1 remain if channels were moved to the end.
            if sizes[-len(shape) :] == shape and set(sizes[: -len(shape)]) == {1}:
                return weights.packed(operand, ("shape", *shape), lambda tensor: tensor.reshape(shape)), user
    return None, node


def _decomposed(weights: Weights, root: Node) -> _Norm | None:
    """Matches x / sqrt(mean(x^2) + eps), with x centred or not."""
    inverse: bool = root.target is aten.rsqrt.default
    if root.target is aten.pow.Tensor_Scalar:
        if root.args[1] not in (0.5, -0.5):
            return None
        inverse = number_arg(root, 1) == -0.5
    shifted = root.args[0]
    if not isinstance(shifted, Node) or shifted.target is not aten.add.Tensor or shifted.kwargs:
        return None
    spread, eps = shifted.args[0], weights.number(shifted.args[1])
    if eps is None:
        spread, eps = shifted.args[1], weights.number(shifted.args[0])
    quotient = _quotient(weights, root, inverse)
    if eps is None or quotient is None:
        return None
    x, end = quotient
    centre = _centre(x)
    shape = _variance_of(spread, centre) if centre is not None else None
    if shape is None:
        source, shape = _mean_of(spread)
        if source is None or _squared(weights, source) is not x:
            return None
        if centre is not None and (x is None or _mean_of(x.args[1]) != (centre, shape)):
            centre = None
    x = centre if centre is not None else x
    val = x.meta["val"]
    if val.dtype != torch.float32 or not all(isinstance(size, int) for size in shape):
        return None
    return (
        _Norm(x, shape, eps, centre is not None, end)
        if same_shape(end.meta["val"].shape, val.shape)
        else None
    )


def _quotient(weights: Weights, root: Node, inverse: bool) -> tuple[Node, Node] | None:
    """Returns the dividend and the quotient of a division by `root`.

    The root or its inverse must have no other user.
    """
    if len(root.users) != 1:
        return None
    (user,) = root.users
    if not inverse and user.target is aten.div.Tensor:
        return (user.args[0], user) if user.args[1] is root and isinstance(user.args[0], Node) else None
    while user.target is aten.reciprocal.default and not inverse:
        root, inverse = user, True
        if len(root.users) != 1:
            return None
        (user,) = root.users
    if not inverse or user.target is not aten.mul.Tensor:
        return None
    x = user.args[1] if user.args[0] is root else user.args[0]
    if weights.number(x) == 1 and len(user.users) == 1:  # 1 / sqrt(x)
        root, (user,) = user, user.users
        if user.target is not aten.mul.Tensor:
            return None
        x = user.args[1] if user.args[0] is root else user.args[0]
    return (x, user) if isinstance(x, Node) and x is not root else None


def _centre(x: Node) -> Node | None:
    """Returns y if x is y - mean(y), otherwise None."""
    if x.target is not aten.sub.Tensor or x.kwargs or not isinstance(x.args[0], Node):
        return None
    y, mean = x.args[0], x.args[1]
    if isinstance(mean, Node) and mean.target is operator.getitem and mean.args[1] == 1:
        mean = mean.args[0]
        return y if isinstance(mean, Node) and mean.target is _VAR_MEAN and mean.args[0] is y else None
    return y if _mean_of(mean)[0] is y else None


_VAR_MEAN = aten.var_mean.correction


def _variance_of(value: object, x: Node) -> list[Any] | None:
    """Returns the sizes of the reduced dimensions if `value` is the variance of x, otherwise None."""
    if isinstance(value, Node) and value.target is operator.getitem and value.args[1] == 0:
        value = value.args[0]
        if not isinstance(value, Node) or value.target is not _VAR_MEAN:
            return None
    elif not isinstance(value, Node) or value.target is not aten.var.correction:
        return None
    if value.args[0] is not x or value.kwargs.get("correction") != 0 or not value.kwargs.get("keepdim"):
        return None
    return _last(x, value.args[1] if len(value.args) > 1 else None)


def _mean_of(node: object) -> tuple[Node | None, list[Any]]:
    """Returns x and the sizes of the reduced dimensions if `node` is the mean of x over its last dimensions, kept with
    size 1.
    """
    if isinstance(node, Node) and node.target is aten.mean.dim and isinstance(node.args[0], Node):
        shape = _last(node.args[0], node.args[1])
        if shape is not None and len(node.args) > 2 and node.args[2]:
            return node.args[0], shape
    return None, []


def _last(x: Node, dims: Argument) -> list[Any] | None:
    """Returns the sizes of the dimensions `dims` if they are the last ones, otherwise None."""
    sizes = list(x.meta["val"].shape)
    listed = dims if isinstance(dims, (list, tuple)) else ()
    reduced = sorted(checked(dim, int) % len(sizes) for dim in listed)
    first = len(sizes) - len(reduced)
    return sizes[first:] if reduced and reduced == list(range(first, len(sizes))) else None


def _squared(weights: Weights, node: Node) -> Node | None:
    power = node.target is aten.pow.Tensor_Scalar and node.args[1] == 2
    power = power or (node.target is aten.pow.Tensor_Tensor and weights.number(node.args[1]) == 2)
    product = node.target is aten.mul.Tensor and node.args[0] is node.args[1]
    return node.args[0] if (power or product) and isinstance(node.args[0], Node) else None
