# SPDX-License-Identifier: BSD-3-Clause
# In: a program at the end of Edge and a target size in bytes. Out: the split of image layers that reduces planned
# memory to the target at the lowest cost. This is an estimate; the caller applies the split and runs the memory
# planner.
"""Chooses layers to compute in strips, so that a program fits into the memory of a device."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import ops
from torchette.exir.arguments import node_arg
from torchette.exir.delegation.cost import cost
from torchette.exir.graph import outputs, place, placeholders
from torchette.exir.memory import align
from torchette.exir.passes.split_rows import (
    Split,
    carriers,
    copies,
    needed_rows,
    read_rows,
    rows_of,
    strip_bounds,
    window,
)
from torchette.exir.tensor import ALIGNMENT
from torchette.units import counted

aten = torch.ops.aten

STRIPS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
# Maximum length of a run. Longer runs repeat too many rows to be the best choice.
MAX_LAYERS = 80


class Proposal(NamedTuple):
    """A split, the estimated planned memory after it, and its cost.

    `peak` is in bytes. `work` is the share of the program's work (see `cost`) that is repeated; 0.05 means 5 %.
    """

    split: Split
    peak: int
    work: float
    text: str


class _Step(NamedTuple):
    """One call: its result, the size of the result in bytes, its operands, and the operands that the result may
    overwrite.
    """

    makes: Any
    nbytes: int
    reads: Sequence[Any]
    overwrites: Sequence[Any]


def propose(program: ExportedProgram, target: int, lent: Iterable[Node] = ()) -> Proposal | None:
    """Finds the split with the least repeated work that reduces planned memory to `target` bytes, by estimate.

    If no split reaches the target, returns the split with the lowest peak.

    Args:
        program: at the end of Edge.
        target: bytes.
        lent: inputs and outputs in the caller's memory, which are not planned.

    Returns:
        The split, or None if no split reduces the peak.
    """
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    index = {node: i for i, node in enumerate(nodes)}
    output_nodes = {node for node in outputs(program) if isinstance(node, Node)}
    free = set(lent)
    stored = _stored(program)
    nbytes = {node: 0 if node in free else _result_bytes(node) for node in index}
    steps = [
        _Step(node, nbytes[node], node.all_input_nodes, [] if node in free else _overwritable(node))
        for node in nodes
    ]
    inputs = {node: _bytes(node.meta["val"]) for node in placeholders(program) if node not in free | stored}
    in_use = _simulate(steps, {**inputs}, output_nodes | set(inputs))
    peak = max(in_use, default=0)
    total = sum(cost(node) for node in nodes)
    best: Proposal | None = None
    worst = in_use.index(peak) if in_use else 0
    for last in nodes:
        if window(last) is None or rows_of(last) < 2 or nbytes[last] >= peak:
            continue
        if last.target is aten.max_pool2d_with_indices.default:
            continue
        for layers in _regions(last, index, output_nodes):
            members = set(layers)
            if nodes[worst] not in members:
                continue
            first = index[layers[0]]
            outside = max((live for i, live in enumerate(in_use) if not first <= i <= index[last]), default=0)
            if outside >= peak:
                break  # another peak of this height is outside of the run; a longer run may include it
            read = {source for node in layers for source in carriers(node)} - members
            across = sum(
                align(size, ALIGNMENT)
                for node, size in {**nbytes, **inputs}.items()
                if node not in members
                and size
                and (node not in index or index[node] < index[last])
                and (
                    node in read
                    or node in inputs
                    or any(user not in members and index.get(user, len(nodes)) > first for user in node.users)
                )
            )
            least = across + align(_result_bytes(last), ALIGNMENT)
            before = peak
            for count in STRIPS:
                if count > rows_of(last) or max(outside, least) >= (best.peak if best else peak) > target:
                    break
                strip, repeated = _strip_cost(layers, count)
                estimate = max(outside, least + strip)
                if estimate >= before:
                    break  # more strips only increase the repeated work
                before = estimate
                work = repeated / total if total else 0.0
                if best is None or _rank(estimate, work, target) < _rank(best.peak, best.work, target):
                    split = Split(tuple(node.name for node in layers), count)
                    best = Proposal(split, estimate, work, _text(layers, count, work))
                if estimate <= target:
                    break
    return best


def _rank(peak: int, work: float, target: int) -> tuple[float, ...]:
    return (0, work, peak) if peak <= target else (1, peak, work)


def _text(layers: Sequence[Node], count: int, work: float) -> str:
    """Describes the split for the user."""
    first, last = place(layers[0]), place(layers[-1])
    between = first if first == last else f"{first} ... {last}"
    return (
        f"{counted(len(layers), 'layer')} in {counted(count, 'strip')} of rows, {work:+.1%} work: {between}"
    )


def _regions(last: Node, index: Mapping[Node, int], output_nodes: set[Node]) -> Iterator[list[Node]]:
    """Yields runs of layers that end in `last`, in increasing length.

    Only the result of `last` is used outside of a run.
    """
    members = {last}
    frontier = [source for source in carriers(last) if source in index]
    if last.target is operator.getitem:
        source = last.args[0]
        assert isinstance(source, Node)
        members.add(source)
        frontier = [each for each in carriers(source) if each in index]
    yield sorted(members, key=index.__getitem__)
    while frontier and len(members) < MAX_LAYERS:
        node = max(frontier, key=index.__getitem__)
        frontier = [each for each in frontier if each is not node]
        if (
            node in members
            or node in output_nodes
            or window(node) is None
            or not members.issuperset(node.users)
        ):
            continue
        added = [node, node_arg(node)] if node.target is operator.getitem else [node]
        for each in added:
            members.add(each)
            frontier += [source for source in carriers(each) if source in index]
        yield sorted(members, key=index.__getitem__)


def _strip_cost(layers: Sequence[Node], count: int) -> tuple[int, float]:
    """Returns (peak bytes of a strip without operands and result, repeated work)."""
    last, most, work = layers[-1], 0, 0.0
    for rows in strip_bounds(rows_of(last), count):
        needed = needed_rows(layers, rows)
        share = {node: (stop - start) / rows_of(node) for node, (start, stop) in needed.items()}
        work += sum(cost(node) * share[node] for node in layers)
        rows_by_node = {node: needed[node] for node in layers}
        steps = []
        for node in layers:
            reads: dict[Node, Any] = {}
            for source in carriers(node):
                reads[source] = source
                for kind, (start, stop) in copies(
                    source, read_rows(node, needed[node]), rows_by_node.get(source)
                ):
                    copied = _Step(
                        (kind, node, source), _rows_bytes(source, stop - start), [reads[source]], []
                    )
                    reads[source] = copied.makes
                    steps.append(copied)
            overwrites = [each for each in _overwritable(node) if reads.get(each) in rows_by_node]
            steps.append(_Step(node, _result_bytes(node, share[node]), [*reads.values()], overwrites))
        most = max(most, *_simulate(steps, {}, {last}))
    return most, work - sum(cost(node) for node in layers)


def _simulate(steps: Sequence[_Step], live: dict[Any, int], retained: set[Any]) -> list[int]:
    """Returns the live bytes during each step. A result overwrites a dying operand of the same size if it may."""
    last_use: dict[Any, int] = {}
    for time, step in enumerate(steps):
        last_use[step.makes] = time
        for each in step.reads:
            last_use[each] = time
    live = dict(live)
    in_use = []
    for time, step in enumerate(steps):
        dying = [
            each for each in step.reads if last_use[each] == time and each not in retained and each in live
        ]
        place = next((e for e in step.overwrites if e in dying and live[e] == step.nbytes), None)
        if place is not None:
            del live[place]
        live[step.makes] = step.nbytes
        in_use.append(sum(align(size, ALIGNMENT) for size in live.values()))
        for each in (*dying, step.makes):
            if last_use[each] == time and each not in retained:
                live.pop(each, None)
    return in_use


def _stored(program: ExportedProgram) -> set[Node]:
    """Returns weights and state. Their memory does not depend on the order of the layers."""
    user = set(program.graph_signature.user_inputs)
    return {node for node in placeholders(program) if node.name not in user}


def _result_bytes(node: Node, share: float = 1.0) -> int:
    """Returns the bytes of a result, or of a share of its rows. Results that getitem selects are counted there."""
    val = node.meta.get("val")
    if not isinstance(val, (tuple, list)):
        return _bytes(val, share)
    used_indices = {user.args[1] for user in node.users if user.target is operator.getitem}
    return sum(_bytes(each, share) for number, each in enumerate(val) if number not in used_indices)


def _rows_bytes(node: Node, rows: int) -> int:
    return _bytes(node.meta["val"], rows / rows_of(node))


def _overwritable(node: Node) -> list[Node]:
    """Returns the operands that the result may overwrite, as in memory planning; a view copy becomes an alias."""
    return node.all_input_nodes if node.target is aten.view_copy.default else ops.overwritable(node)


def _bytes(val: object, share: float = 1.0) -> int:
    if not isinstance(val, torch.Tensor) or not all(isinstance(size, int) for size in val.shape):
        return 0
    return round(val.numel() * val.element_size() * share)
