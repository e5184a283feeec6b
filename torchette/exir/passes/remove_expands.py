# SPDX-License-Identifier: BSD-3-Clause
# In: a graph. Out: the graph without expanded copies of operands of elementwise operators, which broadcast their operands
# themselves.
"""Removes expansions that an elementwise operator performs itself."""

from __future__ import annotations

from collections.abc import Sequence

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
        for user in [user for user in node.users if broadcasts(user, node, source.meta["val"].shape)]:
            user.replace_input_with(node, source)
            count += 1
        if not node.users:
            node.graph.erase_node(node)
    if count:
        note(program, f"{count} operands are broadcast instead of expanded")
    return program


def broadcasts(user: Node, operand: Node, shape: Sequence[int | torch.SymInt]) -> bool:
    """Returns whether the result of a call keeps its shape and dtype if the call broadcasts an operand.

    Args:
        user: a call that reads `operand`.
        operand: a tensor.
        shape: the shape of a tensor of the same dtype that expands to the shape of `operand`.
    """
    if not ops.is_pointwise(user.target) or ops.is_mutating(user.target):
        return False
    expanded, rank = operand.meta["val"].shape, len(shape)
    if rank == 0:
        return False  # a scalar does not take part in type promotion
    values = [node.meta["val"] for node in user.all_input_nodes if node is not operand]
    others = [value.shape for value in values if isinstance(value, torch.Tensor)]
    for dim in range(1, len(expanded) + 1):  # from the last dimension
        if dim <= rank and same_size(shape[-dim], expanded[-dim]):
            continue
        if not any(dim <= len(other) and same_size(other[-dim], expanded[-dim]) for other in others):
            return False
    return True
