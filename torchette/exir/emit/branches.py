# SPDX-License-Identifier: BSD-3-Clause
# A cond or a loop comes in, jumps and moves around the instructions of its branches are appended.
"""What control flow becomes."""

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
        """Emit a graph whose placeholders have values already."""


def cond(method: Branching, node: Node) -> None:
    """Jump over the side that is not taken. Its tensors are computed where the result lies, its numbers moved there."""
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
    """Jump out where the condition fails, else back behind the body. What is carried has one place throughout."""
    first = [method.values.argument(value, "") for value in control_flow.carried(node)]
    results = [
        method.values.add(scalar_record(value)) if spec is None else method.values.tensor(spec)
        for value, spec in zip(node.meta["val"], specs_of(node), strict=True)
    ]
    operands = [*results, *(method.values.argument(value, "") for value in control_flow.shared(node))]
    condition, body = control_flow.branches(node)
    _move(method, node, first, results)
    start = len(method.code.instructions)
    (goes_on,) = _branch(method, condition, operands)
    to_end = _jump(method, goes_on, node)
    _move(method, node, _branch(method, body, operands), results)
    _jump(method, method.values.scalar(False), node).destination_instruction = start
    to_end.destination_instruction = len(method.code.instructions)
    method.values.of_node[node] = tuple(results)


def _branch(method: Branching, branch: GraphModule, operands: list[int]) -> list[int]:
    """Emit a branch; the values of its results."""
    method.values.of_node.update(zip(control_flow.inputs(branch), operands, strict=True))
    method.graph(branch)
    return [method.values.argument(value, "") for value in control_flow.results(branch)]


def _jump(tables: Tables, condition: int, node: Node) -> Any:
    """A jump where the condition does not hold; its destination is to be set."""
    record = pte.JumpFalseCall(condition, 0)
    tables.code.append(record, node)
    return record


def _move(tables: Tables, node: Node, sources: list[int], targets: list[int]) -> None:
    """Move all values at once; what is where it should be stays."""
    moves = [(source, target) for source, target in zip(sources, targets, strict=True) if source != target]
    overwritten = {target for _, target in moves}
    for index, (source, target) in enumerate(moves):
        if source in overwritten:
            kept = tables.values.add(tables.values.records[source].val)
            tables.code.append(pte.MoveCall(source, kept), node)
            moves[index] = (kept, target)
    for source, target in moves:
        tables.code.append(pte.MoveCall(source, target), node)
