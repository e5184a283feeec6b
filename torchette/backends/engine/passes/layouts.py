# SPDX-License-Identifier: BSD-3-Clause
# In: a graph with permutations around operators that require channels last. Out: the same graph with each permutation
# moved towards the outputs, through operators that support any order of dimensions, until it meets its inverse or
# another operator.
"""Moves permutations until they cancel."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.engine.passes.constants import Weights
from torchette.exir import ops
from torchette.exir.arguments import int_arg, ints_arg, list_arg, node_arg
from torchette.exir.graph import call, note, outputs, replace, same_shape, same_size

aten = torch.ops.aten
cpu = torch.ops.cpu

Order = tuple[int, ...]


class Permutation(NamedTuple):
    """A value as a permutation of `inner`: dimension d of the value is dimension `order[d]` of `inner`."""

    inner: Node
    order: Order


def permuted(val: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Returns an empty dense tensor like `val` with its dimensions in another order."""
    return val.new_empty([val.shape[dim] for dim in order])


def permute(node: Node, order: Sequence[int], before: Node) -> Node:
    """Inserts a permutation of `node` before `before`."""
    val = permuted(node.meta["val"], order)
    return call(before, aten.permute_copy.default, (node, list(order)), val=val, like=before)


def channels_last(image: Node, before: Node) -> Node:
    """Inserts the permutation [N, C, *spatial] -> [N, *spatial, C]."""
    return permute(image, [0, *range(2, image.meta["val"].dim()), 1], before)


def channels_first(image: Node, before: Node) -> Node:
    """Inserts the permutation [N, *spatial, C] -> [N, C, *spatial]."""
    last = image.meta["val"].dim() - 1
    return permute(image, [0, last, *range(1, last)], before)


def move_permutes(program: ExportedProgram) -> ExportedProgram:
    """Moves permutations towards the outputs until they meet their inverse."""
    mover = _Mover(program)
    for node in list(program.graph.nodes):
        if node.op == "call_function":
            mover.visit(node)
    if mover.moved or mover.cancelled:
        note(program, f"permutations: {mover.moved} moved, {mover.cancelled} cancelled with their inverse")
    return program


class _Mover:
    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._weights = Weights(program)
        self._permutations: dict[Node, Permutation] = {}
        self._outputs = {value for value in outputs(program) if isinstance(value, Node)}
        self.moved = self.cancelled = 0

    def visit(self, node: Node) -> None:
        """Moves permutations of a call's operands behind the call, if a rule supports it."""
        if is_permutation(node):
            self._permutation(node)
        elif any(source in self._permutations for source in node.all_input_nodes):
            rule = _rule(node)
            if rule is not None and (rule is _split or isinstance(node.meta.get("val"), torch.Tensor)):
                rule(self, node)

    def _permutation(self, node: Node) -> None:
        source = node_arg(node)
        order = _order(node)
        permutation = self._permutations.get(source, Permutation(source, tuple(range(len(order)))))
        composed = Permutation(permutation.inner, tuple(permutation.order[dim] for dim in order))
        if composed.order == tuple(range(len(order))):
            self.cancelled += source in self._permutations
            if composed.inner.op != "placeholder" or node not in self._outputs:
                replace(self._program, node, composed.inner)
            return
        if source in self._permutations:
            permutation_call = permute(composed.inner, composed.order, node)
            replace(self._program, node, permutation_call)
            node = permutation_call
        self._permutations[node] = composed

    def permutation(self, node: object) -> Permutation | None:
        """Returns the permutation that yields a value, or None."""
        return self._permutations.get(node) if isinstance(node, Node) else None

    def replace_by_inner_call(
        self, node: Node, args: Sequence[Any], order: Order, shape: Sequence[Any]
    ) -> None:
        """Replaces `node` by the same call on inner values.

        The inner result has `shape`; `node` is its permutation by `order`.
        """
        val = node.meta["val"].new_empty(list(shape))
        inner = call(node, node.target, tuple(args), dict(node.kwargs), val=val, like=node)
        self.replace_by_permutation(node, inner, order)

    def replace_by_permutation(self, node: Node, inner: Node, order: Order) -> None:
        """Replaces `node` by a permutation of `inner`."""
        self.moved += 1
        if order == tuple(range(len(order))):
            replace(self._program, node, inner)
            return
        result = permute(inner, order, node)
        replace(self._program, node, result)
        self._permutations[result] = Permutation(inner, order)

    def broadcast(self, value: Node, order: Order, before: Node) -> Node:
        """Returns an operand with fewer elements than the result, in the order of the inner dimensions."""
        shape = value.meta["val"].shape
        padded = [1] * (len(order) - len(shape)) + list(shape)
        inverse = _inverse(order)
        stored = self._weights.get(value)
        if stored is not None:
            tensor = stored.detach().reshape(padded).permute(inverse).contiguous()
            return self._weights.add(f"{value.name}_permuted", tensor, value)
        if len(padded) > len(shape):
            val = value.meta["val"].new_empty(padded)
            value = call(before, aten.view_copy.default, (value, padded), val=val, like=before)
        return permute(value, inverse, before)


