# SPDX-License-Identifier: BSD-3-Clause
# In: a call of a graph. Out: an estimate of its work.
"""The estimated cost of a call from its shapes. It ranks calls and is not a time."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch.fx import Node

from torchette.exir.tensor import upper_bound


def cost(node: Node) -> int:
    """Returns the number of multiply-adds plus the number of elements read and written."""
    moved = _tensors(node.meta.get("val")) + [
        t for source in node.all_input_nodes for t in _tensors(source.meta.get("val"))
    ]
    return multiply_adds(node) + sum(_numel(tensor.shape) for tensor in moved)


def _tensors(val: object) -> list[torch.Tensor]:
    return [v for v in (val if isinstance(val, (list, tuple)) else [val]) if isinstance(v, torch.Tensor)]


def _numel(shape: Iterable[int | torch.SymInt]) -> int:
    return math.prod(_size(size) for size in shape)


def _size(size: int | torch.SymInt) -> int:
    return size if isinstance(size, int) else (upper_bound(size) or 1)


def multiply_adds(node: Node) -> int:
    """Returns the multiply-adds of a matmul, linear, convolution or attention at its maximum shape; 0 for other
    calls."""
    shapes = [tuple(map(_size, t.shape)) for s in node.all_input_nodes for t in _tensors(s.meta.get("val"))]
    results = _tensors(node.meta.get("val"))
    target = node.meta.get("functional", node.target)
    name = str(target).removeprefix("aten.").partition(".")[0]
    if not results or not shapes:
        return 0
    count = _numel(results[0].shape)
    if name in ("mm", "bmm", "matmul", "linear"):
        return count * shapes[0][-1]
    if name in ("addmm", "baddbmm") and len(shapes) > 1:
        return count * shapes[1][-1]
    if name in ("convolution", "conv1d", "conv2d", "conv3d") and len(shapes) > 1:
        transposed = name == "convolution" and bool(node.args[6])
        weight = math.prod(shapes[1][1:])
        return (_numel(shapes[0]) if transposed else count) * weight
    if name == "scaled_dot_product_attention" and len(shapes) > 2:
        return 2 * math.prod(shapes[0]) * shapes[1][-2]
    return 0
