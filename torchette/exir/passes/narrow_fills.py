# SPDX-License-Identifier: BSD-3-Clause
# In: a graph. Out: the graph in which an elementwise operator reads one element instead of a tensor of equal elements.
# Otherwise `ones_like(x)`, which a mask or a default value often is, occupies as much memory as x.
"""Replaces tensors of equal elements by one element, or by a tensor that constant folding can compute."""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir.graph import call, calls, is_dense, note, replace
from torchette.exir.passes.remove_expands import broadcasts

aten = torch.ops.aten


# Fills of up to this size in bytes with equal elements are one value, which constant folding stores once.
_SHARED = 4096


def narrow_fills(program: ExportedProgram) -> ExportedProgram:
    """Pass one element to elementwise operators instead of a tensor of equal elements."""
    fills, count = _Fills(), 0
    for node in calls(program, aten.full.default, aten.full_like.default):
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor) or val.dim() == 0 or not is_dense(val):
            continue
        users = [] if _has_one_element(val) else list(node.users)
        for user in users:
            if broadcasts(user, node, [1]):
                user.replace_input_with(node, fills.full(node, val, [1]))
                count += 1
        if not node.users:
            node.graph.erase_node(node)
        elif node.target is aten.full_like.default and all(isinstance(size, int) for size in val.shape):
            # A tensor of a known shape depends on no input, so that reductions of it are computed ahead of time.
            replace(program, node, fills.full(node, val, list(val.shape)))
    if count:
        note(program, f"{count} operands are one element instead of a tensor of equal elements")
    return program


def _has_one_element(val: torch.Tensor) -> bool:
    return all(isinstance(size, int) and size == 1 for size in val.shape)


class _Fills:
    """The calls of `full` that replace others, which are visited in the order of the graph."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Node] = {}

    def full(self, node: Node, val: torch.Tensor, shape: list[int]) -> Node:
        """Returns a tensor with the elements of `node` in a known shape."""
        value = node.args[1]
        # The texts of 0.0 and -0.0 differ.
        key = node.graph, tuple(shape), val.dtype, value if isinstance(value, Node) else repr(value)
        if key in self._known:
            return self._known[key]
        args = (shape, value)
        fill = call(node, aten.full.default, args, {"dtype": val.dtype}, val=val.new_empty(shape), like=node)
        if math.prod(shape) * val.dtype.itemsize <= _SHARED:
            self._known[key] = fill
        return fill
