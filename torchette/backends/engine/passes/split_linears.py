# SPDX-License-Identifier: BSD-3-Clause
# In: a linear layer with a result that is only read in parts, such as query, key and value, or gate and up. Out: one
# layer for each part, with its rows of the weight, so that no part is copied.
"""Splits linear layers with results that are read in parts."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.engine.passes.constants import Pack, Weights
from torchette.exir.arguments import int_arg
from torchette.exir.graph import call, calls, note, replace, same_shape

aten = torch.ops.aten


class _Part(NamedTuple):
    """A range of rows of a weight, and the node that reads their results."""

    first: int
    last: int
    node: Node


def split_linears(program: ExportedProgram) -> ExportedProgram:
    """Splits linear layers that are read in parts into one layer for each part."""
    weights = Weights(program)
    count = 0
    for node in calls(program, aten.linear.default):
        x, weight, bias = (*node.args, None)[:3]
        values, added = weights.weight(weight), weights.get(bias)
        if values is None or not isinstance(weight, Node) or (bias is not None and added is None):
            continue
        parts = _parts(node)
        if len(parts) < 2:
            continue
        for first, last, part in parts:
            rows = ("rows", first, last)
            args = [x, weights.widened(weights.packed(weight, rows, _rows(first, last)), node)]
            if added is not None and isinstance(bias, Node):
                args.append(weights.packed(bias, rows, _rows(first, last)))
            val = node.meta["val"]
            val = val.new_empty([*val.shape[:-1], last - first])
            layer = call(node, aten.linear.default, tuple(args), val=val, like=node)
            shape = list(part.meta["val"].shape)
            if not same_shape(shape, val.shape):
                layer = call(node, aten.view_copy.default, (layer, shape), val=part.meta["val"], like=part)
            replace(program, part, layer)
        count += 1
    if count:
        note(program, f"{count} linear layers were split into one for each part that is read")
    return program


def _rows(first: int, last: int) -> Pack:
    return lambda tensor: tensor[first:last].contiguous()


def _parts(node: Node) -> list[_Part]:
    """Returns the parts of the last dimension that the users read, or an empty list if a user reads it in another
    way.
    """
    val = node.meta["val"]
    dim, step, source = val.dim() - 1, 1, node
    users = list(node.users)
    if len(users) == 1 and users[0].target is aten.view_copy.default:
        (source,) = users
        shape = source.meta["val"].shape
        if not all(isinstance(size, int) and size > 0 for size in (*shape, *val.shape)):
            return []
        # The view divides the last dimension. It may also group the rows in another way, such as windows of an image.
        rows = math.prod(val.shape[:dim])
        dim = next(
            (d for d in range(len(shape)) if math.prod(shape[:d]) == rows and shape[d] > 1), len(shape)
        )
        if dim == len(shape):
            return []
        step = math.prod(shape[dim + 1 :])
    if not isinstance(val.shape[-1], int):
        return []
    length = val.shape[-1] // step
    parts = []
    for user in source.users:
        args: list[Any] = [*user.args[1:], *[None] * 4]
        if user.target is aten.split_with_sizes_copy.default:
            if (args[1] or 0) % source.meta["val"].dim() != dim or user.kwargs:
                return []
            ends_of = list(itertools.accumulate(args[0], initial=0))
            for result in user.users:
                index = int_arg(result, 1)
                parts.append(_Part(ends_of[index] * step, ends_of[index + 1] * step, result))
            continue
        if user.target is aten.select_copy.int:
            if args[0] % source.meta["val"].dim() != dim:
                return []
            first = args[1] % length
            parts.append(_Part(first * step, (first + 1) * step, user))
            continue
        if user.target is not aten.slice_copy.Tensor or (args[0] or 0) % source.meta["val"].dim() != dim:
            return []
        first, last = args[1] or 0, args[2] if args[2] is not None else length
        if args[3] not in (None, 1) or not isinstance(first, int) or not isinstance(last, int):
            return []
        first = max(first + length, 0) if first < 0 else min(first, length)
        last = max(last + length, 0) if last < 0 else min(last, length)
        if first >= last:
            return []
        parts.append(_Part(first * step, last * step, user))
    # Overlapping parts would be computed twice.
    ends = sorted((part.first, part.last) for part in parts)
    return parts if all(a[1] <= b[0] for a, b in itertools.pairwise(ends)) else []
