# SPDX-License-Identifier: BSD-3-Clause
# In: a graph of out variants. Out: the graph sorted by stages; meta["chain"] of each node contains its stage and chain.
# The chains of one stage are independent, so that the runtime can run them at the same time.
"""Splits independent branches into chains of instructions.

The pass cuts the graph where at most one value is needed later. It divides each part into components that share no
result. If two or more components have enough work for a thread, they become the chains of one stage. All other
instructions form stages with one chain.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import control_flow, ops
from torchette.exir.arguments import node_arg
from torchette.exir.delegation.cost import cost
from torchette.exir.delegation.delegate import is_delegate_call
from torchette.exir.graph import note, place, placeholders
from torchette.exir.interface import storage_source

# Below this number of multiply-adds and elements, starting a chain costs more than it saves: about 20 us on a phone.
MIN_CHAIN_WORK = 100_000
# The assumed work of a delegate call.
DELEGATE_WORK = 1e9
# The maximum number of calls at the end of a part that may follow its stage, because they join its branches.
_JOINS = 4


class Chain(NamedTuple):
    """The stage and the chain of a node. Stages run in sequence, the chains of a stage in any order."""

    stage: int
    number: int


def split_chains(program: ExportedProgram, max_chains: int) -> ExportedProgram:
    """Split independent branches into chains, with at most `max_chains` chains in a stage."""
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    if any(control_flow.form(node) is not None for node in nodes):
        note(program, "not split: the graph has control flow")
        return program
    stages: list[list[list[Node]]] = []
    input_names = set(program.graph_signature.user_inputs)
    for part in _parts(nodes, [node for node in placeholders(program) if node.name in input_names]):
        for stage in _stages(part, max_chains):
            if len(stage) == 1 and stages and len(stages[-1]) == 1:
                stages[-1][0] += stage[0]
            else:
                stages.append(stage)
    end = program.graph.output_node()
    for number, stage in enumerate(stages):
        for index, chain in enumerate(stage):
            for node in chain:
                node.meta["chain"] = Chain(number, index)
                end.prepend(node)
        if len(stage) > 1:
            heads = "; ".join(place(max(chain, key=_work)) for chain in stage)
            note(program, f"{len(stage)} chains may run at the same time: {heads}")
    return program


def _parts(nodes: Sequence[Node], inputs: Sequence[Node]) -> list[list[Node]]:
    """Cuts the graph after each call after which at most one earlier result or input is needed."""
    order = {node: index for index, node in enumerate(nodes)}
    last_use: dict[Node, int] = {}
    for node in (*inputs, *nodes):
        root = _root(node)
        uses = (order.get(user, len(nodes)) for user in node.users if _root(user) is not root)
        last_use[root] = max(last_use.get(root, -1), *uses, -1)
    parts: list[list[Node]] = [[]]
    alive = {node for node in inputs if last_use[node] >= 0}
    for index, node in enumerate(nodes):
        parts[-1].append(node)
        alive.add(_root(node))
        alive = {root for root in alive if last_use[root] > index}
        if len(alive) <= 1:
            parts.append([])
    return [part for part in parts if part]


def _root(node: Node) -> Node:
    """Returns the call that owns the storage of a node's value. Several results of a call count as one value."""
    while True:
        source = storage_source(node)
        if node.target is operator.getitem:
            node = node_arg(node)
        elif source is not None and source[0].op == "call_function":
            node = source[0]
        else:
            return node


def _stages(part: list[Node], max_chains: int) -> list[list[list[Node]]]:
    """Divides a part into stages of chains."""
    for joins in range(min(_JOINS, len(part) - 1) + 1):
        body, tail = part[: len(part) - joins], part[len(part) - joins :]
        branches = _components(body)
        heavy = [branch for branch in branches if _total(branch) >= MIN_CHAIN_WORK]
        if len(heavy) < 2:
            continue
        chains: list[list[Node]] = [[] for _ in range(min(max_chains, len(heavy)))]
        for branch in sorted(branches, key=_total, reverse=True):
            min(chains, key=_total).extend(branch)
        order = {node: index for index, node in enumerate(part)}
        stage = [sorted(chain, key=order.__getitem__) for chain in chains]
        return [stage, [tail]] if tail else [stage]
    return [[part]]


def _components(nodes: Sequence[Node]) -> list[list[Node]]:
    """Groups calls that use each other's results, or write to the same outside memory."""
    leader: dict[Node, Node] = {node: node for node in nodes}

    def find(node: Node) -> Node:
        while leader[node] is not node:
            node = leader[node]
        return node

    written: dict[Node, Node] = {}
    for node in nodes:
        for source in node.all_input_nodes:
            if source in leader:
                leader[find(node)] = find(source)
        target = None if "alias" in node.meta else storage_source(node)
        outside = _root(target[0]) if target is not None else None
        if outside is not None and outside not in leader:
            written.setdefault(outside, node)
    # Calls that draw random numbers keep their order.
    random = [node for node in nodes if ops.is_random(node.meta.get("functional", node.target))]
    for node in random[1:]:
        leader[find(node)] = find(random[0])
    for outside, writer in written.items():
        for user in (*outside.users, writer):
            if user in leader:
                leader[find(user)] = find(writer)
    groups: dict[Node, list[Node]] = {}
    for node in nodes:
        groups.setdefault(find(node), []).append(node)
    return list(groups.values())


def _total(nodes: Sequence[Node]) -> float:
    return sum(map(_work, nodes))


def _work(node: Node) -> float:
    return DELEGATE_WORK if is_delegate_call(node) else float(cost(node))
