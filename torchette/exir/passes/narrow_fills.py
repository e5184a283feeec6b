# SPDX-License-Identifier: BSD-3-Clause
# In: a graph. Out: the graph in which an elementwise operator reads one element instead of a tensor of equal elements.
# Otherwise `ones_like(x)`, which a mask or a default value often is, occupies as much memory as x.
"""Replaces tensors of equal elements by one element, or by a tensor that constant folding can compute."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir.graph import call, calls, is_dense, note, replace
from torchette.exir.passes.remove_expands import broadcasts

aten = torch.ops.aten


def narrow_fills(program: ExportedProgram) -> ExportedProgram:
    """Pass one element to elementwise operators instead of a tensor of equal elements."""
    count = 0
    for node in calls(program, aten.full.default, aten.full_like.default):
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor) or val.dim() == 0 or not is_dense(val):
            continue
        count += _broadcast(node, val)
        if not node.users:
            node.graph.erase_node(node)
        elif node.target is aten.full_like.default and all(isinstance(size, int) for size in val.shape):
            # A tensor of a known shape depends on no input, so that reductions of it are computed ahead of time.
            replace(program, node, _full(node, val, list(val.shape)))
    if count:
        note(program, f"{count} operands are one element instead of a tensor of equal elements")
    return program


def _broadcast(node: Node, val: torch.Tensor) -> int:
    """Replaces `node` by one element in the calls that broadcast it. Returns the count of these calls."""
    users = list(node.users)
    if all(isinstance(size, int) and size == 1 for size in val.shape):
        return 0
    element: Node | None = None
    count = 0
    for user in users:
        if broadcasts(user, node, [1]):
            element = element or _full(node, val, [1])
            user.replace_input_with(node, element)
            count += 1
    return count


def _full(node: Node, val: torch.Tensor, shape: list[int]) -> Node:
    value = node.args[1]
    args = (shape, value)
    return call(node, aten.full.default, args, {"dtype": val.dtype}, val=val.new_empty(shape), like=node)
