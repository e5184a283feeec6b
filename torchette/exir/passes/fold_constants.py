# SPDX-License-Identifier: BSD-3-Clause
# In: a graph. Out: values that depend only on parameters and constants are computed and stored, unless the file would
# grow: a weight with another reader is not stored a second time in another shape.
"""Computes values that do not depend on the inputs ahead of time."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from torchette.exir import control_flow, ops
from torchette.exir.arguments import function
from torchette.exir.graph import (
    add_constant,
    constants,
    drop_unused_constants,
    map_nodes,
    note,
    outputs,
    replace,
)

# A result of up to this size in bytes is stored even if its operands must also be stored, because an instruction and
# its tensors need about as much space in the file and the runtime.
SMALL = 4096


def fold_constants(
    program: ExportedProgram, small: int = SMALL, widen: bool = True, skip: Collection[Any] = ()
) -> ExportedProgram:
    """Replace values that depend only on stored tensors by stored tensors, unless the file would grow by more than
    `small` bytes per value. With `widen=False`, casts of large 16-bit weights are not folded, for a target that reads
    such weights. Results of the operators in `skip` are not stored."""
    stored = constants(program)
    _hoist(program, stored)
    computable = _computable(program.graph, stored, widen, skip)
    results = set(outputs(program))
    # Store only values with other readers; the remaining nodes are removed.
    frontier = [n for n in computable if n in results or any(user not in computable for user in n.users)]
    frontier = [n for n in frontier if isinstance(n.meta.get("val"), torch.Tensor)]
    values: dict[Node, Any] = dict(stored)
    folded = 0
    for group in _groups(frontier, stored, computable):
        roots = {
            _storage(stored[root]): stored[root].untyped_storage().nbytes()
            for n in group
            for root in group[n]
        }
        stays = _storages_still_read(stored, computable)
        freed = sum(size for storage, size in roots.items() if storage not in stays)
        added = sum(_nbytes(n) for n in group)
        whole = added <= freed + small
        for node in group:
            if whole or _nbytes(node) <= small:
                tensor = evaluate(node, values)
                constant = add_constant(program, f"folded_{node.name}", tensor, node)
                values[constant] = tensor
                replace(program, node, constant)
                folded += 1
    if folded:
        for node in reversed(computable):
            if not node._erased and not node.users:
                node.graph.erase_node(node)
        dropped = drop_unused_constants(program)
        note(program, f"{folded} values computed ahead of time, {dropped} stored tensors no longer needed")
    return program


def _hoist(program: ExportedProgram, stored: Mapping[Node, Any]) -> None:
    """Moves values that branches compute only from stored tensors to the main graph, where they are folded. A branch
    has no stored tensors, and the body of a loop would compute them in every iteration."""
    callers = control_flow.owners(program.graph_module)
    for branch in reversed(list(callers)):
        origins: dict[Node, Node] = {}
        for node in control_flow.inputs(branch):
            origin = control_flow.origin(node, callers)
            if origin is not None and origin in stored:
                origins[node] = origin
        computable = _computable(branch.graph, origins, True)
        outermost = callers[branch]
        while outermost.graph.owning_module in callers:
            outermost = callers[outermost.graph.owning_module]
        returned = {value for value in control_flow.results(branch) if isinstance(value, Node)}
        for node in computable:
            read = any(user not in computable for user in node.users)
            is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
            if read and is_tensor and node not in returned and _nbytes(node) <= SMALL:
                copied = _copied(node, origins, outermost)
                inside = control_flow.pass_to_branch(copied, branch, callers)
                node.replace_all_uses_with(inside)
                origins[inside] = copied  # other computable values may read it
        for node in reversed(computable):
            if not node.users:
                branch.graph.erase_node(node)


def _copied(node: Node, known: dict[Node, Node], before: Node) -> Node:
    if node not in known:
        for source in node.all_input_nodes:
            _copied(source, known, before)
        with before.graph.inserting_before(before):
            known[node] = before.graph.node_copy(node, lambda source: known[source])
    return known[node]


def _computable(
    graph: Graph, stored: Mapping[Node, Any], widen: bool, skip: Collection[Any] = ()
) -> dict[Node, None]:
    found: dict[Node, None] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not (
            ops.is_operator(node.target) or node.target is operator.getitem
        ):
            continue
        if node.target in skip:
            continue
        if ops.is_operator(node.target) and (not ops.is_pure(node.target) or ops.is_symbolic(node.target)):
            continue
        # Stored integers that are converted to floats are quantized weights. Folding would enlarge the file.
        if _widens(node, widen):
            continue
        if all(source in stored or source in found for source in node.all_input_nodes) and _is_static(node):
            found[node] = None
    return found


def _widens(node: Node, widen: bool) -> bool:
    if "dequantize" in str(node.target):
        return True
    sources = node.all_input_nodes
    if node.target != torch.ops.aten._to_copy.default or node.meta["val"].dtype is not torch.float32:
        return False
    narrow = sources[0].meta["val"].dtype
    return narrow in (torch.int8, torch.uint8) or (
        not widen and narrow in (torch.bfloat16, torch.float16) and _nbytes(node) > SMALL
    )


def _is_static(node: Node) -> bool:
    values = node.meta.get("val")
    values = values if isinstance(values, (list, tuple)) else [values]
    return all(
        value is None
        or (
            isinstance(value, torch.Tensor)
            and not any(isinstance(size, torch.SymInt) for size in value.shape)
        )
        for value in values
    )


def _groups(
    frontier: list[Node], stored: Mapping[Node, torch.Tensor], computable: Collection[Node]
) -> list[dict[Node, frozenset[Node]]]:
    """Returns the frontier nodes with their stored tensors. Nodes that share a tensor are in one group."""
    roots = _roots(computable, stored)
    storages = {root: _storage(stored[root]) for node in frontier for root in roots[node]}
    group_of: dict[tuple[Any, ...], int] = {}  # the group that reads a storage
    groups: dict[int, dict[Node, frozenset[Node]]] = {}
    for index, node in enumerate(frontier):
        keys = dict.fromkeys(storages[root] for root in roots[node])
        shared = dict.fromkeys(group_of[key] for key in keys if key in group_of)
        largest = max(shared, key=lambda group: len(groups[group]), default=index)
        members = groups.pop(largest, {})
        for other in shared:
            if other != largest:
                absorbed = groups.pop(other)
                members.update(absorbed)
                group_of.update((storages[root], largest) for one in absorbed.values() for root in one)
        members[node] = roots[node]
        groups[largest] = members
        group_of.update(dict.fromkeys(keys, largest))
    return list(groups.values())


def _roots(computable: Collection[Node], stored: Mapping[Node, Any]) -> dict[Node, frozenset[Node]]:
    """Returns the stored tensors from which each node is computed. `computable` is in the order of the graph."""
    roots: dict[Node, frozenset[Node]] = {}
    for node in computable:
        parts = [roots.get(source) or frozenset({source} & stored.keys()) for source in node.all_input_nodes]
        largest = max(parts, key=len, default=frozenset())
        # Nodes of a chain share one set.
        roots[node] = (
            largest if all(part is largest or part <= largest for part in parts) else largest.union(*parts)
        )
    return roots


def _storages_still_read(
    stored: dict[Node, torch.Tensor], computable: dict[Node, None]
) -> set[tuple[Any, ...]]:
    return {
        _storage(tensor)
        for node, tensor in stored.items()
        if any(user not in computable for user in node.users)
    }


def _storage(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())


def _nbytes(node: Node) -> int:
    val = node.meta["val"]
    result: int = math.prod(val.shape) * val.dtype.itemsize
    return result


def evaluate(node: Node, values: dict[Node, Any]) -> torch.Tensor:
    """Computes a node from `values`, to which it adds the values of all nodes on the way."""
    with torch.no_grad():
        stack = [node] if node not in values else []
        while stack:
            current = stack[-1]
            missing = [source for source in current.all_input_nodes if source not in values]
            if missing:
                stack += missing
                continue
            stack.pop()
            if current not in values:
                args, kwargs = map_nodes((current.args, dict(current.kwargs)), values.__getitem__)
                values[current] = function(current)(*args, **kwargs)
    result: torch.Tensor = values[node].detach().contiguous()
    return result
