# SPDX-License-Identifier: BSD-3-Clause
# A graph with calls of torch.cond, while_loop, map and scan comes in; what their subgraphs read, return and in which
# order all of it runs goes out. The only place that knows how torch lays out the arguments of such a call.
"""Calls that take graphs: their branches, operands, and the order in which everything in a program runs."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch.utils._pytree as pytree
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node

from torchette.exir.arguments import list_arg, node_arg, owner


class Form(NamedTuple):
    """Which arguments of a call are what.

    A branch has one placeholder for each operand: first the carried values, then a slice of each tensor that is
    iterated over, then what is the same in every turn.
    """

    graphs: tuple[int, ...]
    shared: int
    carried: int | None = None
    sliced: int | None = None


FORMS = {
    "cond": Form(graphs=(1, 2), shared=3),
    "while_loop": Form(graphs=(0, 1), shared=3, carried=2),
    "while_loop_stack_output": Form(graphs=(0, 1), shared=3, carried=2),
    "map_impl": Form(graphs=(0,), shared=2, sliced=1),
    "scan": Form(graphs=(0,), shared=3, carried=1, sliced=2),
}


def name(target: object) -> str:
    """Which kind of call it is: a key of FORMS, or empty for any other target."""
    found = target.name() if isinstance(target, HigherOrderOperator) else ""
    return found if found in FORMS else ""


def form(node: Node) -> Form | None:
    """How the arguments of a call are laid out, None for what is no control flow."""
    return FORMS.get(name(node.target)) if node.op == "call_function" else None


def branches(node: Node) -> tuple[GraphModule, ...]:
    """The graphs that a call runs: both sides of a cond; condition and body of a while loop; the body of others."""
    layout = FORMS[name(node.target)]
    return tuple(getattr(node.graph.owning_module, str(node_arg(node, i).target)) for i in layout.graphs)


def carried(node: Node) -> list[Any]:
    """The values with which a loop starts."""
    return _list(node, FORMS[name(node.target)].carried)


def sliced(node: Node) -> list[Any]:
    """The tensors that a map or scan takes apart along their first dimension."""
    return _list(node, FORMS[name(node.target)].sliced)


def shared(node: Node) -> list[Any]:
    """The values that the branches only read."""
    return _list(node, FORMS[name(node.target)].shared)


def _list(node: Node, at: int | None) -> list[Any]:
    return [] if at is None else list(list_arg(node, at))


def inputs(branch: GraphModule) -> list[Node]:
    """The placeholders of a branch."""
    return list(branch.graph.find_nodes(op="placeholder"))


def results(branch: GraphModule) -> list[Any]:
    """What a branch returns, flat: nodes and plain numbers."""
    return pytree.tree_leaves(branch.graph.output_node().args[0])


def set_results(branch: GraphModule, values: list[Any]) -> None:
    """Let a branch return these."""
    branch.graph.output_node().args = (tuple(values),)


def get_control_flow_submodules(graph_module: GraphModule) -> list[tuple[str, GraphModule, Node]]:
    """(name, branch, call) of the branches that conds, maps and scans of this graph run; those of branches are not among
    them. ExecuTorch's name, as is that of the next."""
    return _submodules(graph_module, "cond", "map_impl", "scan")


def get_cond_while_submodules(graph_module: GraphModule) -> list[tuple[str, GraphModule, Node]]:
    """The same of conds and while loops."""
    return _submodules(graph_module, "cond", "while_loop")


def _submodules(module: GraphModule, *kinds: str) -> list[tuple[str, GraphModule, Node]]:
    return [
        (str(node.args[at].target), branch, node)
        for node in module.graph.nodes
        if node.op == "call_function" and name(node.target) in kinds
        for at, branch in zip(FORMS[name(node.target)].graphs, branches(node), strict=True)
    ]


def owners(root: GraphModule) -> dict[GraphModule, Node]:
    """Branch -> the call that runs it, for all branches below a graph."""
    found: dict[GraphModule, Node] = {}
    for node in root.graph.nodes:
        if form(node) is not None:
            for branch in branches(node):
                found[branch] = node
                found.update(owners(branch))
    return found


def add_operand(node: Node, value: Node) -> list[Node]:
    """Let the branches of a call read one more value; returns its placeholder in each of them."""
    layout = FORMS[name(node.target)]
    given = shared(node)
    position = given.index(value) if value in given else len(given)
    if position < len(given):
        first = len(carried(node)) + len(sliced(node))
        return [inputs(branch)[first + position] for branch in branches(node)]
    node.update_arg(layout.shared, (*given, value))
    added = []
    for branch in branches(node):
        graph = branch.graph
        with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
            placeholder = graph.placeholder(value.name)
        placeholder.target = placeholder.name
        placeholder.meta["val"] = value.meta["val"]
        added.append(placeholder)
    return added


def bring_in(value: Node, branch: GraphModule, callers: dict[GraphModule, Node]) -> Node:
    """The node that stands for a value of the main graph in a branch, however deep; `callers` is what `owners` found."""
    caller = callers.get(branch)
    if caller is None:
        return value
    outer = bring_in(value, owner(caller), callers)
    return add_operand(caller, outer)[branches(caller).index(branch)]


class Moment(NamedTuple):
    """One step of a program: what is read then, and what comes to be."""

    node: Node
    reads: tuple[Node, ...]
    writes: bool
    loops: tuple[int, ...]  # the loops around it, the outermost first


class Timeline(NamedTuple):
    """All steps in the order in which their instructions stand in the file, and each loop's first and last step."""

    moments: list[Moment]
    loops: list[tuple[int, int]]


def timeline(root: GraphModule) -> Timeline:
    """The steps of a graph and of the branches below it.

    A call of a cond or while_loop takes two steps: one in which its condition is read, before its branches, and one
    in which its results exist, after them. Their operands are read by the steps in the branches.
    """
    found = Timeline([], [])
    _add_moments(root, (), found, is_branch=False)
    return found


def _add_moments(module: GraphModule, loops: tuple[int, ...], found: Timeline, *, is_branch: bool) -> None:
    moments = found.moments
    for node in module.graph.nodes:
        if form(node) is None:
            # Picking one of several results is no use of the others.
            reads = () if node.target is operator.getitem else tuple(node.all_input_nodes)
            # What a branch is given came to be outside of it.
            moments.append(Moment(node, reads, not (is_branch and node.op == "placeholder"), loops))
            continue
        inside, start = loops, len(moments)
        if name(node.target) == "while_loop":
            inside = (*loops, len(found.loops))
            found.loops.append((start, start))
        condition = node.args[0] if name(node.target) == "cond" else None
        moments.append(Moment(node, (condition,) if isinstance(condition, Node) else (), False, inside))
        for branch in branches(node):
            _add_moments(branch, inside, found, is_branch=True)
        moments.append(Moment(node, (), True, inside))
        if inside != loops:
            found.loops[inside[-1]] = (start, len(moments) - 1)


def graphs(root: GraphModule) -> Iterator[GraphModule]:
    """A graph module and, below it, the branches of its calls, in the order in which they run."""
    yield root
    for node in root.graph.nodes:
        if form(node) is not None:
            for branch in branches(node):
                yield from graphs(branch)
