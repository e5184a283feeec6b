# SPDX-License-Identifier: BSD-3-Clause
"""Slices, selections, splits and indexing by constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.joins import add_pad, join
from torchette.backends.xnnpack.operators.lowering import Lowering, operands_and_result
from torchette.backends.xnnpack.operators.nodes import (
    arg,
    arguments,
    check_one_dynamic,
    check_static,
    dims_of,
    image_axis,
    image_dims,
    option,
    sizes_of,
)
from torchette.backends.xnnpack.operators.table import Refused, register

aten = torch.ops.aten


def _slice_options(node: Node) -> tuple[int, int, int, int]:
    """Returns (dimension, start, count, step)."""
    before = arg(node, 0).meta["val"].shape
    dim = (option(node, 1) if len(node.args) > 1 else 0) % len(before)
    if node.target == aten.select_copy.int:
        index = option(node, 2)
        return dim, index % before[dim], 1, 1
    start = option(node, 2) if len(node.args) > 2 and option(node, 2) is not None else 0
    start = min(max(start + before[dim] if start < 0 else start, 0), before[dim])
    count, step = node.meta["val"].shape[dim], option(node, 4) if len(node.args) > 4 else 1
    return dim, start, count, 1 if count == 1 else step


def _slice_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if any(isinstance(arg, Node) for arg in arguments(node)[1:]):
        raise Refused("an index is computed")
    before = arg(node, 0).meta["val"].shape
    dim = (option(node, 1) if len(node.args) > 1 else 0) % len(before)
    after = node.meta["val"].shape
    if isinstance(before[dim], torch.SymInt) or any(
        isinstance(size, torch.SymInt) for size in after[dim : dim + 1] if node.target != aten.select_copy.int
    ):
        raise Refused("a slice of a dynamic dimension")
    *_, step = _slice_options(node)
    if node.target == aten.select_copy.int or step > 1:
        check_one_dynamic(node, is_constant)


def add_slice(
    lowering: Lowering,
    node: Node,
    value: int,
    dims: Sequence[int],
    dim: int,
    start: int,
    count: int,
    result: int,
) -> None:
    """Adds a slice of `count` elements of dimension `dim`. `dims`: the sizes of the value; 0 selects all of a dynamic dimension."""
    offsets, sizes = [0] * len(dims), list(dims)
    offsets[dim], sizes[dim] = start, count
    lowering.add(
        "XNNStaticSlice",
        node,
        num_dims=len(sizes),
        offsets=offsets,
        sizes=sizes,
        input_id=value,
        output_id=result,
    )


def in_layout_order(lowering: Lowering, node: Node, dims: Sequence[int], dim: int) -> tuple[list[int], int]:
    """Returns `dims` and `dim` in the order of the node's value: NHWC or torch's order."""
    if lowering.is_image(node):
        return image_dims(dims), image_axis(dim, len(dims))
    return list(dims), dim


@register(aten.slice_copy.Tensor, check=_slice_check)
def _slice(lowering: Lowering, node: Node) -> None:
    dim, start, count, step = _slice_options(node)
    source_value = arg(node, 0).meta["val"]
    (value,), result = operands_and_result(lowering, node, arg(node, 0))
    sizes, at = in_layout_order(lowering, node, sizes_of(source_value), dim)
    if step == 1:
        add_slice(lowering, node, value, sizes, at, start, count, result)
        return
    # Reshapes the dimension to [count, step] and selects one element of each group of `step`.
    full_dims, _ = in_layout_order(lowering, node, dims_of(source_value), dim)
    length = full_dims[at]
    first = max(min(start, length - count * step), 0)
    if count * step != length:
        part, full_dims[at] = value, count * step
        value = lowering.scratch(full_dims)
        if count * step < length:
            add_slice(lowering, node, part, sizes, at, first, count * step, value)
        else:
            after = [0] * len(full_dims)
            after[at] = count * step - length
            add_pad(lowering, node, part, [0] * len(full_dims), after, 0.0, value)
    outer, inner = (
        (math.prod(full_dims[a:b]), 0 if 0 in sizes[a:b] else math.prod(full_dims[a:b]))
        for a, b in ((0, at), (at + 1, None))
    )
    groups, selected = (lowering.scratch([outer[0], count, n, inner[0]]) for n in (step, 1))
    lowering.reshape_to(node, value, [outer[1], count, step, inner[1]], groups)
    add_slice(lowering, node, groups, [outer[1], count, step, inner[1]], 2, start - first, 1, selected)
    sizes[at] = count
    lowering.reshape_to(node, selected, sizes, result)


@register(aten.select_copy.int, check=_slice_check)
def _select(lowering: Lowering, node: Node) -> None:
    before = arg(node, 0).meta["val"]
    dim, start, *_ = _slice_options(node)
    value, dims = lowering.plain(arg(node, 0)), dims_of(before)
    part = lowering.scratch([*dims[:dim], 1, *dims[dim + 1 :]])
    add_slice(lowering, node, value, sizes_of(before), dim, start, 1, part)
    lowering.reshape_to(node, part, sizes_of(node.meta["val"]), lowering.result(node))


def _split_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    value = arg(node, 0).meta["val"]
    dim = option(node, 2) if len(node.args) > 2 else 0
    if any(isinstance(size, (Node, torch.SymInt)) for size in (value.shape[dim], *option(node, 1))):
        raise Refused("a split of a dynamic dimension")


@register(aten.split_with_sizes_copy.default, check=_split_check)
def _split(lowering: Lowering, node: Node) -> None:
    source, sizes = arguments(node)[:2]
    source_value = source.meta["val"]
    dim = (option(node, 2) if len(node.args) > 2 else 0) % source_value.dim()
    for part in node.users:
        start = sum(sizes[: option(part, 1)])
        (value,), result = operands_and_result(lowering, part, source)
        dims, at = in_layout_order(lowering, part, sizes_of(source_value), dim)
        add_slice(lowering, node, value, dims, at, start, sizes[option(part, 1)], result)


_MAX_SLICES = 32  # the maximum number of slices for one operator


def _index_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    check_static(node)
    chosen = [(dim, indices) for dim, indices in enumerate(option(node, 1)) if indices is not None]
    if len(chosen) != 1 or not is_constant(chosen[0][1]):
        raise Refused("the indices are computed, or index several dimensions")
    if chosen[0][1].meta["val"].dim() != 1 or chosen[0][1].meta["val"].dtype not in (
        torch.int32,
        torch.int64,
    ):
        raise Refused("the indices are not a vector of int32 or int64")
    if chosen[0][1].meta["val"].numel() > _MAX_SLICES:
        raise Refused(f"more than {_MAX_SLICES} indices")


@register(aten.index.Tensor, check=_index_check)
def _index(lowering: Lowering, node: Node) -> None:
    """Adds a slice for each run of consecutive indices, and a concatenation of the slices."""
    source, indices = arguments(node)[:2]
    dim = next(i for i, index in enumerate(indices) if index is not None)
    sizes = sizes_of(source.meta["val"])
    positions = (lowering.stored(indices[dim]) % sizes[dim]).tolist()
    runs: list[list[int]] = []
    for position in positions:
        if runs and position == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([position, 1])
    value, result = lowering.plain(source), lowering.result(node)
    parts = []
    for start, count in runs:
        parts.append(result if len(runs) == 1 else lowering.scratch([*sizes[:dim], count, *sizes[dim + 1 :]]))
        add_slice(lowering, node, value, sizes, dim, start, count, parts[-1])
    if len(runs) > 1:
        join(lowering, node, parts, [count for _, count in runs], dims_of(node.meta["val"]), dim, result)
