# SPDX-License-Identifier: BSD-3-Clause
# In: rotary position embeddings in the form of transformers, tokens before heads. Out: `cpu::rotary`.
"""Replaces rotary position embeddings by one operator."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import Argument

from torchette.exir.arguments import checked, list_arg
from torchette.exir.graph import call, calls, note, replace, same_size

aten = torch.ops.aten


def place_rotary(program: ExportedProgram) -> ExportedProgram:
    """Replaces x cos + rotate_half(x) sin by cpu::rotary."""
    count = 0
    for node in calls(program, aten.add.Tensor):
        placed = _placed(node)
        if placed is not None:
            replace(program, node, placed)
            count += 1
    if count:
        note(program, f"{count} rotary position embeddings became cpu::rotary")
    return program


def _placed(node: Node) -> Node | None:
    left, right = node.args[:2]
    if node.kwargs or not isinstance(left, Node) or not isinstance(right, Node):
        return None
    if left.target is not aten.mul.Tensor or right.target is not aten.mul.Tensor:
        return None
    for direct, rotated in ((left, right), (right, left)):
        for x, cos in (direct.args, direct.args[::-1]):
            for half, sin in (rotated.args, rotated.args[::-1]):
                if isinstance(x, Node) and _is_rotated_half(half, x):
                    return _rotary(node, x, cos, sin)
    return None


def _rotary(node: Node, x: Node, cos: Argument, sin: Argument) -> Node | None:
    value = x.meta["val"]
    angles = [_by_token(one, value) for one in (cos, sin)]
    if value.dim() != 4 or value.dtype != torch.float32 or None in angles:
        return None
    shaped = []
    for angle, shape in zip((cos, sin), angles, strict=True):
        assert shape is not None
        val = checked(angle, Node).meta["val"].new_empty(shape)
        shaped.append(call(node, aten.squeeze_copy.dims, (angle, [2]), val=val, like=node))
    return call(node, torch.ops.cpu.rotary.default, (x, *shaped), val=node.meta["val"], like=node)


def _by_token(angle: object, value: torch.Tensor) -> list[Any] | None:
    """Reshapes angles from [B or 1, T, 1, D] to [B or 1, T, D]."""
    if not isinstance(angle, Node):
        return None
    shape = angle.meta["val"].shape
    if len(shape) != 4 or not same_size(shape[2], 1) or not same_size(shape[1], value.shape[1]):
        return None
    if not same_size(shape[3], value.shape[3]):
        return None
    return [shape[0], shape[1], shape[3]]


def _is_rotated_half(node: object, x: Node) -> bool:
    """Whether `node` is cat(-x2, x1) of the two halves of the last dimension of x."""
    if not isinstance(node, Node) or node.target is not aten.cat.default:
        return False
    last, parts = x.meta["val"].dim() - 1, list_arg(node)
    if last < 0:
        return False
    size = x.meta["val"].shape[-1]
    if len(parts) != 2 or len(node.args) < 2 or node.args[1] not in (-1, last) or not isinstance(size, int):
        return False
    negated, first = parts
    if not isinstance(negated, Node) or negated.target is not aten.neg.default:
        return False
    return _is_part(negated.args[0], x, size // 2, size) and _is_part(first, x, 0, size // 2)


def _is_part(node: object, x: Node, begin: int, end: int) -> bool:
    if not isinstance(node, Node) or node.target is not aten.slice_copy.Tensor or node.args[0] is not x:
        return False
    rank, size = x.meta["val"].dim(), x.meta["val"].shape[-1]
    args: list[Any] = list(node.args[1:])
    dim, start, stop, step = args + [0, None, None, 1][len(args) :]
    start, stop = start or 0, size if stop is None else min(stop, size)
    return dim in (-1, rank - 1) and (start, stop, step) == (begin, end, 1)
