# SPDX-License-Identifier: BSD-3-Clause
# In: calls of out variants and functions on scalars. Out: the same calls; meta["no_instruction"] marks those for which
# the emitter writes no instruction.
"""Marks calls that need no separate instruction."""

from __future__ import annotations

import operator

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import ops
from torchette.exir.graph import calls

# The runtime evaluates these comparisons as part of an assertion: a message replaces the result operand.
_COMPARISONS = frozenset({operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge})


def mark_values(program: ExportedProgram) -> ExportedProgram:
    """Mark comparisons that an assertion includes, and uninitialized planned memory."""
    for node in calls(program):
        if _is_asserted(node) or _is_planned_memory(node):
            node.meta["no_instruction"] = True
    return program


def _is_asserted(node: Node) -> bool:
    return node.target in _COMPARISONS and all(user.target is ops.assert_scalar for user in node.users)


def _is_planned_memory(node: Node) -> bool:
    value = node.meta.get("val")
    return (
        node.target is torch.ops.aten.empty.out
        and isinstance(value, torch.Tensor)
        and all(isinstance(size, int) for size in value.shape)
    )
