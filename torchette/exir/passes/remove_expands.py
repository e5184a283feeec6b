# SPDX-License-Identifier: BSD-3-Clause
# In: a graph. Out: the graph without expanded copies of operands of elementwise operators, which broadcast their operands
# themselves.
"""Removes expansions that an elementwise operator performs itself."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import ops
from torchette.exir.arguments import node_arg
from torchette.exir.graph import calls, note, same_size

aten = torch.ops.aten


def remove_expands(program: ExportedProgram) -> ExportedProgram:
    """Pass operands to elementwise operators without expanding them."""
    count = 0
    for node in calls(program, aten.expand_copy.default):
        source = node_arg(node)
        for user in [user for user in node.users if _broadcasts(user, node, source)]:
            user.replace_input_with(node, source)
            count += 1
        if not node.users:
            node.graph.erase_node(node)
    if count:
        note(program, f"{count} operands are broadcast instead of expanded")
    return program


def _broadcasts(user: Node, expanded: Node, source: Node) -> bool:
    """Returns whether the result of an operator keeps its shape and dtype if it reads the source of the expansion."""
    if not ops.is_pointwise(user.target) or ops.is_mutating(user.target):
        return False
    shape, rank = expanded.meta["val"].shape, source.meta["val"].dim()
    if rank == 0:
        return False  # a scalar does not take part in type promotion
    values = [node.meta["val"] for node in user.all_input_nodes if node is not expanded]
    others = [value.shape for value in values if isinstance(value, torch.Tensor)]
    for dim in range(1, len(shape) + 1):  # from the last dimension
        if dim <= rank and same_size(source.meta["val"].shape[-dim], shape[-dim]):
            continue
        if not any(dim <= len(other) and same_size(other[-dim], shape[-dim]) for other in others):
            return False
    return True
