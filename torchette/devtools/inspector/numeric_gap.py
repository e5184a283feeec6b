# SPDX-License-Identifier: BSD-3-Clause
# In: the values that a device logged, and a recorded graph with inputs. The graph runs on this machine, and the result
# of each call is compared with the device's value that has the same debug handle. Out: a table in execution order.
"""Compares the values of a device with those of a recorded graph, to find the operation that departs first."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torchette.devtools.inspector.events import OPERATOR_CALL_EVENT, Event, EventBlock
from torchette.devtools.inspector.numerical_comparator import comparator
from torchette.devtools.inspector.table import Table
from torchette.devtools.inspector.values import is_tensor
from torchette.errors import InputError
from torchette.exir.etrecord import EDGE_PROGRAM, EXPORTED_PROGRAM, ETRecord
from torchette.packages import require
from torchette.units import counted

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node


class Blocks(Protocol):
    """The interface of an Inspector that this file uses: its method and its events."""

    method: str
    event_blocks: list[EventBlock]


def numeric_gap(inspector: Blocks, record: ETRecord, distance: object, reference_graph: str | None) -> Table:
    """Returns the table of `Inspector.calculate_numeric_gap`, and raises the same errors."""
    measure = comparator(distance, inspector)
    require("torch", "calculate_numeric_gap, which runs the recorded graph,")
    module, graph_name = _reference(record, inspector.method, reference_graph)
    values = _run(module, _inputs(record, inspector.method))
    nodes = [node for node in values if node.meta.get("debug_handle")]
    pairs: dict[Any, Any] = {}
    runtime_names: dict[tuple[int, ...], list[str]] = {}
    incomparable: list[dict[str, Any]] = []
    for event, node, logged in _matches(inspector, nodes):
        ours = tuple(values[node]) if isinstance(values[node], (list, tuple)) else values[node]
        theirs = _corresponding(logged, ours)
        handle = (node.meta["debug_handle"],)
        if theirs is not None:
            pairs[(handle, ours)] = (event.handles, theirs)
            runtime_names[event.handles] = [event.name]
        else:
            incomparable.append(_incomparable(handle, node, ours, event, logged))
    if not pairs and not incomparable:
        raise InputError(
            f"none of the logged values belongs to a call of {graph_name!r}",
            hints=[
                "log values: load_program(path, enable_etdump=True, debug_buffer_size=...)",
                "pass the debug buffer: Inspector(..., debug_buffer_path=...)",
            ],
        )
    names: dict[tuple[int, ...], list[str]] = {}
    for node in nodes:
        names.setdefault((node.meta["debug_handle"],), []).append(node.name)
    table = measure.compare(pairs, names, runtime_names)
    if not isinstance(table, Table):  # the user's comparator returned another type
        return table
    table = _with_incomparable(table, incomparable, nodes)
    by_name = {node.name: node for node in nodes}
    for row in table:
        named = [by_name[name] for name in row["aot_ops"] if name in by_name]
        row["stacktraces"] = {node.name: node.meta.get("stack_trace") for node in named}
        place = Event(
            "",
            stack_traces=row["stacktraces"],
            module_hierarchy={node.name: node.meta.get("nn_module_stack") or {} for node in named},
        )
        row["module"], row["source"] = place.module, place.source
    table.columns += [name for name in ("stacktraces", "module", "source") if table.rows]
    return table


def _corresponding(logged: Sequence[Any], ours: Any) -> Any:
    """Returns the logged values of an instruction that correspond to the result of a call; None if none do."""
    if not isinstance(ours, tuple):
        return _one_of(logged, ours)
    if len(logged) != len(ours):
        return None
    values = tuple(_one_of([theirs], mine) for theirs, mine in zip(logged, ours, strict=True))
    return None if any(one is None for one in values) else values


def _incomparable(
    handle: tuple[int, ...], node: Node, ours: object, event: Event, logged: Sequence[Any]
) -> dict[str, Any]:
    """Returns the row of a call with a value that the device computes in another layout, or in parts."""
    sizes = [_sizes(value) for value in (ours if isinstance(ours, tuple) else (ours,))]
    theirs = [_sizes(value) for value in logged]
    return {
        "aot_debug_handle": handle,
        "aot_ops": [node.name],
        "aot_intermediate_output": ours,
        "runtime_ops": [event.name],
        "runtime_debug_handle": event.handles,
        "runtime_intermediate_output": logged[0] if len(logged) == 1 else tuple(logged),
        "gap": [math.nan],
        "not_comparable": f"the device computes {' and '.join(theirs)}, the graph {' and '.join(sizes)}",
    }


def _sizes(value: object) -> str:
    return f"sizes {list(value.shape)}" if is_tensor(value) else type(value).__name__


def _with_incomparable(table: Table, incomparable: list[dict[str, Any]], nodes: Sequence[Node]) -> Table:
    """Adds the rows of calls without a distance and the column not_comparable; sorts by the order of the graph."""
    rows = [{**row, "not_comparable": ""} for row in table] + incomparable
    order = {node.meta["debug_handle"]: index for index, node in enumerate(nodes)}
    if incomparable:
        rows.sort(key=lambda row: order.get(row["aot_debug_handle"][-1], len(order)))
    return Table(rows)


def _reference(record: ETRecord, method: str, graph: str | None) -> tuple[Any, str]:
    """Returns the graph to compare with, with debug handles on its nodes, and its name."""
    candidates = [graph] if graph is not None else [EXPORTED_PROGRAM, EDGE_PROGRAM]
    for name in candidates:
        is_exported = name == EXPORTED_PROGRAM
        if is_exported and (record._exported is None or method != "forward") and graph is None:
            continue
        program = record.program(name, method)
        if is_exported and not any(node.meta.get("debug_handle") for node in program.graph.nodes):
            _carry_back(program, record, method)
        module = program.module()
        if any(node.meta.get("debug_handle") for node in module.graph.nodes):
            return module, name
    raise InputError(
        f"no call of {' or '.join(map(repr, candidates))} has a debug handle",
        hints=[f"reference_graph={EDGE_PROGRAM!r}", "to_edge(..., generate_etrecord=True)"],
    )


def _carry_back(program: ExportedProgram, record: ETRecord, method: str) -> None:
    """Copies debug handles to the captured program. ExecuTorch's files have handles only in the Edge program."""
    handles: dict[str, int] = {}
    for node in record.program(EDGE_PROGRAM, method).graph.nodes:
        history, handle = node.meta.get("from_node"), node.meta.get("debug_handle")
        while handle and history:
            if history[-1].graph_id == record.export_graph_id:
                handles.setdefault(history[-1].name, handle)
            history = history[-1].from_node
    for node in program.graph.nodes:
        if node.name in handles:
            node.meta["debug_handle"] = handles[node.name]


