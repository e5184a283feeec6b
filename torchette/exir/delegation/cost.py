# SPDX-License-Identifier: BSD-3-Clause
# A call of a graph comes in, how much work it is goes out.
"""What a call costs, by its shapes: an estimate that ranks calls, and is no time."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch.fx import Node

from torchette.exir.tensor import upper_bound


def cost(node: Node) -> int:
    """Multiply-adds, and elements that are read and written."""
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
    """The multiply-adds of a matrix product, linear layer, convolution or attention at its greatest shape; else 0."""
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
