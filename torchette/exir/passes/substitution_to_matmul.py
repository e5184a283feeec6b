# SPDX-License-Identifier: BSD-3-Clause
# In: a forward substitution over the rows of a matrix that torch.export unrolled: 13 calls for each row. Out: two matmuls for
# each doubling of the size. transformers captures the gated delta rule (Qwen3-Next, OLMo hybrid) as 63 such rows in each layer.
"""Converts unrolled forward substitutions to matmuls."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir.graph import add_constant, call, fake_mode, note
from torchette.exir.passes.steps_to_scan import Emit

aten = torch.ops.aten

_MIN_ROWS = 8  # a shorter loop needs about as many calls as the matmuls


class _Row(NamedTuple):
    """The calls that update one row in place: row = row + row @ rows above."""

    matrix: Node
    position: int
    nodes: list[Node]


def substitution_to_matmul(program: ExportedProgram) -> ExportedProgram:
    """Replace loops `a[..., i, :i] += a[..., i, :i] @ a[..., :i, :i]` for i = 1, 2, ... by matmuls.

    The loop computes inverse(1 - a) - 1 of a strictly lower triangular matrix. The diagonal blocks of the inverse double
    in size with each step: the block below the diagonal of two inverted blocks X and Y is Y @ a @ X.
    """
    graph = program.graph
    loops: dict[Node, list[_Row]] = {}
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        row = _row(node)
        if row is not None:
            loops.setdefault(row.matrix, []).append(row)
    order = {node: index for index, node in enumerate(graph.nodes)} if loops else {}
    constants: dict[tuple[int, torch.dtype], list[Node]] = {}
    count = 0
    for matrix, rows in loops.items():
        if _is_whole(matrix, rows, order):
            _rewrite(program, matrix, rows, constants)
            count += 1
    if count:
        note(program, f"{count} forward substitutions became matmuls")
    return program


def _row(copy: Node) -> _Row | None:
    """Returns the row that a copy_ updates, or None if it is not a step of a substitution."""
    into, value = _args(copy, aten.copy_.default, 2)
    matrix, index, target = _leading(into)
    row, total = _args(value, aten.add.Tensor, 2)
    product, dims = _args(total, aten.sum.dim_IntList, 2)
    scaled, above = _args(product, aten.mul.Tensor, 2)
    (read,) = _args(row, aten.clone.default, 1)
    (block,) = _args(above, aten.clone.default, 1)
    source, square = _leading(read), _square(block)
    if matrix is None or source[:2] != (matrix, index) or square[:2] != (matrix, index):
        return None
    if dims != [-2] or _args(scaled, aten.unsqueeze.default, 2) != (row, -1):
        return None
    parts = (*source[2], row, *square[2], above, scaled, product, total, value, *target)
    nodes = list(dict.fromkeys((*parts, copy)))
    is_shared = any(user not in nodes for node in nodes for user in node.users)
    return None if is_shared else _Row(matrix, index, nodes)


def _args(node: object, target: object, count: int) -> tuple[Any, ...]:
    """Returns the arguments of a call of `target`, or `count` times None if the node is another one."""
    if not isinstance(node, Node) or node.target is not target or len(node.args) != count:
        return (None,) * count
    if {*node.kwargs} - {"memory_format"}:
        return (None,) * count
    args: tuple[Any, ...] = node.args
    return args


def _leading(node: object) -> tuple[Node | None, int, list[Node]]:
    """Returns a, i and the nodes of `a[..., i, :i]`, or None for a."""
    select, *extent = _args(node, aten.slice.Tensor, 4)
    matrix, dim, index = _args(select, aten.select.int, 3)
    if matrix is None or not isinstance(index, int):
        return None, 0, []
    rank = matrix.meta["val"].dim()
    return (matrix if (dim, extent) == (rank - 2, [rank - 2, 0, index]) else None), index, [select, node]


def _square(node: object) -> tuple[Node | None, int, list[Node]]:
    """Returns a, i and the nodes of `a[..., :i, :i]`, or None for a."""
    rows, *columns = _args(node, aten.slice.Tensor, 4)
    matrix, *extent = _args(rows, aten.slice.Tensor, 4)
    if matrix is None or not isinstance(extent[2], int):
        return None, 0, []
    rank, end = matrix.meta["val"].dim(), extent[2]
    is_square = (extent, columns) == ([rank - 2, 0, end], [rank - 1, 0, end])
    return (matrix if is_square else None), end, [rows, node]


def _is_whole(matrix: Node, rows: list[_Row], order: dict[Node, int]) -> bool:
    """Returns whether the rows are 1, 2, ... of a new strictly lower triangular matrix that nothing else reads in between."""
    if len(rows) < _MIN_ROWS or [row.position for row in rows] != list(range(1, len(rows) + 1)):
        return False
    (lower,) = _args(matrix, aten.neg.default, 1)
    if _args(lower, aten.tril.default, 2)[1] != -1 or not matrix.meta["val"].is_floating_point():
        return False
    own = {node for row in rows for node in row.nodes}
    last = max(order[row.nodes[-1]] for row in rows)
    return all(user in own or order[user] > last for user in matrix.users)


def _rewrite(
    program: ExportedProgram,
    matrix: Node,
    rows: list[_Row],
    constants: dict[tuple[int, torch.dtype], list[Node]],
) -> None:
    first = matrix.next
    emit = Emit(fake_mode(program), lambda target, args, val: call(first, target, args, val=val, like=matrix))
    size, rank = len(rows) + 1, len(matrix.meta["val"].shape)
    key = size, matrix.meta["val"].dtype
    if key not in constants:
        masks = [torch.eye(size), *_masks(size)]
        constants[key] = [
            add_constant(program, f"substitution_{size}_{index}", mask.to(key[1]), like=matrix)
            for index, mask in enumerate(masks)
        ]
    unit, *levels = constants[key]
    block = emit(aten.slice.Tensor, matrix, rank - 2, 0, size)
    block = emit(aten.slice.Tensor, block, rank - 1, 0, size)
    old = emit(aten.clone.default, block)
    inverse = emit(aten.add.Tensor, unit, emit(aten.mul.Tensor, old, levels[0]))
    for level in levels[1:]:
        below = emit(aten.matmul.default, inverse, emit(aten.mul.Tensor, old, level))
        inverse = emit(aten.add.Tensor, inverse, emit(aten.matmul.default, below, inverse))
    emit(aten.copy_.default, block, emit(aten.sub.Tensor, inverse, unit))
    for node in reversed([node for row in rows for node in row.nodes]):
        node.graph.erase_node(node)


def _masks(size: int) -> list[torch.Tensor]:
    """Returns for block sizes 1, 2, 4, ... the elements of the blocks below the diagonal of each pair of blocks."""
    masks = []
    width = 1
    while width < size:
        block = torch.arange(size) // width
        masks.append(((block[:, None] == block + 1) & (block[:, None] % 2 == 1)).float())
        width *= 2
    return masks
