# SPDX-License-Identifier: BSD-3-Clause
# In: branches that return any tensors, and loops with any initial values. Out: branches that write their results to the
# storage of the call's result, and loops that own the tensors that they carry.
"""Assigns one storage to each result of a branch, so that no copy is needed when the branch ends."""

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
    """Let both branches of a cond write into its result. Copy the initial values of loops that may not be
    overwritten."""
    copies = 0
    for module in list(control_flow.graphs(program.graph_module)):
        inputs = (
            set(placeholders(program)) if module is program.graph_module else set(control_flow.inputs(module))
        )
        for node in list(module.graph.nodes):
            kind = control_flow.name(node.target)
            if kind == "cond":
                copies += _own_results(node)
            elif kind == "while_loop":
                copies += _own_carried(node, inputs)
    if copies:
        note(program, f"{copies} copies at the boundaries of branches")
    return program


def _own_results(node: Node) -> int:
    """Ensures that each tensor that a branch of a cond returns is computed in the branch, and only for this result."""
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
    """Returns whether the tensor is the result of a kernel, which can be written to any storage."""
    if value.op != "call_function" or "alias" in value.meta or "in_place" in value.meta:
        return False
    if value.target is operator.getitem:
        source: Any = value.args[0]
        # The result of a loop uses the storage to which its initial value was copied.
        same = [user for user in source.users if user.args[1] == value.args[1]]
        return control_flow.name(source.target) != "while_loop" and len(same) == 1
    return ops.is_operator(value.target)


def _layout(value: Node) -> tuple[Any, ...]:
    return _layout_of(value.meta["val"])


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.dim()


def _own_carried(node: Node, inputs: set[Node]) -> int:
    """Copies the initial values of a loop that have other uses, because the loop overwrites them."""
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
        # A tensor that already contains the first slice was created for this loop.
        is_writable = _is_computed(value) or value.target is ops.copy_index
        if mine and value not in inputs and is_writable and value.target is not operator.getitem:
            continue
        values[index] = call(node, aten.clone.default, (value,), val=value.meta["val"], like=value)
        copies += 1
    node.update_arg(2, tuple(values))
    return copies
