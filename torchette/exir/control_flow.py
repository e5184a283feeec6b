# SPDX-License-Identifier: BSD-3-Clause
# In: a graph with calls of torch.cond, while_loop, map and scan. Out: the operands and results of their subgraphs, and
# the order in which everything runs. Only this file knows the argument layout of these calls.
"""Calls that run subgraphs: their branches, their operands, and the order in which the steps of a program run."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch.utils._pytree as pytree
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node

from torchette.exir.arguments import list_arg, node_arg, owner


class Form(NamedTuple):
    """The positions of the arguments of a control-flow call.

    A branch has one placeholder for each operand: first the carried values, then a slice of each tensor that is
    iterated over, then the values that are the same in every iteration.
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
    """Returns the kind of a control-flow call, which is a key of FORMS; empty for any other target."""
    kind = target.name() if isinstance(target, HigherOrderOperator) else ""
    return kind if kind in FORMS else ""


def form(node: Node) -> Form | None:
    """Returns the argument layout of a control-flow call, or None for any other node."""
    return FORMS.get(name(node.target)) if node.op == "call_function" else None


def branches(node: Node) -> tuple[GraphModule, ...]:
    """Returns the subgraphs of a call: both branches of a cond, condition and body of a while loop, the body of the
    others."""
    layout = FORMS[name(node.target)]
    return tuple(getattr(node.graph.owning_module, str(node_arg(node, i).target)) for i in layout.graphs)


def carried(node: Node) -> list[Any]:
    """Returns the initial values of the loop-carried values."""
    return _list(node, FORMS[name(node.target)].carried)


def sliced(node: Node) -> list[Any]:
    """Returns the tensors that a map or scan slices along dimension 0."""
    return _list(node, FORMS[name(node.target)].sliced)


def shared(node: Node) -> list[Any]:
    """Returns the values that the branches only read."""
    return _list(node, FORMS[name(node.target)].shared)


def _list(node: Node, at: int | None) -> list[Any]:
    return [] if at is None else list(list_arg(node, at))


def inputs(branch: GraphModule) -> list[Node]:
    """Returns the placeholders of a branch."""
    return list(branch.graph.find_nodes(op="placeholder"))


def shared_inputs(node: Node, branch: GraphModule) -> list[tuple[Any, Node]]:
    """Returns (operand, placeholder) for each value that a branch of this call only reads."""
    first = len(carried(node)) + len(sliced(node))
    return list(zip(shared(node), inputs(branch)[first:], strict=True))


def results(branch: GraphModule) -> list[Any]:
    """Returns the flattened results of a branch: nodes and Python scalars."""
    return pytree.tree_leaves(branch.graph.output_node().args[0])


def set_results(branch: GraphModule, values: list[Any]) -> None:
    """Replaces the results of a branch."""
    branch.graph.output_node().args = (tuple(values),)


def get_control_flow_submodules(graph_module: GraphModule) -> list[tuple[str, GraphModule, Node]]:
    """Returns (name, branch, call) for each branch of the conds, maps and scans of this graph, without nested branches.
    The function has ExecuTorch's name."""
    return _submodules(graph_module, "cond", "map_impl", "scan")


def get_cond_while_submodules(graph_module: GraphModule) -> list[tuple[str, GraphModule, Node]]:
    """Returns (name, branch, call) for each branch of the conds and while loops of this graph, without nested branches.
    The function has ExecuTorch's name."""
    return _submodules(graph_module, "cond", "while_loop")


def _submodules(module: GraphModule, *kinds: str) -> list[tuple[str, GraphModule, Node]]:
    return [
        (str(node.args[at].target), branch, node)
        for node in module.graph.nodes
        if node.op == "call_function" and name(node.target) in kinds
        for at, branch in zip(FORMS[name(node.target)].graphs, branches(node), strict=True)
    ]


def owners(root: GraphModule) -> dict[GraphModule, Node]:
    """Returns the call that runs each branch, for all branches below a graph."""
    calls: dict[GraphModule, Node] = {}
    for node in root.graph.nodes:
        if form(node) is not None:
            for branch in branches(node):
                calls[branch] = node
                calls.update(owners(branch))
    return calls


