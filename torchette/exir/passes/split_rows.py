# SPDX-License-Identifier: BSD-3-Clause
# In: an Edge program and splits (layers, and the number of strips). Out: the program with these layers computed strip
# by strip, so that their widest tensors are never complete in memory.
"""Computes image layers a few rows at a time (patch-based inference, Lin et al., MCUNetV2, 2021).

The layers of a split read preceding tensors and yield one tensor. The rows that each layer must compute for a strip are
derived backwards from the last layer. Adjacent strips recompute the rows that both need.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import Target

from torchette.exir import ops
from torchette.exir.arguments import ints_arg, node_arg
from torchette.exir.graph import call, fake_mode, map_nodes, note, place, replace, same_size
from torchette.units import counted

aten = torch.ops.aten

_POOLS = (aten.max_pool2d_with_indices.default, aten.avg_pool2d.default)

Rows = tuple[int, int]  # first row, and the row after the last one


@dataclass(frozen=True)
class Split:
    """Layers of a graph, by node name and in graph order, that are computed in strips of the last layer's rows."""

    layers: tuple[str, ...]
    strips: int


class Window:
    """The input rows that a layer reads for output rows: `size` taps with distance `dilation`, every `stride` rows."""

    def __init__(
        self, size: int, stride: int = 1, padding: int = 0, dilation: int = 1, fill: float = 0
    ) -> None:
        self.size, self.stride, self.padding, self.dilation, self.fill = size, stride, padding, dilation, fill

    def input_rows(self, rows: Rows) -> Rows:
        """Returns the input rows. Rows before 0 or after the last row are padding."""
        start, stop = rows
        first = start * self.stride - self.padding
        return first, first + (stop - start - 1) * self.stride + self.dilation * (self.size - 1) + 1


def window(node: Node) -> Window | None:
    """Returns the window of a layer that can be split, or None.

    Supports 2-D convolutions and poolings, and operators with as many result rows as operand rows.
    """
    val = node.meta.get("val")
    if node.target is operator.getitem:
        source = node_arg(node)
        only = node.args[1] == 0 and len(source.users) == 1
        return window(source) if only and source.target is aten.max_pool2d_with_indices.default else None
    if isinstance(val, (tuple, list)) and node.target is aten.max_pool2d_with_indices.default:
        val = val[0]
    if node.op != "call_function" or not isinstance(val, torch.Tensor) or val.dim() != 4:
        return None
    if not all(isinstance(size, int) for size in val.shape) or not val.is_contiguous():
        return None
    if node.target is aten.convolution.default:
        stride, padding, dilation = (ints_arg(node, place) for place in (3, 4, 5))
        transposed = node.args[6]
        if (
            transposed
            or node_arg(node).meta["val"].dim() != 4
            or not len(stride) == len(padding) == len(dilation) == 2
        ):
            return None
        return Window(node_arg(node, 1).meta["val"].shape[2], stride[0], padding[0], dilation[0])
    if node.target in _POOLS:
        size, padding = ops.argument(node, "kernel_size"), ops.argument(node, "padding")
        stride = ops.argument(node, "stride") or size
        if ops.argument(node, "ceil_mode") or not len(size) == len(padding) == len(stride) == 2:
            return None
        if node.target is aten.avg_pool2d.default:
            counted = ops.argument(node, "count_include_pad") or ops.argument(node, "divisor_override")
            return Window(size[0], stride[0], padding[0]) if counted or not padding[0] else None
        dilation = ops.argument(node, "dilation")
        if not val.is_floating_point() or (padding[0] and len(dilation) != 2):
            return None
        return Window(size[0], stride[0], padding[0], dilation[0], -math.inf)
    if node.target is aten.cat.default:
        return Window(1) if ops.argument(node, "dim") % 4 == 1 else None
    if ops.is_operator(node.target) and ops.is_pointwise(node.target) and node.all_input_nodes:
        return Window(1)
    return None


def carriers(node: Node) -> list[Node]:
    """Returns the operands of a layer that are read row by row. The others (weights, broadcast rows) are read
    completely."""
    if node.target in (operator.getitem, aten.convolution.default, *_POOLS):
        return [node_arg(node)]
    rows = node.meta["val"].shape[2]
    return [
        source
        for source in node.all_input_nodes
        if isinstance(source.meta["val"], torch.Tensor)
        and source.meta["val"].dim() >= 2
        and rows > 1
        and same_size(source.meta["val"].shape[-2], rows)
    ]


def rows_of(node: Node) -> int:
    """Returns the number of rows of the images that a layer yields."""
    val = node.meta["val"]
    result: int = (val[0] if isinstance(val, (tuple, list)) else val).shape[-2]
    return result


