# SPDX-License-Identifier: BSD-3-Clause
# In: a graph with aliases. Out: the same graph in an order with a lower peak of live bytes, or unchanged. A call that releases
# more bytes than its result has runs as soon as its operands exist: a pool of the queries runs before the keys are computed.
"""Runs calls that release memory early."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from torchette.exir import ops
from torchette.exir.graph import graph_modules, note


def reorder_calls(program: ExportedProgram) -> ExportedProgram:
    """Run calls that release memory as soon as their operands exist, if this lowers the peak."""
    count = sum(map(_reorder, graph_modules(program)))
    if count:
        note(program, f"{count} calls run earlier, to release memory")
    return program


def _reorder(module: GraphModule) -> int:
    """Returns the number of calls that run earlier."""
    order = list(module.graph.nodes)
    readers = _readers(order)
    fixed = _fixed(order)
    before = [_peak(order, readers, is_lent) for is_lent in (False, True)]
    moved = 0
    for node in order:
        anchor = _earliest(node, readers, fixed, before[1] // 100) if _is_movable(node) else None
        if anchor is not None:
            _move(node, anchor)
            moved += 1
    if moved:
        after = [_peak(list(module.graph.nodes), readers, is_lent) for is_lent in (False, True)]
        if after < before and after[1] <= before[1]:
            return moved
        for node in order[:-1]:  # restores the order
            order[-1].prepend(node)
    return 0


def _root(node: Node) -> Node:
    """Returns the node with the storage of a result."""
    while "alias" in node.meta or "in_place" in node.meta:
        node = node.meta["alias" if "alias" in node.meta else "in_place"][0]
    return node


def _roots(node: Node) -> list[Node]:
    return list(dict.fromkeys(map(_root, node.all_input_nodes)))


def _readers(order: Iterable[Node]) -> dict[Node, list[Node]]:
    """Returns the calls that read each storage."""
    readers: dict[Node, list[Node]] = {}
    for node in order:
        for root in _roots(node) if "alias" not in node.meta else ():
            readers.setdefault(root, []).append(node)
    return readers


def _fixed(order: list[Node]) -> set[Node]:
    """Returns the storages that a call must not be moved for: those of results and those that are written to."""
    fixed = set(_roots(order[-1]))
    for node in order:
        if node.op == "call_function" and (not ops.is_operator(node.target) or ops.is_mutating(node.target)):
            fixed.update(_roots(node) if node.target is not operator.getitem else ())
        if "in_place" in node.meta:
            fixed.add(_root(node))
    return fixed


def _is_movable(node: Node) -> bool:
    return (
        node.op == "call_function"
        and ops.is_operator(node.target)
        and ops.is_pure(node.target)
        and not {"alias", "in_place"} & node.meta.keys()
        and all(_bytes(part) is not None for part in (node, *node.all_input_nodes))
    )


def _earliest(node: Node, readers: Mapping[Node, list[Node]], fixed: set[Node], least: int) -> Node | None:
    """Returns the call behind which a call should run, or None if it releases at most `least` bytes or runs there."""
    roots = _roots(node)
    if not roots or fixed.intersection(roots):
        return None
    anchor = max(roots)
    while anchor.next.target is operator.getitem:
        anchor = anchor.next
    released = [
        root
        for root in roots
        if root.op == "call_function"
        and all(reader is node or (reader < node and not anchor < reader) for reader in readers[root])
    ]
    if sum(_bytes(root) or 0 for root in released) - (_bytes(node) or 0) <= least:
        return None
    following = anchor.next
    while "alias" in following.meta:
        following = following.next
    return anchor if following is not node and anchor < node else None


def _move(node: Node, anchor: Node) -> None:
    """Moves a call and the aliases that it reads behind `anchor`."""
    aliases: list[Node] = []
    for source in node.all_input_nodes:
        while "alias" in source.meta and anchor < source:
            aliases.append(source)
            source = source.meta["alias"][0]
    for each in (*sorted(dict.fromkeys(aliases)), node):
        anchor.append(each)
        anchor = each


def _bytes(node: Node) -> int | None:
    """Returns the bytes of a result, or None if they are unknown."""
    return sum(sizes) if None not in (sizes := list(_sizes(node))) else None  # type: ignore[arg-type]


def _sizes(node: Node) -> Iterator[int | None]:
    val = node.meta.get("val")
    for part in val if isinstance(val, (list, tuple)) else (val,):
        if isinstance(part, torch.Tensor) and all(isinstance(size, int) for size in part.shape):
            yield part.numel() * part.dtype.itemsize
        else:
            yield None


def _peak(order: Sequence[Node], readers: Mapping[Node, list[Node]], is_lent: bool) -> int:
    """Returns the largest number of bytes that are live at one time.

    Args:
        is_lent: whether the caller provides the memory of the results.
    """
    lent = set(_roots(order[-1])) if is_lent else set()

    def size_of(node: Node) -> int:
        return 0 if node in lent else _bytes(node) or 0

    live = peak = 0
    left = {root: len(nodes) for root, nodes in readers.items()}
    for node in order:
        if node.op != "call_function" or {"alias", "in_place"} & node.meta.keys():
            continue
        roots = [root for root in _roots(node) if root.op == "call_function"]
        for root in roots:
            left[root] -= 1
        released = [root for root in (*roots, node) if left.get(root, 0) == 0]
        size = size_of(node)
        overwritten = {_root(operand) for operand in ops.overwritable(node)} if size else set()
        overwrites = any(root in overwritten and size_of(root) == size for root in released)
        if node.target is not operator.getitem:
            peak = max(peak, live if overwrites else live + size)
        live += size - sum(map(size_of, released))
    return peak
