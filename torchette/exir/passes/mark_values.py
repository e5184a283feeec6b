# SPDX-License-Identifier: BSD-3-Clause
# Calls of out variants and functions on numbers come in; those that need no instruction of their own are marked with
# meta["no_instruction"], which the emitter obeys.
"""Calls that need no instruction of their own are marked."""

from __future__ import annotations

import operator

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import ops
from torchette.exir.graph import calls

# What the runtime compares with a text in the place of the result: an error where the comparison does not hold.
_COMPARISONS = frozenset({operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge})


def mark_values(program: ExportedProgram) -> ExportedProgram:
    """Mark comparisons that are part of the assertions that read them, and memory to which nothing is written."""
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
