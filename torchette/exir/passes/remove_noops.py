# SPDX-License-Identifier: BSD-3-Clause
# In: a graph. Out: the graph without calls that return their input: casts to the same dtype, clones, expands to the
# same shape, full slices, permutations that keep the order, concatenations of one tensor.
"""Removes operators that have no effect."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir.arguments import int_arg, ints_arg, list_arg, node_arg
from torchette.exir.graph import calls, is_dense, note, outputs, placeholders, replace, same_shape, same_size

aten = torch.ops.aten

# With equal dtype and shape, and therefore equal bytes, these operators yield their first argument.
_MAYBE_IDENTITY = frozenset(
    {
        aten._to_copy.default, aten.clone.default, aten.alias_copy.default, aten.detach_copy.default,
        aten.lift_fresh_copy.default, aten.lift_fresh.default, aten.expand_copy.default, aten.view_copy.default,
        aten.slice_copy.Tensor, aten.narrow_copy.default, aten.squeeze_copy.dims, aten.squeeze_copy.dim,
        aten.constant_pad_nd.default, aten.repeat.default, aten.alias.default, aten.detach.default,
        aten._adaptive_avg_pool2d.default, aten.cat.default,
    }
)  # fmt: skip
_PERMUTATIONS = frozenset({aten.permute_copy.default})


def remove_noops(program: ExportedProgram) -> ExportedProgram:
    """Remove calls that return their input unchanged."""
    count = 0
    inputs, results = set(placeholders(program)), set(outputs(program))
    for node in calls(program, *_MAYBE_IDENTITY, *_PERMUTATIONS):
        source = node.args[0]
        if node.target is aten.cat.default and len(list_arg(node)) == 1:
            (source,) = list_arg(node)
        if not isinstance(source, Node) or not _is_identity(node, source):
            continue
        # An output that copies an input or a buffer must stay a copy, because the original may be overwritten.
        if node in results and source in inputs:
            continue
        replace(program, node, source)
        count += 1
    for node in calls(program, aten.select_copy.int):
        _squeeze(node)
    if count:
        note(program, f"{count} calls without effect removed")
    return program


def _squeeze(node: Node) -> None:
    """Replaces the selection from a dimension of size 1 by an operator that copies nothing."""
    source = node_arg(node)
    val, dim = source.meta["val"], int_arg(node, 1)
    if same_size(val.shape[dim], 1):
        node.target, node.args = aten.squeeze_copy.dims, (source, [dim])


def _is_identity(node: Node, source: Node) -> bool:
    before, after = source.meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    if before.dtype != after.dtype or not same_shape(before.shape, after.shape):
        return False
    if is_dense(before) != is_dense(after):
        return False
    if node.target in _PERMUTATIONS:
        return [dim % before.dim() for dim in ints_arg(node, 1)] == list(range(before.dim()))
    if node.target is aten.constant_pad_nd.default:
        return all(amount == 0 for amount in list_arg(node, 1))
    return True