def _inverse(order: Sequence[int]) -> list[int]:
    inverse = [0] * len(order)
    for dim, source in enumerate(order):
        inverse[source] = dim
    return inverse


_PERMUTES = frozenset({aten.permute_copy.default, aten.transpose_copy.int, aten.t_copy.default})


def is_permutation(node: Node) -> bool:
    """Returns whether the operator permutes the dimensions of its operand."""
    return node.target in _PERMUTES


def supports_any_order(node: Node) -> bool:
    """Returns whether `move_permutes` may move a permutation through the operator."""
    return node.target is operator.getitem or _rule(node) is not None


def _order(node: Node) -> Order:
    rank = node.meta["val"].dim()
    if node.target is aten.permute_copy.default:
        return tuple(dim % rank for dim in ints_arg(node, 1))
    order = list(range(rank))
    first, second = (0, 1) if node.target is aten.t_copy.default else (d % rank for d in node.args[1:3])
    if rank > 1:
        order[first], order[second] = order[second], order[first]
    return tuple(order)


# ---- rules: how each operator runs on permuted operands ----


def _pointwise(mover: _Mover, node: Node) -> None:
    val, order = node.meta["val"], _common_order(mover, node)
    if order is None:
        return
    operands: dict[Node, Node] = {}
    others: dict[Node, Permutation] = {}  # in another order
    for source in node.all_input_nodes:
        permutation, value = mover.permutation(source), source.meta.get("val")
        if not isinstance(value, torch.Tensor) or all(same_size(size, 1) for size in value.shape):
            operands[source] = source
        elif permutation is not None and permutation.order == order and value.dim() == val.dim():
            operands[source] = permutation.inner
        elif same_shape(value.shape, val.shape) and mover._weights.get(source) is None:
            if permutation is not None:
                others[source] = permutation
            elif (existing := _permutation_by(source, _inverse(order), node)) is not None:
                operands[source] = existing
            else:
                return
    for source, permutation in others.items():
        operands[source] = _reordered(source, permutation, order, node)
    for source in node.all_input_nodes:
        if source not in operands:
            operands[source] = mover.broadcast(source, order, node)
    args = torch.fx.node.map_arg(node.args, operands.__getitem__)
    mover.replace_by_inner_call(node, args, order, [val.shape[dim] for dim in _inverse(order)])


def _permutation_by(source: Node, order: Sequence[int], before: Node) -> Node | None:
    """Returns a permutation of a value that exists before a node, or None."""
    found = (user for user in source.users if is_permutation(user) and _order(user) == tuple(order))
    return next((user for user in found if user < before), None)


def _common_order(mover: _Mover, node: Node) -> Order | None:
    """Returns the order of the first permuted operand with the shape of the result.

    Returns None if there is no such operand, or if the operands in other orders would need more permutations than now.
    """
    order: Order | None = None
    for source in node.all_input_nodes:
        permutation = mover.permutation(source)
        if permutation is None or not same_shape(source.meta["val"].shape, node.meta["val"].shape):
            continue
        order = order or permutation.order
        if permutation.order != order and len(source.users) > 1 and not _keeps_bytes(permutation, order):
            return None
    return order


def _relative(permutation: Permutation, order: Order) -> list[int]:
    """Returns the permutation of the inner value after which the permutation by `order` yields the same value."""
    return [permutation.order[dim] for dim in _inverse(order)]


def _keeps_bytes(permutation: Permutation, order: Order) -> bool:
    """Returns whether a permuted value and its permutation by another order have the same bytes."""
    shape = permutation.inner.meta["val"].shape
    moved = [dim for dim in _relative(permutation, order) if not same_size(shape[dim], 1)]
    return moved == sorted(moved)


def _reordered(source: Node, permutation: Permutation, order: Order, node: Node) -> Node:
    """Returns the inner value of an operand in the order of the inner value of another operand."""
    inner = permutation.inner
    # A value without other users is replaced as soon as it exists, before the other operand occupies memory.
    is_last = inner.op == "call_function" and set(inner.users) == {source}
    return permute(inner, _relative(permutation, order), inner.next if is_last else node)


