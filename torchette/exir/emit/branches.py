# SPDX-License-Identifier: BSD-3-Clause
# In: a cond or a while loop. Out: the instructions of its branches, with jumps and moves around them.
"""The instructions of control flow."""

from __future__ import annotations

from typing import Any, Protocol

from torch.fx import GraphModule, Node

from torchette.exir import control_flow
from torchette.exir.emit.records import scalar_record
from torchette.exir.emit.tables import Tables
from torchette.exir.interface import specs_of
from torchette.format import pte


class Branching(Tables, Protocol):
    """Tables, and the emission of a graph into them."""

    def graph(self, module: GraphModule) -> None:
        """Emits a graph. Its placeholders must have values."""


def cond(method: Branching, node: Node) -> None:
    """Emits a cond: jumps skip the other branch. Tensors are computed in the storage of the result; scalars are
    moved."""
    values = node.meta["val"]
    results = [
        method.values.add(scalar_record(value)) if spec is None else method.values.tensor(spec)
        for value, spec in zip(values, specs_of(node), strict=True)
    ]
    operands = [method.values.argument(value, "") for value in control_flow.shared(node)]
    if_true, if_false = control_flow.branches(node)
    to_false = _jump(method, method.values.argument(node.args[0], ""), node)
    _move(method, node, _branch(method, if_true, operands), results)
    to_end = _jump(method, method.values.scalar(False), node)
    to_false.destination_instruction = len(method.code.instructions)
    _move(method, node, _branch(method, if_false, operands), results)
    to_end.destination_instruction = len(method.code.instructions)
    method.values.of_node[node] = tuple(results)


def while_loop(method: Branching, node: Node) -> None:
    """Emits a loop: a jump to the end if the condition is false, and a jump back after the body. Carried values keep
    their location."""
    first = [method.values.argument(value, "") for value in control_flow.carried(node)]
    results = [
        method.values.add(scalar_record(value)) if spec is None else method.values.tensor(spec)
        for value, spec in zip(node.meta["val"], specs_of(node), strict=True)
    ]
    operands = [*results, *(method.values.argument(value, "") for value in control_flow.shared(node))]
    condition, body = control_flow.branches(node)
    _move(method, node, first, results)
    start = len(method.code.instructions)
    (condition_value,) = _branch(method, condition, operands)
    to_end = _jump(method, condition_value, node)
    _move(method, node, _branch(method, body, operands), results)
    _jump(method, method.values.scalar(False), node).destination_instruction = start
    to_end.destination_instruction = len(method.code.instructions)
    method.values.of_node[node] = tuple(results)


def _branch(method: Branching, branch: GraphModule, operands: list[int]) -> list[int]:
    """Emits a branch and returns the values of its results."""
    method.values.of_node.update(zip(control_flow.inputs(branch), operands, strict=True))
    method.graph(branch)
    return [method.values.argument(value, "") for value in control_flow.results(branch)]


def _jump(tables: Tables, condition: int, node: Node) -> Any:
    """Appends a jump that is taken if the condition is false. The caller sets the destination."""
    record = pte.JumpFalseCall(condition, 0)
    tables.code.append(record, node)
    return record


def _move(tables: Tables, node: Node, sources: list[int], targets: list[int]) -> None:
    """Moves all values simultaneously, except those with equal source and target."""
    moves = [(source, target) for source, target in zip(sources, targets, strict=True) if source != target]
    overwritten = {target for _, target in moves}
    for index, (source, target) in enumerate(moves):
        if source in overwritten:
            kept = tables.values.add(tables.values.records[source].val)
            tables.code.append(pte.MoveCall(source, kept), node)
            moves[index] = (kept, target)
    for source, target in moves:
        tables.code.append(pte.MoveCall(source, target), node)
