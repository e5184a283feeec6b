# SPDX-License-Identifier: BSD-3-Clause
# In: calls of map, scan and while_loop_stack_output. Out: while loops with a counter, the stacked results and the
# carried values. Memory planning and emission then need to support only cond and while_loop.
"""Replaces `map`, `scan` and `while_loop_stack_output` by `while_loop`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.proxy import GraphAppendingTracer

from torchette.errors import UnsupportedError
from torchette.exir import control_flow, ops
from torchette.exir.arguments import function, int_arg, owner
from torchette.exir.graph import call, drop_unused_branches, fake_mode, note, place, replace, same_size

aten = torch.ops.aten


def loops_to_while(program: ExportedProgram) -> ExportedProgram:
    """Replace each loop that stacks its results by a while_loop with a counter that writes the results slice by
    slice."""
    count = 0
    # Innermost loops first, because a body is copied into the body of the new loop.
    for module in reversed(list(control_flow.graphs(program.graph_module))):
        for node in list(module.graph.nodes):
            if control_flow.name(node.target) in ("map_impl", "scan"):
                _rewrite(program, module, node)
                count += 1
            elif control_flow.name(node.target) == "while_loop_stack_output":
                _rewrite_stacking(program, module, node)
                count += 1
    if count:
        note(program, f"{count} loops that stack their results became while loops")
    return program


def _rewrite(program: ExportedProgram, module: GraphModule, node: Node) -> None:
    (function,) = control_flow.branches(node)
    initial, sequences = control_flow.carried(node), control_flow.sliced(node)
    count = sequences[0].meta["val"].shape[0]
    length: Any = count
    if isinstance(count, torch.SymInt):
        length = call(node, aten.sym_size.int, (sequences[0], 0), val=count, like=node)
    counter = _counter(program)
    vals = list(node.meta["val"])
    stacked = vals[len(initial) :]
    results = [_uninitialised(node, val, length, [*initial, *control_flow.shared(node)]) for val in stacked]

    carried = (0, *results, *initial)
    shared = [*sequences, *control_flow.shared(node), *([length] if isinstance(length, Node) else [])]
    operands = [
        counter,
        *(item.meta["val"] if isinstance(item, Node) else item for item in (*carried[1:], *shared)),
    ]
    condition = _condition(operands, length)
    body = _body(function, node, operands, len(initial), len(results), len(sequences))
    val = (counter, *stacked, *vals[: len(initial)])
    loop = _while_loop(node, node.name, condition, body, (carried, tuple(shared)), val)
    order = [*range(1 + len(results), 1 + len(vals)), *range(1, 1 + len(results))]
    for user in list(node.users):
        index = order[int_arg(user, 1)]
        replace(program, user, call(user, operator.getitem, (loop, index), val=user.meta["val"], like=user))
    _erase(module, node)


def _rewrite_stacking(program: ExportedProgram, module: GraphModule, node: Node) -> None:
    """Runs the loop twice: the first run determines the length of the results."""
    condition, function = control_flow.branches(node)
    initial, shared = control_flow.carried(node), control_flow.shared(node)
    known = [item.meta["val"] if isinstance(item, Node) else item for item in (*initial, *shared)]
    firsts, stacked = known[: len(initial)], list(node.meta["val"])

    def loop(name: str, results: list[Node]) -> Node:
        counter = _counter(program)
        operands = [counter, *(result.meta["val"] for result in results), *known]
        return _while_loop(
            node,
            f"{node.name}_{name}",
            _with_ignored_operands(condition, operands, 1 + len(results)),
            _body(function, node, operands, len(initial), len(results), 0, stacks_carried=True),
            ((0, *results, *initial), tuple(shared)),
            (counter, *(result.meta["val"] for result in results), *firsts),
        )

    counting = loop("count", [])
    turns = call(node, operator.getitem, (counting, 0), val=counting.meta["val"][0], like=node)
    # If the loop has no iteration, torch stacks the initial values. They are the first slice until the first iteration.
    at_least_one = torch.sym_max(turns.meta["val"], 1)
    length = call(node, torch.sym_max, (turns, 1), val=at_least_one, like=node)
    results = []
    for first, val in zip(initial, stacked, strict=True):
        buffer = _uninitialised(node, val, length, [*initial, *shared])
        results.append(call(node, ops.copy_index, (buffer, first, 0), val=val, like=node))
        results[-1].meta["in_place"] = (buffer, 0)
    filling = loop("fill", results)
    for user in list(node.users):
        index = 1 + int_arg(user, 1)
        replace(
            program, user, call(user, operator.getitem, (filling, index), val=user.meta["val"], like=user)
        )
    _erase(module, node)


def _while_loop(
    before: Node,
    name: str,
    condition: GraphModule,
    body: GraphModule,
    operands: tuple[tuple[Any, ...], tuple[Any, ...]],
    val: tuple[Any, ...],
) -> Node:
    module = owner(before)
    names = []
    for kind, branch in (("condition", condition), ("body", body)):
        names.append(f"{name}_{kind}")
        module.add_submodule(names[-1], branch)
    with module.graph.inserting_before(before):
        graphs = tuple(module.graph.get_attr(name) for name in names)
    return call(before, torch.ops.higher_order.while_loop, (*graphs, *operands), val=val, like=before)


def _erase(module: GraphModule, node: Node) -> None:
    module.graph.erase_node(node)
    for attribute in module.graph.find_nodes(op="get_attr"):
        if not attribute.users:
            module.graph.erase_node(attribute)
    drop_unused_branches(module)


def _counter(program: ExportedProgram) -> torch.SymInt:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # loads sympy

    mode = fake_mode(program)
    env = mode.shape_env if mode is not None and mode.shape_env is not None else ShapeEnv()
    # Without this context, later traces with these values require the operator that creates the symbol.
    with env.ignore_fresh_unbacked_symbols():
        return env.create_unbacked_symint()


def _uninitialised(before: Node, val: torch.Tensor, length: object, sources: Sequence[Any]) -> Node:
    """Allocates a stacked result. Its first size is the length of the loop; the others are constants or operand
    sizes."""
    slice_sizes = (
        size if isinstance(size, int) else _size_node(before, size, sources) for size in val.shape[1:]
    )
    sizes: list[Any] = [length, *slice_sizes]
    buffer = call(before, aten.empty.memory_format, (sizes,), {"dtype": val.dtype}, val=val, like=before)
    buffer.meta["grows"] = True  # dimension 0 is the number of slices written so far
    return buffer


def _size_node(before: Node, size: torch.SymInt, sources: Sequence[Any]) -> Node:
    """Returns the node of a size: the size of an operand, or arithmetic on sizes."""
    sizes: dict[Any, Node] = {}
    for source in (*sources, *control_flow.sliced(before)):
        val = source.meta.get("val") if isinstance(source, Node) else None
        for dim, known in enumerate(val.shape if isinstance(val, torch.Tensor) else ()):
            if isinstance(known, torch.SymInt) and same_size(known, size):
                return call(before, aten.sym_size.int, (source, dim), val=size, like=before)
            if isinstance(known, torch.SymInt) and known.node.expr.is_symbol:
                symbol = known.node.expr
                sizes[symbol] = sizes.get(symbol) or call(
                    before, aten.sym_size.int, (source, dim), val=known, like=before
                )
    if not size.node.expr.free_symbols <= sizes.keys():
        raise UnsupportedError(
            f"a {control_flow.name(before.target).removesuffix('_impl')} yields slices of size {size}, which does "
            "not follow from the sizes of its inputs",
            where=[place(before)],
            hints=["pad the slices to a fixed size, or to the size of an input"],
        )
    from torch.utils._sympy.interp import sympy_interp  # loads sympy
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    tracer, first = GraphAppendingTracer(before.graph), before.prev
    with before.graph.inserting_before(before):
        numbers = {symbol: Proxy(node, tracer) for symbol, node in sizes.items()}
        result = sympy_interp(PythonReferenceAnalysis, numbers, size.node.expr).node
    added = first.next
    while added is not before:
        added.meta["val"] = function(added)(*torch.fx.map_arg(added.args, lambda node: node.meta["val"]))
        added = added.next
    outcome: Node = result
    return outcome


def _placeholders(graph: Graph, operands: Sequence[Any]) -> list[Node]:
    nodes = []
    for number, val in enumerate(operands):
        node = graph.placeholder(f"arg{number}")
        node.meta["val"] = val
        nodes.append(node)
    return nodes


def _condition(operands: Sequence[Any], length: Node | int) -> GraphModule:
    graph = Graph()
    inputs = _placeholders(graph, operands)
    last = inputs[-1] if isinstance(length, Node) else length
    more = graph.call_function(operator.lt, (inputs[0], last))
    more.meta["val"] = operands[0] < (operands[-1] if isinstance(length, Node) else length)
    graph.output((more,))
    return _LazyGraphModule({}, graph)


def _with_ignored_operands(function: GraphModule, operands: Sequence[Any], skipped: int) -> GraphModule:
    """Returns the same function with additional leading operands, which it ignores."""
    graph = Graph()
    inputs = _placeholders(graph, operands)[skipped:]
    values = dict(zip(control_flow.inputs(function), inputs, strict=True))
    attributes = _copy_nodes(function, graph, values)
    graph.output(tuple(values[v] if isinstance(v, Node) else v for v in control_flow.results(function)))
    return _LazyGraphModule(attributes, graph)


def _copy_nodes(function: GraphModule, graph: Graph, values: dict[Node, Any]) -> dict[str, Any]:
    """Copies the nodes of a function to another graph. Returns the attributes that the copies refer to."""
    attributes: dict[str, Any] = {}
    for inner in function.graph.nodes:
        if inner.op in ("placeholder", "output"):
            continue
        values[inner] = graph.node_copy(inner, values.__getitem__)
        if inner.op == "get_attr":
            attributes[str(inner.target)] = getattr(function, str(inner.target))
    return attributes


def _body(
    function: GraphModule,
    node: Node,
    operands: Sequence[Any],
    carries: int,
    results: int,
    sequences: int,
    stacks_carried: bool = False,
) -> GraphModule:
    graph = Graph()
    counter, *placeholders = _placeholders(graph, operands)
    stacked, carried, read_operands = (
        placeholders[:results],
        placeholders[results : results + carries],
        placeholders[results + carries :],
    )

    def add(target: Callable[..., Any], args: tuple[Any, ...], val: object) -> Node:
        added = graph.call_function(target, args)
        added.meta = {
            key: value for key, value in node.meta.items() if key in ("stack_trace", "nn_module_stack")
        }
        added.meta["val"] = val
        return added

    sources = control_flow.inputs(function)
    slices = sources[carries : carries + sequences]
    values: dict[Node, Any] = dict(zip(sources[:carries], carried, strict=True))
    for sequence, slice_input in zip(read_operands, slices, strict=False):
        values[slice_input] = add(aten.select_copy.int, (sequence, 0, counter), slice_input.meta["val"])
    shared = sources[carries + sequences :]
    values.update(zip(shared, read_operands[sequences : sequences + len(shared)], strict=True))
    attributes = _copy_nodes(function, graph, values)
    new_results = [
        values[value] if isinstance(value, Node) else value for value in control_flow.results(function)
    ]
    written = []
    new_slices = new_results[:results] if stacks_carried else new_results[carries:]
    for target, value in zip(stacked, new_slices, strict=True):
        written.append(add(ops.copy_index, (target, value, counter), target.meta["val"]))
        written[-1].meta["in_place"] = (target, 0)
    following = add(operator.add, (counter, 1), operands[0] + 1)
    graph.output((following, *written, *new_results[:carries]))
    return _LazyGraphModule(attributes, graph)
