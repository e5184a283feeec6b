# SPDX-License-Identifier: BSD-3-Clause
"""Operators that change the shape, order or type of elements."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.lowering import Lowering, operands_and_result
from torchette.backends.xnnpack.operators.matmuls import is_folded_transpose
from torchette.backends.xnnpack.operators.nodes import (
    arg,
    arguments,
    check_one_dynamic,
    check_static,
    dims_of,
    option,
    sizes_of,
)
from torchette.backends.xnnpack.operators.table import BINARY, Refused, register
from torchette.backends.xnnpack.payload import FLOATS
from torchette.exir.graph import is_dense, same_shape, same_size

aten = torch.ops.aten


@register(
    aten.view_copy.default, aten.unsqueeze_copy.default, aten.squeeze_copy.dim, aten.squeeze_copy.dims,
    check=check_one_dynamic,
)  # fmt: skip
def _reshape(lowering: Lowering, node: Node) -> None:
    lowering.reshape(node, arg(node, 0))


def _expand_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    sizes, target = (source.meta["val"].shape for source in (arg(node, 0), node))
    sizes = (1,) * (len(target) - len(sizes)) + tuple(sizes)
    if any(isinstance(b, torch.SymInt) and not same_size(a, b) for a, b in zip(sizes, target, strict=True)):
        raise Refused("it expands to a dynamic size")
    if len(target) > arg(node, 0).meta["val"].dim():
        check_one_dynamic(node, is_constant)
    if node.meta["val"].dtype not in FLOATS:
        raise Refused("the tensor is not in floating point")


def _broadcasts(user: Node, operand: Node) -> bool:
    """Returns whether the other operand of a node has the node's shape, so that this operand may broadcast."""
    operands = [arg for arg in arguments(user)[:2] if arg is not operand]
    shape = user.meta["val"].shape
    return user.target in BINARY and len(operands) == 1 and same_shape(operands[0].meta["val"].shape, shape)


@register(aten.expand_copy.default, check=_expand_check)
def _expand(lowering: Lowering, node: Node) -> None:
    """Multiplies by ones, which broadcasts. Adds no node if all users broadcast."""
    source, target = arg(node, 0), dims_of(node.meta["val"])
    if (
        len(target) < 3
        and not lowering.is_result(node)
        and all(_broadcasts(user, node) for user in node.users)
    ):
        lowering.alias(node, source)
        return
    dims, sizes = dims_of(source.meta["val"]), sizes_of(source.meta["val"])
    more = [1] * (len(target) - len(dims))
    dims, value = more + dims, lowering.plain(source)
    if more:
        plain, value = value, lowering.scratch(dims)
        lowering.reshape_to(node, plain, more + sizes, value)
    ones = torch.ones([b if a != b else 1 for a, b in zip(dims, target, strict=True)])
    factor = lowering.payload.constant(ones.to(node.meta["val"].dtype))
    lowering.binary("XNNMultiply", node, value, factor, lowering.result(node))


def _clone_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if node.kwargs.get("memory_format") not in (None, torch.contiguous_format, torch.preserve_format):
        raise Refused("another memory format")


@register(aten.clone.default, check=_clone_check)
def _clone(lowering: Lowering, node: Node) -> None:
    lowering.alias(node, arg(node, 0))


def _as_strided_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    value, target = arg(node, 0).meta["val"], node.meta["val"]
    check_static(node)
    strides = [stride for size, stride in zip(target.shape, option(node, 2), strict=True) if size != 1]
    expected = [math.prod(target.shape[i + 1 :]) for i, size in enumerate(target.shape) if size != 1]
    offset = option(node, 3) if len(node.args) > 3 else None
    if strides != expected or target.numel() != value.numel() or offset or not is_dense(value):
        raise Refused("the strides are not those of a contiguous tensor")


@register(aten.as_strided_copy.default, check=_as_strided_check)
def _as_strided(lowering: Lowering, node: Node) -> None:
    if node.meta["val"].shape == arg(node, 0).meta["val"].shape:
        lowering.alias(node, arg(node, 0))
    else:
        lowering.reshape(node, arg(node, 0))


def _to_copy_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if node.kwargs.get("memory_format") not in (None, torch.contiguous_format, torch.preserve_format):
        raise Refused("another memory format")
    if node.meta["val"].dtype == arg(node, 0).meta["val"].dtype:
        raise Refused("a copy without a conversion")


@register(aten._to_copy.default, check=_to_copy_check)
def _to_copy(lowering: Lowering, node: Node) -> None:
    (source,), result = operands_and_result(lowering, node, arg(node, 0))
    lowering.add("XNNConvert", node, input_id=source, output_id=result)


@register(aten.permute_copy.default)
def _permute(lowering: Lowering, node: Node) -> None:
    if is_folded_transpose(node, lowering):
        lowering.mark_transposed(node)
        return
    rank = node.meta["val"].dim()
    value = lowering.plain(arg(node, 0))
    order = [dim % rank for dim in option(node, 1)]
    lowering.add(
        "XNNStaticTranspose", node, num_dims=rank, perm=order, input_id=value, output_id=lowering.result(node)
    )
