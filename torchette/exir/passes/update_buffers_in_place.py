# SPDX-License-Identifier: BSD-3-Clause
# New values of buffers, which export returns as extra outputs, come in; calls that write into the buffer itself go
# out: the update itself where nothing reads the old value later, else a copy at the end.
"""Buffers are updated where they lie."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import ops
from torchette.exir.graph import (
    buffer_updates,
    call,
    note,
    outputs,
    same_shape,
)

aten = torch.ops.aten

# Each reads and writes only where the other operands say, the rest of the buffer stays: with the buffer as `self`
# and as the result, the bytes that do not change are not touched.
_PARTIAL = frozenset({aten.index_put.default, aten.slice_scatter.default, aten.select_scatter.default,
                      aten.scatter.src, aten.scatter.value, aten.scatter_add.default})  # fmt: skip


def update_buffers_in_place(program: ExportedProgram) -> ExportedProgram:
    """Mark each update of a buffer with meta["in_place"] = (the buffer, 0), with a copy where nothing cheaper is right."""
    updates = buffer_updates(program)
    _keep_old_values(program, {buffer for _, value, buffer in updates if value is not buffer})
    updates = buffer_updates(program)
    order = {node: index for index, node in enumerate(program.graph.nodes)}
    in_place = copies = 0
    taken: set[Node] = set()
    for spec, value, buffer in updates:
        if value is buffer:
            continue
        if value not in taken and _can_write_through(program, value, buffer, order):
            value.meta["in_place"] = (buffer, 0)
            taken.add(value)
            in_place += 1
            continue
        end = program.graph.output_node()
        copied = call(end, aten.copy.default, (buffer, value), val=buffer.meta["val"], like=value)
        copied.meta["in_place"] = (buffer, 0)
        results = outputs(program)
        results[program.graph_signature.output_specs.index(spec)] = copied
        end.args = (tuple(results),)
        spec.arg = type(spec.arg)(copied.name)
        copies += 1
    if updates:
        note(program, f"{in_place} buffers updated in place, {copies} copied back")
    return program


def _keep_old_values(program: ExportedProgram, mutated: set[Node]) -> None:
    """What is returned, or goes into another buffer, must not change when the buffer that it lies in is written."""
    end = program.graph.output_node()
    specs = program.graph_signature.output_specs
    results = outputs(program)
    own = {id(spec): buffer for spec, _, buffer in buffer_updates(program)}
    for index, (value, spec) in enumerate(zip(results, specs, strict=True)):
        if not isinstance(value, Node) or _root(value) not in mutated or own.get(id(spec)) is value:
            continue
        kept = call(value.next, aten.clone.default, (value,), val=value.meta["val"], like=value)
        if kept.next.op == "placeholder":
            next(node for node in program.graph.nodes if node.op != "placeholder").prepend(kept)
        results[index] = kept
        spec.arg = type(spec.arg)(kept.name)
    end.args = (tuple(results),)


def _can_write_through(program: ExportedProgram, value: Node, buffer: Node, order: dict[Node, int]) -> bool:
    if value.op != "call_function" or not ops.is_operator(value.target) or "alias" in value.meta:
        return False
    new, old = value.meta.get("val"), buffer.meta.get("val")
    if not isinstance(new, torch.Tensor) or new.dtype != old.dtype or not same_shape(new.shape, old.shape):
        return False
    # The result is an output of the method as well: its caller must not see later updates.
    if outputs(program).count(value) > 1:
        return False
    readers = _readers(buffer)
    if any(reader.op == "output" or order[reader] > order[value] for reader in readers):
        return False
    if value not in readers:
        # Any operator may overwrite a buffer that nobody reads any more.
        return True
    if value.target in _PARTIAL:
        rest = [source for source in value.all_input_nodes if source is not value.args[0]]
        return value.args[0] is buffer and not any(_root(source) is buffer for source in rest)
    # Element by element, reading and writing the same place is right if no operand is broadcast or an alias.
    return ops.is_pointwise(value.target) and all(
        source is buffer or _root(source) is not buffer for source in value.all_input_nodes
    )


def _readers(buffer: Node) -> set[Node]:
    """All that reads the buffer's bytes, through aliases too."""
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
