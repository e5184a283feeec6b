# SPDX-License-Identifier: BSD-3-Clause
# In: a graph. Out: the graph without unused calls and unused stored tensors.
"""Removes calls that do not affect the outputs."""

from __future__ import annotations

import operator

from torch.export import ExportedProgram

from torchette.exir import control_flow, ops
from torchette.exir.graph import drop_unused_branches, drop_unused_constants, graph_modules, note


def remove_dead_code(program: ExportedProgram) -> ExportedProgram:
    """Erase pure calls without users, and the tensors that only they read."""
    removed = 0
    for module in reversed(list(graph_modules(program))):  # branches before the calls that run them
        for node in reversed(list(module.graph.nodes)):
            if control_flow.form(node) is not None:
                control_flow.drop_unused_operands(node)
            pure = node.op == "get_attr" or (
                node.op == "call_function"
                and (
                    node.target is operator.getitem or ops.is_symbolic(node.target) or _removable(node.target)
                )
            )
            if pure and not node.users and node.target not in ops.ASSERTIONS:
                module.graph.erase_node(node)
                removed += 1
        drop_unused_branches(module)
    tensors = drop_unused_constants(program)
    if removed or tensors:
        note(program, f"{removed} unused calls and {tensors} unused stored tensors removed")
    return program


def _removable(target: object) -> bool:
    return bool(control_flow.name(target)) or (ops.is_operator(target) and not ops.is_mutating(target))
