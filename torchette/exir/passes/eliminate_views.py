# SPDX-License-Identifier: BSD-3-Clause
# In: copies of views. Out: copies whose result is a contiguous part of the source's storage are marked as aliases,
# which need no instruction. Node.meta["alias"] is (source, offset in bytes).
"""Lets copies that do not change the bytes share the storage of their source."""

from __future__ import annotations

import math
import operator
from typing import Any, TypeGuard

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import control_flow
from torchette.exir.arguments import int_arg, ints_arg, list_arg
from torchette.exir.graph import call, calls, is_dense, note, outputs, placeholders, replace, same_size

aten = torch.ops.aten

_RESHAPES = frozenset(
    {
        aten.view_copy.default, aten.unsqueeze_copy.default, aten.squeeze_copy.default, aten.squeeze_copy.dim,
        aten.squeeze_copy.dims, aten.clone.default, aten.alias_copy.default, aten.detach_copy.default,
        aten.lift_fresh_copy.default, aten.expand_copy.default, aten.repeat.default, aten._to_copy.default,
    }
)  # fmt: skip
_PERMUTES = frozenset({aten.permute_copy.default, aten.transpose_copy.int, aten.t_copy.default})
_SPLITS = frozenset({aten.split_copy.Tensor, aten.split_with_sizes_copy.default, aten.unbind_copy.int})
_CHUNKS = frozenset({aten.select_copy.int, aten.slice_copy.Tensor})


def eliminate_views(program: ExportedProgram) -> ExportedProgram:
    """Mark as aliases the copies whose result is a contiguous part of their source's storage."""
    # Results and inputs of branches are included, because a branch returns separate storage.
    results, inputs = set(outputs(program)), set(placeholders(program))
    for module in control_flow.owners(program.graph_module):
        results.update(control_flow.results(module))
        inputs.update(control_flow.inputs(module))
    for node in calls(program, *_SPLITS):
        _split_to_chunks(program, node, inputs, results)
    count = 0
    for node in calls(program, *_RESHAPES, *_PERMUTES, *_CHUNKS):
        # The caller may provide the memory of an output, so it cannot be an alias.
        if node in results:
            continue
        source, val = node.args[0], node.meta.get("val")
        if not isinstance(source, Node) or not _plain(source.meta.get("val")) or not _plain(val):
            continue
        if node.target in _CHUNKS:
            offset = _chunk_offset(node, source.meta["val"], val)
            if offset is None or _root(source) in inputs or _root(source) in results:
                continue
            node.meta["alias"] = (source, offset)
        elif _keeps_order(node, source.meta["val"], val):
            sizes = _sizes(node, val)
            if sizes is None:
                continue
            node.target, node.args, node.kwargs = aten.view_copy.default, (source, sizes), {}
            node.meta["alias"] = (source, 0)
        else:
            continue
        count += 1
    if count:
        note(program, f"{count} copies became aliases")
    return program


def _plain(val: object) -> TypeGuard[torch.Tensor]:
    return isinstance(val, torch.Tensor) and is_dense(val)


def _root(node: Node) -> Node:
    while "alias" in node.meta:
        node = node.meta["alias"][0]
    return node


def _keeps_order(node: Node, before: torch.Tensor, after: torch.Tensor) -> bool:
    if before.dtype != after.dtype:
        return False
    if node.target in _PERMUTES:
        order = _order(node, before.dim())
        # Dimensions of size 1 may move; the others must keep their order.
        moved = [dim for dim in order if not same_size(before.shape[dim], 1)]
        return moved == sorted(moved)
    if node.target in (aten.expand_copy.default, aten.repeat.default):
        grown = after.shape[len(after.shape) - len(before.shape) :]
        return all(same_size(a, b) for a, b in zip(before.shape, grown, strict=True)) and all(
            same_size(size, 1) for size in after.shape[: len(after.shape) - len(before.shape)]
        )
    return True


def _order(node: Node, rank: int) -> list[int]:
    order = list(range(rank))
    if node.target is aten.permute_copy.default:
        order = [dim % rank for dim in ints_arg(node, 1)]
    elif node.target is aten.t_copy.default:
        order.reverse()
    else:
        first, second = int_arg(node, 1) % rank, int_arg(node, 2) % rank
        order[first], order[second] = order[second], order[first]
    return order


def _sizes(node: Node, val: torch.Tensor) -> list[Any] | None:
    """Returns the sizes as integers and nodes of the graph, with at most one -1 for a size known only at run time.

    Returns None if the run time cannot compute the size: several are unknown, or the tensor has no elements.
    """
    if all(isinstance(size, int) for size in val.shape):
        return list(val.shape)
    if node.target is aten.view_copy.default:
        return list(list_arg(node, 1))
    symbolic = [dim for dim, size in enumerate(val.shape) if not isinstance(size, int)]
    return (
        [-1 if dim in symbolic else size for dim, size in enumerate(val.shape)]
        if len(symbolic) == 1 and not any(same_size(size, 0) for size in val.shape)
        else None
    )


def _static(val: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in val.shape)


def _chunk_offset(node: Node, before: torch.Tensor, after: torch.Tensor) -> int | None:
    """Returns the byte offset of a select or slice in its source, or None if the result is not contiguous there."""
    if not _static(before) or not _static(after) or after.numel() == 0:
        return None
    dim, *bounds = node.args[1:] or (0,)
    dim = dim % before.dim() if isinstance(dim, int) else None
    if dim is None or any(size != 1 for size in before.shape[:dim]):
        return None
    length = before.shape[dim]
    if node.target is aten.select_copy.int:
        start: Any = bounds[0]
    else:
        start, step = (bounds[0] if bounds else 0), (bounds[2] if len(bounds) > 2 else 1)
        start = 0 if start is None else start
        if step != 1:
            return None
    if not isinstance(start, int):
        return None
    start = min(max(start + length if start < 0 else start, 0), length)
    result: int | None = start * math.prod(before.shape[dim + 1 :]) * before.dtype.itemsize
    return result


def _split_to_chunks(program: ExportedProgram, node: Node, inputs: set[Node], results: set[Node]) -> None:
    """Replaces a split along the outermost dimension by one slice for each part, because the parts are contiguous."""
    source = node.args[0]
    if not isinstance(source, Node) or not _plain(source.meta.get("val")):
        return
    before: torch.Tensor = source.meta["val"]
    if not all(map(_static, (before, *node.meta["val"]))):
        return
    if not all(user.target is operator.getitem for user in node.users):
        return
    if _root(source) in inputs or _root(source) in results or any(user in results for user in node.users):
        return
    unbind = node.target is aten.unbind_copy.int
    place = 1 if unbind else 2
    dim = (int_arg(node, place) if len(node.args) > place else 0) % before.dim()
    if not all(same_size(size, 1) for size in before.shape[:dim]):
        return
    starts = [0]
    for part in node.meta["val"]:
        starts.append(starts[-1] + (1 if unbind else part.shape[dim]))
    for user in list(node.users):
        index = int_arg(user, 1)
        target: Any = aten.select_copy.int if unbind else aten.slice_copy.Tensor
        args: tuple[Any, ...] = (
            (source, dim, index) if unbind else (source, dim, starts[index], starts[index + 1])
        )
        replace(program, user, call(user, target, args, val=user.meta["val"], like=user))
    node.graph.erase_node(node)
