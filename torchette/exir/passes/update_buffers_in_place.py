# SPDX-License-Identifier: BSD-3-Clause
# In: new values of buffers, which torch.export returns as additional outputs, and of loop-carried values. Out: calls
# that write into the buffer: the update itself if the old value is not read later, otherwise a copy at the end.
"""Updates buffers in place."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from torchette.exir import control_flow, ops
from torchette.exir.graph import (
    buffer_updates,
    call,
    calls,
    note,
    outputs,
    same_shape,
    sync_signature,
)

aten = torch.ops.aten


def update_buffers_in_place(program: ExportedProgram) -> ExportedProgram:
    """Write new values of buffers and carried values over the old ones. Insert a copy only if this would be
    incorrect."""
    specs = program.graph_signature.output_specs
    updates = [(specs.index(spec), buffer) for spec, _, buffer in buffer_updates(program)]
    results = outputs(program)
    counts = [_update(program.graph, results, updates)]
    program.graph.output_node().args = (tuple(results),)
    sync_signature(program)
    for loop in list(calls(program)):
        if control_flow.name(loop.target) != "while_loop":
            continue
        body = control_flow.branches(loop)[1]
        results = control_flow.results(body)
        carried = [
            (index, buffer)
            for index, buffer in enumerate(control_flow.inputs(body)[: len(results)])
            if isinstance(buffer.meta["val"], torch.Tensor)
        ]
        counts.append(_update(body.graph, results, carried))
        control_flow.set_results(body, results)
    in_place, copies = (sum(count) for count in zip(*counts, strict=True))
    if in_place or copies:
        note(program, f"{in_place} buffers updated in place, {copies} copied back")
    return program


def _update(graph: Graph, results: list[Any], updates: list[tuple[int, Node]]) -> tuple[int, int]:
    """Writes results, by index, into placeholders. Returns (number of in-place updates, number of copies)."""
    _keep_old_values(graph, results, updates)
    order = {node: index for index, node in enumerate(graph.nodes)}
    in_place = copies = 0
    written: set[Node] = set()
    for index, buffer in updates:
        value = results[index]
        if value is buffer or value.meta.get("in_place") == (buffer, 0):
            continue
        if value not in written and _can_write_through(value, buffer, order, results):
            value.meta["in_place"] = (buffer, 0)
            written.add(value)
            in_place += 1
            continue
        end = graph.output_node()
        copied = call(end, aten.copy.default, (buffer, value), val=buffer.meta["val"], like=value)
        copied.meta["in_place"] = (buffer, 0)
        results[index] = copied
        copies += 1
    return in_place, copies


def _keep_old_values(graph: Graph, results: list[Any], updates: list[tuple[int, Node]]) -> None:
    """Copies results, and values of other buffers, that share the storage of a buffer before the buffer is
    overwritten."""
    buffer_of = dict(updates)
    mutated = {buffer for index, buffer in updates if results[index] is not buffer}
    for index, value in enumerate(results):
        if not isinstance(value, Node) or _root(value) not in mutated or buffer_of.get(index) is value:
            continue
        if value.meta.get("in_place") == (buffer_of.get(index), 0):
            continue
        copied = call(value.next, aten.clone.default, (value,), val=value.meta["val"], like=value)
        if copied.next.op == "placeholder":
            next(node for node in graph.nodes if node.op != "placeholder").prepend(copied)
        results[index] = copied


def _can_write_through(value: Node, buffer: Node, order: dict[Node, int], results: list[Any]) -> bool:
    if value.op != "call_function" or not ops.is_operator(value.target) or "alias" in value.meta:
        return False
    new, old = value.meta.get("val"), buffer.meta.get("val")
    if (
        not isinstance(new, torch.Tensor)
        or not isinstance(old, torch.Tensor)
        or new.dtype != old.dtype
        or not same_shape(new.shape, old.shape)
    ):
        return False
    # The value is also an output of the method, and its caller must not see later updates.
    if results.count(value) > 1:
        return False
    readers = _readers(buffer)
    if any(reader.op == "output" or order[reader] > order[value] for reader in readers):
        return False
    if value not in readers:
        # Any operator may overwrite a buffer that is no longer read.
        return True
    if value.target in ops.PARTIAL_UPDATES:
        sources = [source for source in value.all_input_nodes if source is not value.args[0]]
        return value.args[0] is buffer and not any(_root(source) is buffer for source in sources)
    # An element-wise operator may overwrite an operand if no operand is broadcast or an alias.
    return ops.is_pointwise(value.target) and all(
        source is buffer or _root(source) is not buffer for source in value.all_input_nodes
    )


def _readers(buffer: Node) -> set[Node]:
    """Returns all readers of the buffer's storage, including those of aliases."""
    readers: set[Node] = set()
    stack = [buffer]
    while stack:
        for user in stack.pop().users:
            if "alias" in user.meta:
                stack.append(user)
            readers.add(user)
    return readers


def _root(node: Node) -> Node:
    while "alias" in node.meta:
        node = node.meta["alias"][0]
    return node
