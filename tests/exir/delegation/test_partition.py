# SPDX-License-Identifier: BSD-3-Clause
"""Tags become pieces that single calls can replace. The graph of pieces has no cycle."""

from __future__ import annotations

import random
import time

import torch
from torch.fx import Graph, GraphModule, Node

from torchette.exir.delegation.partition import TAG, Piece, cut, pieces

add = torch.ops.aten.add.Tensor


def _random(dice: random.Random, size: int, tags: int) -> tuple[GraphModule, list[Node]]:
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(1)
    nodes = [x]
    for _ in range(size):
        node = graph.call_function(add, (dice.choice(nodes[-8:]), dice.choice(nodes)))
        node.meta["val"] = torch.empty(1)
        if dice.random() < 0.7:
            node.meta[TAG] = f"tag{dice.randrange(tags)}"
        nodes.append(node)
    graph.output((nodes[-1],))
    return GraphModule({}, graph), nodes[1:]


def _order_is_legal(module: GraphModule, parts: list[Piece]) -> bool:
    """Returns whether the nodes of each piece are adjacent and follow their operands, so that one call can replace
    them."""
    position = {node: i for i, node in enumerate(module.graph.nodes)}
    module.graph.lint()
    for piece in parts:
        places = sorted(position[node] for node in piece.nodes)
        if places != list(range(places[0], places[0] + len(places))):
            return False
        if any(position[source] > places[0] for source in piece.inputs):
            return False
    return True


def test_random_graphs_are_cut_legally_and_completely() -> None:
    for seed in range(300):
        dice = random.Random(seed)
        module, nodes = _random(dice, dice.randint(1, 40), dice.randint(1, 4))
        tagged = {node: node.meta[TAG] for node in nodes if TAG in node.meta}
        parts = pieces(module)
        assert _order_is_legal(module, parts)
        covered = [node for piece in parts for node in piece.nodes]
        assert len(covered) == len(set(covered))
        assert set(covered) == set(tagged)
        assert all(tagged[node] == piece.tag for piece in parts for node in piece.nodes)


def _chain(text: str) -> tuple[list[Node], dict[Node, str]]:
    """Returns a chain with one node per letter. A letter is a tag; a dot is a node without a tag."""
    graph = Graph()
    last = graph.placeholder("x")
    nodes = []
    for _ in text:
        last = graph.call_function(torch.neg, (last,))
        nodes.append(last)
    return nodes, {node: tag for node, tag in zip(nodes, text, strict=True) if tag != "."}


def test_no_more_pieces_than_needed() -> None:
    for text, expected in [("aaaa", 1), ("aa.a", 2), ("abab", 4), ("aabb", 2), (".a.", 1), ("", 0)]:
        assert len(cut(*_chain(text))) == expected, text


def test_independent_parts_of_a_tag_are_one_piece() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    left, right = graph.call_function(torch.neg, (x,)), graph.call_function(torch.abs, (x,))
    plain = graph.call_function(torch.sin, (x,))
    nodes = [left, plain, right]
    (piece,) = cut(nodes, {left: "a", right: "a"})
    assert piece.nodes == [left, right]


def test_cut_takes_linear_time() -> None:
    # No time is compared: a quadratic algorithm would need minutes.
    start = time.perf_counter()
    parts = cut(*_chain("a." * 20_000))
    assert len(parts) == 20_000
    assert time.perf_counter() - start < 60
