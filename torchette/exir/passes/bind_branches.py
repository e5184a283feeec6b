# SPDX-License-Identifier: BSD-3-Clause
# In: branches that return any tensor, and loops that start from any tensor. Out: branches whose
# results are computed in the place of the call's result, and loops that own the tensors that they carry.
"""The result of a branch has one place, so nothing is moved when the branch ends."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import control_flow, ops
from torchette.exir.graph import call, note, placeholders

aten = torch.ops.aten


def bind_branches(program: ExportedProgram) -> ExportedProgram:
    """Let both sides of a cond write into its result, and loops start from copies that they may overwrite."""
    copies = 0
    for module in list(control_flow.graphs(program.graph_module)):
        kept = (
            set(placeholders(program)) if module is program.graph_module else set(control_flow.inputs(module))
        )
        for node in list(module.graph.nodes):
            kind = control_flow.name(node.target)
            if kind == "cond":
                copies += _own_results(node)
            elif kind == "while_loop":
                copies += _own_carried(node, kept)
    if copies:
        note(program, f"{copies} copies at the edges of branches")
    return program


def _own_results(node: Node) -> int:
    """Each tensor that a branch of a cond returns is computed in it, only for this result."""
    copies = 0
    for branch in control_flow.branches(node):
        end = branch.graph.output_node()
        values = control_flow.results(branch)
        for index, (value, result) in enumerate(zip(values, node.meta["val"], strict=True)):
            if not isinstance(result, torch.Tensor):
                continue
            if not _is_computed(value) or value in values[:index] or _layout(value) != _layout_of(result):
                values[index] = call(end, aten.clone.default, (value,), val=value.meta["val"], like=value)
                copies += 1
        control_flow.set_results(branch, values)
    return copies


def _is_computed(value: Node) -> bool:
    """Whether the tensor is a kernel's own result, which may be written anywhere."""
    if value.op != "call_function" or "alias" in value.meta or "in_place" in value.meta:
        return False
    if value.target is operator.getitem:
        source: Any = value.args[0]
        # A loop's result is in the place to which its first value was copied.
        same = [user for user in source.users if user.args[1] == value.args[1]]
        return control_flow.name(source.target) != "while_loop" and len(same) == 1
    return ops.is_operator(value.target)


def _layout(value: Node) -> tuple[Any, ...]:
    return _layout_of(value.meta["val"])


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.dim()


def _own_carried(node: Node, kept: set[Node]) -> int:
    """The start value of a loop is copied, unless nothing else uses it: the loop writes its new values there."""
    copies = 0
    values = control_flow.carried(node)
    for index, value in enumerate(values):
        if not isinstance(value, Node) or not isinstance(value.meta.get("val"), torch.Tensor):
            continue
        mine = (
            list(value.users) == [node]
            and values.count(value) == 1
            and value not in control_flow.shared(node)
        )
        # What holds a first slice already was made for this loop.
        own = _is_computed(value) or value.target is ops.copy_index
        if mine and value not in kept and own and value.target is not operator.getitem:
            continue
        values[index] = call(node, aten.clone.default, (value,), val=value.meta["val"], like=value)
        copies += 1
    node.update_arg(2, tuple(values))
    return copies