def _inputs(record: ETRecord, method: str) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    inputs = record._representative_inputs
    if inputs is None:
        raise InputError(
            "the record has no representative inputs; they must be the inputs of the device",
            hints=[
                "etrecord.update_representative_inputs(inputs)",
                "generate_etrecord(..., bundled_program)",
            ],
        )
    del method
    return tree_leaves(list(inputs))


def _run(module: GraphModule, inputs: Sequence[Any]) -> dict[Any, Any]:
    """Returns the result of each call of the graph, in order."""
    import torch
    from torch.fx import Interpreter

    results: dict[Any, Any] = {}

    class Recorder(Interpreter):
        def run_node(self, n: Node) -> Any:
            result = super().run_node(n)
            if n.op == "call_function" and n.target is not operator.getitem:
                results[n] = torch.utils._pytree.tree_map(_copied, result)
            return result

    count = sum(node.op == "placeholder" for node in module.graph.nodes)
    if count != len(inputs):
        raise InputError(
            f"the recorded graph requires {counted(count, 'input')}, but the record has {len(inputs)}",
            hints=["etrecord.update_representative_inputs(inputs)"],
        )
    with torch.no_grad():
        Recorder(module).run(*inputs, enable_io_processing=False)
    return results


def _copied(value: object) -> Any:
    """Returns a copy of a tensor, because a later call may write to it."""
    return value.detach().clone() if hasattr(value, "detach") else value


def _matches(inspector: Blocks, nodes: Sequence[Any]) -> list[tuple[Event, Any, list[Any]]]:
    """Returns (event, the node that it computed, the values that it logged), in execution order."""
    order = {node: index for index, node in enumerate(nodes)}
    by_handle: dict[int, list[Any]] = {}
    for node in nodes:
        by_handle.setdefault(node.meta["debug_handle"], []).append(node)
    matches: dict[Any, tuple[Event, list[Any]]] = {}
    events = [event for block in inspector.event_blocks for event in block.events]
    for event in sorted(events, key=lambda event: event._number or 0):
        covered = [node for handle in event.handles for node in by_handle.get(handle, ())]
        values = _flat(event.debug_data)
        if not covered or not values or event.name == OPERATOR_CALL_EVENT:
            continue
        covered.sort(key=order.__getitem__)
        if event.num_outputs == 1 or event.is_delegated_op:
            # If an instruction covers several calls, it returns the value of the last one. If several instructions
            # compute one call, the last one has its value.
            matches[covered[-1]] = (event, values)
            continue
        results = _results(covered)
        if len(results) == len(values):
            for node, value in zip(results, values, strict=True):
                matches[node] = (event, [value])
    return [(event, node, values) for node, (event, values) in matches.items()]


def _results(covered: Sequence[Any]) -> list[Any]:
    """Returns the calls of a delegate with results that are used outside it, in order."""
    inside = set(covered)
    return [node for node in covered if any(user not in inside for user in _readers(node))]


def _readers(node: Node) -> list[Any]:
    """Returns the nodes that read a call's result, or an element of it."""
    readers: list[Node] = []
    for user in node.users:
        readers += _readers(user) if user.target is operator.getitem else [user]
    return readers


def _flat(values: Sequence[Any]) -> list[Any]:
    return [
        item
        for value in values
        for item in (value if isinstance(value, (list, tuple)) else [value])
        if item is not None
    ]


def _one_of(values: Sequence[Any], like: object) -> Any:
    """Returns the value that corresponds to the result of a call, in the shape of that result; None if none does."""
    if not is_tensor(like) or (len(values) == 1 and not is_tensor(values[0])):
        return values[0]
    same: list[Any] = [value for value in values if is_tensor(value) and _is_view(value.shape, like.shape)]
    same = [value for value in same if value.dtype == like.dtype] or same
    return same[0].reshape(tuple(like.shape)) if same else None


def _is_view(sizes: Sequence[int], other_sizes: Sequence[int]) -> bool:
    """Whether one shape results from merging dimensions of the other, like a view, which has no instruction.

    A permuted layout, such as channels last, does not match.
    """
    products, other_products = (
        {*itertools.accumulate(shape, operator.mul)} | {1} for shape in (sizes, other_sizes)
    )
    return max(products) == max(other_products) and (products <= other_products or other_products <= products)
