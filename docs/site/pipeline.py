# SPDX-License-Identifier: BSD-3-Clause
# The figure of the README with the stages from an nn.Module to a device.
"""`picture(theme)`; docs/site/figures.py writes the files."""

from __future__ import annotations

from typing import NamedTuple

from torchette.devtools import drawing

WIDTH, BOX, GAP, LEFT = 1000, 142, 24, 16


class Box(NamedTuple):
    """One stage: its name, what it does, and its style class."""

    name: str
    detail: str
    kind: str = "panel"


COMPILER = (
    Box("nn.Module", "your model"),
    Box("torch.export", "one ATen graph"),
    Box("Core ATen, Edge", "decompose, optimize"),
    Box("engine or delegate", "fuse, quantize, pack"),
    Box("memory plan", "one arena, fixed offsets"),
    Box("model.pte", "graph, plan, weights", "mark"),
)
RUNTIME = (
    Box("outputs", "tensors"),
    Box("kernels", "CPU, GPU or XNNPACK"),
    Box("method", "a list of calls"),
    Box("load, verify", "no copy of weights"),
    Box("data loader", "flash, file or memory"),
    Box("model.pte", "on the device", "mark"),
)


def left(column: int) -> int:
    """Returns the x coordinate of a column's left edge."""
    return LEFT + column * (BOX + GAP)


def row(boxes: tuple[Box, ...], top: int, forward: bool) -> list[str]:
    """Returns the SVG elements of one row of boxes and the arrows between them."""
    lines = []
    for column, box in enumerate(boxes):
        x, middle = left(column), left(column) + BOX // 2
        lines.append(drawing.rectangle(x, top, BOX, 58, box.kind, radius=8))
        lines.append(drawing.text(middle, top + 25, box.name, "middle"))
        lines.append(drawing.text(middle, top + 44, box.detail, "quiet small middle"))
        if column + 1 < len(boxes):
            start, end = x + BOX + 2, left(column + 1) - 4
            start, end = (start, end) if forward else (end + 2, start + 2)
            lines.append(drawing.path(f"M{start} {top + 29} H{end}", "arrow"))
    return lines


def picture(theme: str) -> str:
    """Returns the SVG document."""
    down = left(5) + BOX // 2
    elements = [
        drawing.text(16, 20, "AHEAD OF TIME: Python and torch", "quiet"),
        *row(COMPILER, 30, forward=True),
        drawing.tick(LEFT, 112, left(5) + BOX, 112),
        drawing.path(f"M{down} 90 V146", "arrow"),
        drawing.text(16, 136, "ON THE DEVICE: C++17 without heap, exceptions or dependencies", "quiet"),
        *row(RUNTIME, 150, forward=False),
    ]
    return drawing.document("From an nn.Module to a device", WIDTH + 10, 224, elements, theme=theme)