def _one_operand(mover: _Mover, node: Node) -> None:
    """(input, ...), elementwise; other tensor arguments are not permuted."""
    permutation = mover.permutation(node.args[0])
    if permutation is not None:
        shape = [node.meta["val"].shape[dim] for dim in _inverse(permutation.order)]
        mover.replace_by_inner_call(node, (permutation.inner, *node.args[1:]), permutation.order, shape)


def _along(node: Node, position: int, order: Order) -> int:
    dim = int_arg(node, position) if len(node.args) > position else 0
    return order[dim % len(order)]


def _concatenate(mover: _Mover, node: Node) -> None:
    permutations = [mover.permutation(source) for source in list_arg(node)]
    orders = {permutation.order if permutation is not None else None for permutation in permutations}
    if len(orders) != 1:
        return
    (order,) = orders
    if order is None:
        return
    shape = [node.meta["val"].shape[dim] for dim in _inverse(order)]
    inner = [permutation.inner for permutation in permutations if permutation is not None]
    mover.replace_by_inner_call(node, (inner, _along(node, 1, order)), order, shape)


def _slice_scatter(mover: _Mover, node: Node) -> None:
    """(input, part, dim, ...), with the same permutation of both tensors."""
    full, part = mover.permutation(node.args[0]), mover.permutation(node.args[1])
    if full is None or part is None or full.order != part.order:
        return
    order, val = full.order, node.meta["val"]
    args = (full.inner, part.inner, _along(node, 2, order), *node.args[3:])
    mover.replace_by_inner_call(node, args, order, [val.shape[dim] for dim in _inverse(order)])


def _reduce(mover: _Mover, node: Node) -> None:
    permutation = mover.permutation(node.args[0])
    dims = node.args[1] if len(node.args) > 1 else None
    if permutation is None or not dims or not isinstance(dims, (list, tuple)):
        return
    order = permutation.order
    removed = {dim % len(order) for dim in dims}
    inner_dims = sorted(order[dim] for dim in removed)
    keep = bool(node.args[2]) if len(node.args) > 2 else bool(node.kwargs.get("keepdim", False))
    remaining = (
        order if keep else _renumbered([order[dim] for dim in range(len(order)) if dim not in removed])
    )
    val = node.meta["val"]
    args = (permutation.inner, inner_dims, *node.args[2:])
    mover.replace_by_inner_call(node, args, remaining, [val.shape[dim] for dim in _inverse(remaining)])


def _renumbered(dims: Sequence[int]) -> Order:
    ranks = {dim: rank for rank, dim in enumerate(sorted(dims))}
    return tuple(ranks[dim] for dim in dims)


def _one_dim(mover: _Mover, node: Node) -> None:
    """(input, dim, ...) with a result of the same rank."""
    permutation = mover.permutation(node.args[0])
    if permutation is None:
        return
    val = node.meta["val"]
    args = (permutation.inner, _along(node, 1, permutation.order), *node.args[2:])
    mover.replace_by_inner_call(
        node, args, permutation.order, [val.shape[dim] for dim in _inverse(permutation.order)]
    )


def _select(mover: _Mover, node: Node) -> None:
    """(input, dim, index): removes the dimension."""
    permutation = mover.permutation(node.args[0])
    if permutation is None:
        return
    removed = _along(node, 1, permutation.order)
    remaining = _renumbered([dim for dim in permutation.order if dim != removed])
    shape = [node.meta["val"].shape[dim] for dim in _inverse(remaining)]
    mover.replace_by_inner_call(node, (permutation.inner, removed, *node.args[2:]), remaining, shape)


def _arg_reduce(mover: _Mover, node: Node) -> None:
    """(input, dim, keepdim): the index of an element along one dimension."""
    permutation = mover.permutation(node.args[0])
    if permutation is None or len(node.args) < 2 or node.args[1] is None:
        return
    removed, keep = _along(node, 1, permutation.order), len(node.args) > 2 and bool(node.args[2])
    remaining = (
        permutation.order if keep else _renumbered([dim for dim in permutation.order if dim != removed])
    )
    shape = [node.meta["val"].shape[dim] for dim in _inverse(remaining)]
    mover.replace_by_inner_call(node, (permutation.inner, removed, *node.args[2:]), remaining, shape)


def _split(mover: _Mover, node: Node) -> None:
    """(input, sizes, dim), with a list of results."""
    permutation = mover.permutation(node.args[0])
    if permutation is None:
        return
    order = permutation.order
    args = (permutation.inner, node.args[1], _along(node, 2, order))
    val = [permuted(part, _inverse(order)) for part in node.meta["val"]]
    inner = call(node, node.target, args, val=val, like=node)
    for part in list(node.users):
        index = int_arg(part, 1)
        mover.replace_by_permutation(
            part, call(part, operator.getitem, (inner, index), val=val[index], like=part), order
        )