def strip_bounds(rows: int, strips: int) -> list[Rows]:
    """Returns the rows of each strip, of nearly equal height."""
    return [(rows * i // strips, rows * (i + 1) // strips) for i in range(strips)]


def read_rows(node: Node, rows: Rows) -> Rows:
    """Returns the operand rows that a layer reads for its output rows. Rows before 0 or after the last row are
    padding."""
    reading = Window(1) if node.target is operator.getitem else window(node)
    assert reading is not None
    return reading.input_rows(rows)


def needed_rows(layers: Sequence[Node], rows: Rows) -> dict[Node, Rows]:
    """Returns, for rows of the last layer, the rows of every layer and operand that are needed, without padding."""
    needed: dict[Node, Rows] = {layers[-1]: rows}
    for node in reversed(layers):
        start, stop = read_rows(node, needed[node])
        for source in carriers(node):
            low, high = needed.get(source, (start, stop))
            needed[source] = (max(0, min(low, start)), min(rows_of(source), max(high, stop)))
    return needed


def copies(source: Node, required: Rows, have: Rows | None) -> list[tuple[str, Rows]]:
    """Returns the steps that extract rows from an operand of which the rows `have` exist, by default all.

    Returns:
        "slice" and "pad" if needed, each with the rows after the step.
    """
    have = have or (0, rows_of(source))
    inside = (max(required[0], 0), min(required[1], rows_of(source)))
    return [
        *([("slice", inside)] if inside != have else []),
        *([("pad", required)] if inside != required else []),
    ]


def split_rows(program: ExportedProgram, splits: Iterable[Split]) -> ExportedProgram:
    """Compute image layers in strips of rows."""
    nodes = {node.name: node for node in program.graph.nodes}
    for split in splits:
        layers = [nodes[name] for name in split.layers]
        last = layers[-1]
        result = None
        for rows in strip_bounds(rows_of(last), split.strips):
            strip = _strip(program, layers, rows)
            result = strip if result is None else result
            if rows[0] == 0:
                below = rows_of(last) - rows[1]
                result = _call(program, last, aten.constant_pad_nd.default, (strip, [0, 0, 0, below], 0))
            else:
                result = _call(program, last, aten.slice_scatter.default, (result, strip, 2, *rows))
        assert result is not None
        replace(program, last, result)
        for node in reversed(layers[:-1]):
            node.graph.erase_node(node)
        note(
            program,
            f"{counted(len(layers), 'layer')} in {counted(split.strips, 'strip')}, up to {place(result)}",
        )
    return program


def _strip(program: ExportedProgram, layers: Sequence[Node], rows: Rows) -> Node:
    """Computes rows of the last layer, and inserts the nodes before it."""
    needed = needed_rows(layers, rows)
    last = layers[-1]
    strip_nodes: dict[Node, Node] = {}  # layer or operand -> node of its rows `needed`

    def rows_from(source: Node, required: Rows, fill: float) -> Node:
        """Returns rows of an operand. Rows outside the image are padding."""
        result, have = (
            strip_nodes.get(source, source),
            needed[source] if source in strip_nodes else (0, rows_of(source)),
        )
        for kind, rows in copies(source, required, have):
            dim = source.meta["val"].dim() - 2
            if kind == "slice":
                bounds = (rows[0] - have[0], rows[1] - have[0])
                result = _call(program, last, aten.slice_copy.Tensor, (result, dim, *bounds))
                have = rows
            else:
                edges = [0, 0, have[0] - rows[0], rows[1] - have[1]]
                result = _call(program, last, aten.constant_pad_nd.default, (result, edges, fill))
        return result

    for node in layers:
        if node.target is operator.getitem:
            strip_nodes[node] = _call(
                program, node, operator.getitem, (strip_nodes[node_arg(node)], 0), before=last
            )
            continue
        reading = window(node)
        assert reading is not None
        required_rows = read_rows(node, needed[node])
        parts = {source: rows_from(source, required_rows, reading.fill) for source in carriers(node)}
        args = list(map_nodes(node.args, functools.partial(_get, parts)))
        if node.target is aten.convolution.default:
            args[4] = [0, *args[4][1:]]
        elif node.target in _POOLS:
            size, padding = ops.argument(node, "kernel_size"), ops.argument(node, "padding")
            stride = ops.argument(node, "stride") or size
            args[1:4] = [size, stride, [0, padding[1]]]
        strip_nodes[node] = _call(program, node, node.target, tuple(args), node.kwargs, before=last)
    return strip_nodes[last]


def _get(parts: dict[Node, Node], source: Node) -> Node:
    return parts.get(source, source)


def _call(
    program: ExportedProgram,
    like: Node,
    target: Target,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    before: Node | None = None,
) -> Node:
    values = map_nodes((args, kwargs or {}), lambda node: node.meta["val"])
    mode = fake_mode(program)
    assert mode is not None
    assert callable(target)
    with mode:
        val = target(*values[0], **values[1])
    return call(before or like, target, args, kwargs, val=val, like=like)