def add_operand(node: Node, value: Node) -> list[Node]:
    """Adds an operand that the branches of a call read. Returns its placeholder in each branch."""
    layout = FORMS[name(node.target)]
    operands = shared(node)
    position = operands.index(value) if value in operands else len(operands)
    if position < len(operands):
        return [shared_inputs(node, branch)[position][1] for branch in branches(node)]
    node.update_arg(layout.shared, (*operands, value))
    added = []
    for branch in branches(node):
        graph = branch.graph
        with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
            placeholder = graph.placeholder(value.name)
        placeholder.target = placeholder.name
        placeholder.meta["val"] = value.meta["val"]
        added.append(placeholder)
    return added


def drop_unused_operands(node: Node) -> int:
    """Removes the operands of a call that no branch reads. Returns the count."""
    pairs = [shared_inputs(node, branch) for branch in branches(node)]
    retained = [any(inside.users for _, inside in same) for same in zip(*pairs, strict=True)]
    if all(retained):
        return 0
    operands = tuple(operand for operand, keep in zip(shared(node), retained, strict=True) if keep)
    node.update_arg(FORMS[name(node.target)].shared, operands)
    for branch_inputs in pairs:
        for (_, inside), keep in zip(branch_inputs, retained, strict=True):
            if not keep:
                inside.graph.erase_node(inside)
    return retained.count(False)


def pass_to_branch(value: Node, branch: GraphModule, callers: dict[GraphModule, Node]) -> Node:
    """Passes a value of the main graph to a nested branch and returns its node there. `callers` is the result of
    `owners`."""
    caller = callers.get(branch)
    if caller is None:
        return value
    outer = pass_to_branch(value, owner(caller), callers)
    return add_operand(caller, outer)[branches(caller).index(branch)]


def origin(node: Node, callers: Mapping[GraphModule, Node]) -> Node | None:
    """Returns the value of a branch's placeholder in the main graph, or None if it is not the same in every iteration.
    `callers` is the result of `owners`."""
    while (branch := owner(node)) in callers:
        operands = {inside: operand for operand, inside in shared_inputs(callers[branch], branch)}
        value = operands.get(node)
        if not isinstance(value, Node):
            return None
        node = value
    return node


class Step(NamedTuple):
    """One step of a program, with the values that it reads."""

    node: Node
    reads: tuple[Node, ...]
    writes: bool  # whether the step creates the result of the node
    loops: tuple[int, ...]  # indices of the enclosing loops, outermost first


class Timeline(NamedTuple):
    """All steps in the order of their instructions in the file, and the first and last step of each loop."""

    steps: list[Step]
    loops: list[tuple[int, int]]


def timeline(root: GraphModule) -> Timeline:
    """Returns the steps of a graph and of its nested branches.

    A call of cond or while_loop is two steps. The first one reads its condition and precedes its branches. The second
    one creates its results and follows its branches. The steps in the branches read the operands.
    """
    result = Timeline([], [])
    _add_steps(root, (), result, is_branch=False)
    return result


def _add_steps(module: GraphModule, loops: tuple[int, ...], timeline: Timeline, *, is_branch: bool) -> None:
    steps = timeline.steps
    for node in module.graph.nodes:
        if form(node) is None:
            # Selecting one of several results does not use the other results.
            reads = () if node.target is operator.getitem else tuple(node.all_input_nodes)
            # The operands of a branch are created outside the branch.
            steps.append(Step(node, reads, not (is_branch and node.op == "placeholder"), loops))
            continue
        inside, start = loops, len(steps)
        if name(node.target) == "while_loop":
            inside = (*loops, len(timeline.loops))
            timeline.loops.append((start, start))
        condition = node.args[0] if name(node.target) == "cond" else None
        steps.append(Step(node, (condition,) if isinstance(condition, Node) else (), False, inside))
        for branch in branches(node):
            _add_steps(branch, inside, timeline, is_branch=True)
        steps.append(Step(node, (), True, inside))
        if inside != loops:
            timeline.loops[inside[-1]] = (start, len(steps) - 1)


def graphs(root: GraphModule) -> Iterator[GraphModule]:
    """Yields a graph module and the modules of its nested branches, in the order in which they run."""
    yield root
    for node in root.graph.nodes:
        if form(node) is not None:
            for branch in branches(node):
                yield from graphs(branch)
