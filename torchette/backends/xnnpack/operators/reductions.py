# SPDX-License-Identifier: BSD-3-Clause
"""Sums, means, maxima and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.lowering import Lowering
from torchette.backends.xnnpack.operators.nodes import (
    arg,
    check_one_dynamic,
    dims_of,
    option,
    reduced_dims,
    sizes_of,
)
from torchette.backends.xnnpack.operators.table import Refused, register

aten = torch.ops.aten


def mean_of(
    lowering: Lowering, node: Node, value: int, dims: Sequence[int], axes: Sequence[int], is_static: bool
) -> int:
    """Computes the mean over adjacent dimensions; returns a value with the dimensions (outer, 1, 1, inner).

    XNNPACK computes the mean of an image, so the value is reshaped to (outer, reduced, 1, inner).

    Args:
        value: the id of the value.
        dims: the dimensions of the value.
        axes: the adjacent dimensions to reduce.
        is_static: whether all other dimensions are static.
    """
    outer, reduced, inner = (
        math.prod(part) for part in (dims[: axes[0]], dims[axes[0] : axes[-1] + 1], dims[axes[-1] + 1 :])
    )
    image, pooled = lowering.scratch([outer, reduced, 1, inner]), lowering.scratch([outer, 1, 1, inner])
    lowering.reshape_to(node, value, [outer if is_static else 0, reduced, 1, inner], image)
    lowering.add("XNNGlobalAvgPooling2d", node, input_id=image, output_id=pooled)
    return pooled


def _mean_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    check_one_dynamic(node, is_constant)
    value, dims = arg(node, 0).meta["val"], reduced_dims(node)
    if value.dim() == 0:
        raise Refused("a mean of a scalar")
    if node.kwargs.get("dtype") not in (None, value.dtype):
        raise Refused("a dtype other than that of the input")
    if sum(isinstance(size, torch.SymInt) for size in value.shape) > 1:
        raise Refused("more than one dynamic dimension")
    varies = [dim for dim, size in enumerate(value.shape) if isinstance(size, torch.SymInt)]
    if any(dim >= dims[0] for dim in varies):
        raise Refused("a reduced dimension, or a dimension after one, is dynamic")
    if value.dtype is torch.float16 and math.prod(dims_of(value)[dim] for dim in dims) > 60_000:
        raise Refused("a reduction over more than 60,000 elements in float16")


@register(aten.mean.dim, aten.sum.dim_IntList, check=_mean_check)
def _mean(lowering: Lowering, node: Node) -> None:
    source, dims = arg(node, 0), reduced_dims(node)
    source_value = source.meta["val"]
    sizes = sizes_of(source_value)
    if len(sizes) == 4 and dims == [2, 3] and (lowering.is_image(source) or lowering.is_integer):
        image = lowering.image(source)
        # the mean is also an image
        keeps_image = node.target == aten.mean.dim and node.meta["val"].dim() == 4
        value = (
            lowering.image_result(node)
            if keeps_image
            else lowering.scratch([dims_of(source_value)[0], 1, 1, dims_of(source_value)[1]])
        )
        lowering.add("XNNGlobalAvgPooling2d", node, input_id=image, output_id=value)
        if keeps_image:
            return
    else:
        value, remaining, current_dims = lowering.plain(source), list(dims), dims_of(source_value)
        while remaining:  # adjacent dimensions together
            axes = [remaining.pop()]
            while remaining and remaining[-1] == axes[0] - 1:
                axes.insert(0, remaining.pop())
            value = mean_of(lowering, node, value, current_dims, axes, 0 not in sizes)
            current_dims = [1 if dim in axes else size for dim, size in enumerate(current_dims)]
    shape, result = sizes_of(node.meta["val"]), lowering.result(node)
    if node.target == aten.sum.dim_IntList:
        count = math.prod(source_value.shape[dim] for dim in dims)
        mean = lowering.scratch(dims_of(node.meta["val"]))
        lowering.reshape_to(node, value, shape, mean)
        lowering.binary("XNNMultiply", node, mean, lowering.scalar(count), result)
    else:
        lowering.reshape_to(node, value, shape, result)


def _max_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    value, dims = arg(node, 0).meta["val"], reduced_dims(node)
    if value.dim() == 0:
        raise Refused("a maximum of a scalar")
    varies = [dim for dim, size in enumerate(sizes_of(value)) if size == 0]
    if len(varies) > 1 or any(dim >= dims[0] for dim in varies):
        raise Refused(
            "a reduced dimension, or a dimension after one, is dynamic, or several dimensions are dynamic"
        )
    if node.target == aten.max.dim and any(option(user, 1) != 0 for user in node.users):
        raise Refused("another node reads the indices of the maxima")


@register(aten.amax.default, aten.max.dim, check=_max_check)
def _max(lowering: Lowering, node: Node) -> None:
    """Lowers to maximum pools of one window, one for each run of adjacent dimensions."""
    source, remaining = arg(node, 0), reduced_dims(node)
    holder, *holders = tuple(node.users) if node.target == aten.max.dim else (node,)
    value, current_dims = lowering.plain(source), dims_of(source.meta["val"])
    is_static = 0 not in sizes_of(source.meta["val"])
    while remaining:
        axes = [remaining.pop()]
        while remaining and remaining[-1] == axes[0] - 1:
            axes.insert(0, remaining.pop())
        outer, reduced, inner = (
            math.prod(part)
            for part in (
                current_dims[: axes[0]],
                current_dims[axes[0] : axes[-1] + 1],
                current_dims[axes[-1] + 1 :],
            )
        )
        current_dims = [1 if dim in axes else size for dim, size in enumerate(current_dims)]
        if reduced == 1:
            continue
        image, pooled = lowering.scratch([outer, reduced, 1, inner]), lowering.scratch([outer, 1, 1, inner])
        lowering.reshape_to(node, value, [outer if is_static else 0, reduced, 1, inner], image)
        window = dict.fromkeys(("pooling_height", "stride_height"), reduced)
        window |= dict.fromkeys(("pooling_width", "stride_width", "dilation_height", "dilation_width"), 1)
        around = {f"padding_{side}": 0 for side in ("top", "right", "bottom", "left")}
        lowering.add("XNNMaxPooling2d", node, None, input_id=image, output_id=pooled, **window, **around)
        value = pooled
    lowering.reshape_to(node, value, sizes_of(holder.meta["val"]), lowering.result(holder))
    for user in holders:
        lowering.alias(user, holder)


def _softmax_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if node.meta["val"].dim() == 0:
        raise Refused("a softmax of a scalar")


@register(aten._softmax.default, check=_softmax_check)
def _softmax(lowering: Lowering, node: Node) -> None:
    rank, dim = node.meta["val"].dim(), option(node, 1)
    value = lowering.plain(arg(node, 0))
    if dim in (-1, rank - 1):
        lowering.add("XNNSoftmax", node, input_id=value, output_id=lowering.result(node))
        return
    order = list(range(rank))  # swaps two dimensions; its own inverse
    order[dim], order[-1] = order[-1], order[dim]
    dims = [dims_of(node.meta["val"])[i] for i in order]
    swapped, soft = lowering.scratch(dims), lowering.scratch(dims)
    lowering.transpose(node, value, order, swapped)
    lowering.add("XNNSoftmax", node, input_id=swapped, output_id=soft)
    lowering.transpose(node, soft, order, lowering.result(node))