def _pad(mover: _Mover, node: Node) -> None:
    permutation = mover.permutation(node.args[0])
    if permutation is None:
        return
    rank = len(permutation.order)
    amounts = list_arg(node, 1)
    pairs: list[tuple[Any, Any]] = [(0, 0)] * rank
    for index in range(len(amounts) // 2):
        pairs[rank - 1 - index] = amounts[2 * index], amounts[2 * index + 1]
    inverse = _inverse(permutation.order)
    inner = [pairs[dim] for dim in inverse]
    padding = [number for pair in reversed(inner) for number in pair]
    shape = [node.meta["val"].shape[dim] for dim in inverse]
    mover.replace_by_inner_call(node, (permutation.inner, padding, *node.args[2:]), permutation.order, shape)


def _reshape(mover: _Mover, node: Node) -> None:
    """Supports reshapes that merge or divide dimensions which are also adjacent in the inner order."""
    permutation = mover.permutation(node.args[0])
    if permutation is None:
        return
    old, new = node_arg(node).meta["val"].shape, node.meta["val"].shape
    if not all(isinstance(size, int) for size in (*old, *new)) or math.prod(new) == 0:
        return
    groups = _groups(old, new)
    if groups is None:
        return
    inner_groups: list[tuple[int, list[int]]] = []  # (first inner dimension, new dimensions)
    sizes = permutation.inner.meta["val"].shape
    sources = list(range(len(sizes)))
    for olds, news in groups:
        dims = [permutation.order[dim] for dim in olds]
        first, last = min(dims), max(dims)
        between = [dim for dim in range(first, last + 1) if sizes[dim] != 1]
        if between != sorted(dims):
            return  # not adjacent in the inner order
        for dim, source in zip(between, dims, strict=True):
            sources[dim] = source
        inner_groups.append((first, news))
    inner = permutation.inner
    if sources != sorted(sources):  # adjacent, but in another order, as in a channel shuffle
        inner = permute(inner, sources, node)
    inner_groups.sort()
    sequence = [dim for _, news in inner_groups for dim in news]
    # Dimensions of size 1 that belong to no group, such as a batch of one, become the first dimensions.
    sequence = [dim for dim in range(len(new)) if dim not in sequence] + sequence
    order = tuple(sequence.index(dim) for dim in range(len(new)))
    shape = [new[dim] for dim in sequence]
    val = node.meta["val"].new_empty(shape)
    inner = call(node, aten.view_copy.default, (inner, shape), val=val, like=node)
    mover.replace_by_permutation(node, inner, order)


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]] | None:
    """Returns groups of dimensions of `old` and `new` with equal numbers of elements, or None.

    Size-1 dimensions are omitted.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    olds = [dim for dim, size in enumerate(old) if size != 1]
    news = [dim for dim, size in enumerate(new) if size != 1]
    while i < len(olds) and j < len(news):
        left, right = [olds[i]], [news[j]]
        a, b = old[olds[i]], new[news[j]]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                if i == len(olds):
                    return None
                left.append(olds[i])
                a, i = a * old[olds[i]], i + 1
            else:
                if j == len(news):
                    return None
                right.append(news[j])
                b, j = b * new[news[j]], j + 1
        groups.append((left, right))
    return groups if i == len(olds) and j == len(news) else None


_RULES: dict[Any, Callable[[_Mover, Node], None]] = {
    aten.cat.default: _concatenate,
    aten.mean.dim: _reduce, aten.sum.dim_IntList: _reduce, aten.amax.default: _reduce, aten.amin.default: _reduce,
    aten.slice_copy.Tensor: _one_dim, aten._softmax.default: _one_dim, aten._log_softmax.default: _one_dim,
    aten.var.correction: _reduce, aten.select_copy.int: _select, aten.split_with_sizes_copy.default: _split,
    aten.split_copy.Tensor: _split, aten.argmax.default: _arg_reduce, aten.argmin.default: _arg_reduce,
    aten.constant_pad_nd.default: _pad, aten.slice_scatter.default: _slice_scatter,
    cpu.quantize.default: _one_operand, cpu.dequantize.default: _one_operand, cpu.lookup.default: _one_operand,
    cpu.quantized_add.default: _pointwise, cpu.quantized_mul.default: _pointwise,
    aten.view_copy.default: _reshape, aten.unsqueeze_copy.default: _reshape, aten.squeeze_copy.dims: _reshape,
    aten.squeeze_copy.dim: _reshape, aten.clone.default: _pointwise,
}  # fmt: skip


def _rule(node: Node) -> Callable[[_Mover, Node], None] | None:
    rule = _RULES.get(node.target)
    return _pointwise if rule is None and ops.is_pointwise(node.target) else rule
