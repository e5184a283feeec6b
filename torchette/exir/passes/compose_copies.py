# SPDX-License-Identifier: BSD-3-Clause
# In: a graph. Out: the graph in which one strided copy replaces a padding and the reshapes and slices that remove the padded
# elements again. Attention with relative positions shifts each row of the scores in this way.
"""Replaces paddings, reshapes and slices by one strided copy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir.arguments import int_arg, ints_arg, node_arg
from torchette.exir.graph import call, calls, is_dense, note, outputs, replace, same_size

aten = torch.ops.aten

_STEPS = frozenset({aten.constant_pad_nd.default, aten.view_copy.default, aten.slice_copy.Tensor})
# The pass computes the index of each element. Sequences with more elements, apart from the leading dimensions that no
# step changes, are not replaced.
_MAX_INDICES = 1 << 24


class _Window(NamedTuple):
    """The elements of a contiguous tensor at `offset` + the sum of each index times its stride."""

    strides: list[int]
    offset: int


def compose_copies(program: ExportedProgram) -> ExportedProgram:
    """Replace a padding and the slices that remove the padded elements by one strided copy."""
    results, count = set(outputs(program)), 0
    for node in calls(program, aten.constant_pad_nd.default):
        if node._erased:
            continue
        steps = _steps(node, results)
        if not any(step.target is aten.view_copy.default for step in steps):
            continue
        found = _longest(steps)
        if found is None:
            continue
        end, window = found
        val = end.meta["val"]
        args = (node_arg(node), list(val.shape), window.strides, window.offset)
        replace(program, end, call(end, aten.as_strided_copy.default, args, val=val, like=end))
        for step in reversed(steps[: steps.index(end)]):
            step.graph.erase_node(step)
        count += 1
    if count:
        note(program, f"{count} paddings became strided copies")
    return program


def _steps(pad: Node, results: set[object]) -> list[Node]:
    """Returns a padding and the steps that follow it, each of which is the only reader of the previous one."""
    steps = [pad]
    while len(steps[-1].users) == 1 and steps[-1] not in results:
        (user,) = steps[-1].users
        if user.target not in _STEPS:
            break
        steps.append(user)
    tensors = [node_arg(pad).meta["val"], *(step.meta["val"] for step in steps)]
    is_static = all(isinstance(size, int) for val in tensors for size in val.shape)
    return steps if is_static and all(map(is_dense, tensors)) and tensors[0].numel() else []


def _longest(steps: list[Node]) -> tuple[Node, _Window] | None:
    """Returns the last step that yields a window of the padded tensor, and that window."""
    source = node_arg(steps[0]).meta["val"]
    fixed = _fixed(steps)
    numel = math.prod(source.shape[fixed:])
    found: tuple[Node, _Window] | None = None
    if numel > _MAX_INDICES:
        return None
    leading = [math.prod(source.shape[dim + 1 :]) for dim in range(fixed)]
    for step, indices in _indices(steps, fixed):
        window = _window(indices)
        if window is not None and len(steps) > 1:
            found = step, _Window([*leading, *window.strides], window.offset)
    return found


def _fixed(steps: list[Node]) -> int:
    """Returns the count of leading dimensions that no step changes."""
    source = node_arg(steps[0]).meta["val"]
    fixed: int = source.dim()
    for step in steps:
        shape, rank = step.meta["val"].shape, step.meta["val"].dim()
        if step.target is aten.slice_copy.Tensor:
            fixed = min(fixed, int_arg(step, 1) % rank if len(step.args) > 1 else 0)
        elif step.target is aten.constant_pad_nd.default:
            fixed = min(fixed, rank - len(ints_arg(step, 1)) // 2)
        same = 0
        while same < min(fixed, rank) and same_size(shape[same], source.shape[same]):
            same += 1
        fixed = same
    return fixed


def _indices(steps: list[Node], fixed: int) -> Iterator[tuple[Node, Tensor]]:
    """Yields each step with the indices of its elements in the padded tensor, without the fixed dimensions. A padded
    element has index -1."""
    shape = node_arg(steps[0]).meta["val"].shape[fixed:]
    indices = torch.arange(math.prod(shape)).view(shape)
    for step in steps:
        if step.target is aten.view_copy.default:
            indices = indices.reshape(step.meta["val"].shape[fixed:])
        elif step.target is aten.slice_copy.Tensor:
            dim = (int_arg(step, 1) if len(step.args) > 1 else 0) % step.meta["val"].dim()
            indices = aten.slice.Tensor(indices, dim - fixed, *step.args[2:])
        else:
            indices = aten.constant_pad_nd.default(indices, list(ints_arg(step, 1)), -1)
        yield step, indices


def _window(indices: Tensor) -> _Window | None:
    """Returns the window that has these indices, or None."""
    if indices.numel() == 0 or int(indices.min()) < 0:
        return None
    first = indices[(0,) * indices.dim()]
    strides = [
        int((indices.select(dim, 1) - indices.select(dim, 0)).flatten()[0]) if size > 1 else 0
        for dim, size in enumerate(indices.shape)
    ]
    expected = first.clone()
    for dim, (size, stride) in enumerate(zip(indices.shape, strides, strict=True)):
        steps = torch.arange(size) * stride
        expected = expected + steps.view([-1] + [1] * (indices.dim() - 1 - dim))
    if min(strides, default=0) < 0 or not torch.equal(expected, indices):
        return None
    return _Window(strides, int(first))
