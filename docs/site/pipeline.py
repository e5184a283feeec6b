# SPDX-License-Identifier: BSD-3-Clause
# Writes docs/pictures/pipeline.svg, the figure of the README with the stages from an nn.Module to a device.
"""python docs/site/pipeline.py [--check]"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).resolve().parents[1] / "pictures" / "pipeline.svg"
WIDTH, BOX, GAP, LEFT = 1000, 142, 24, 16
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
  .small { font-size: 11.5px; fill: #59636e }
  .band { font-size: 12px; fill: #59636e; text-anchor: start; letter-spacing: .04em }
  rect { fill: #f6f8fa; stroke: #d1d9e0; rx: 8 }
  .file { fill: #ddf4ff; stroke: #54aeff }
  path { stroke: #818b98; stroke-width: 1.5; fill: none; marker-end: url(#head) }
  line { stroke: #d1d9e0; stroke-dasharray: 4 4 }
  marker path { fill: #818b98; stroke: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small, .band { fill: #9198a1 }
    rect { fill: #151b23; stroke: #3d444d } .file { fill: #0c2d4d; stroke: #388bfd }
    path { stroke: #9198a1 } marker path { fill: #9198a1 } line { stroke: #3d444d }
  }
"""


class Box(NamedTuple):
    """One stage: its name, what it does, and its style class."""

    name: str
    detail: str
    kind: str = ""


COMPILER = (
    Box("nn.Module", "your model"),
    Box("torch.export", "one ATen graph"),
    Box("Core ATen, Edge", "decompose, optimize"),
    Box("engine or delegate", "fuse, quantize, pack"),
    Box("memory plan", "one arena, fixed offsets"),
    Box("model.pte", "graph, plan, weights", "file"),
)
RUNTIME = (
    Box("outputs", "tensors"),
    Box("kernels", "CPU, GPU or XNNPACK"),
    Box("method", "a list of calls"),
    Box("load, verify", "no copy of weights"),
    Box("data loader", "flash, file or memory"),
    Box("model.pte", "on the device", "file"),
)


def left(column: int) -> int:
    """Returns the x coordinate of a column's left edge."""
    return LEFT + column * (BOX + GAP)


def row(boxes: tuple[Box, ...], top: int, forward: bool) -> list[str]:
    """Returns the SVG elements of one row of boxes and the arrows between them."""
    lines = []
    for column, box in enumerate(boxes):
        x, middle = left(column), left(column) + BOX // 2
        lines.append(f'<rect class="{box.kind}" x="{x}" y="{top}" width="{BOX}" height="58"/>')
        lines.append(f'<text x="{middle}" y="{top + 25}">{box.name}</text>')
        lines.append(f'<text class="small" x="{middle}" y="{top + 44}">{box.detail}</text>')
        if column + 1 < len(boxes):
            start, end = x + BOX + 2, left(column + 1) - 4
            start, end = (start, end) if forward else (end + 2, start + 2)
            lines.append(f'<path d="M{start} {top + 29} H{end}"/>')
    return lines


def picture() -> str:
    """Returns the SVG document."""
    down = left(5) + BOX // 2
    elements = [
        '<text class="band" x="16" y="20">AHEAD OF TIME: Python and torch</text>',
        *row(COMPILER, 30, forward=True),
        f'<line x1="{LEFT}" y1="112" x2="{left(5) + BOX}" y2="112"/>',
        f'<path d="M{down} 90 V146"/>',
        '<text class="band" x="16" y="136">ON THE DEVICE: C++17 without heap, exceptions or dependencies</text>',
        *row(RUNTIME, 150, forward=False),
    ]
    body = "\n".join(elements)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 10} 224" role="img">\n'
        "<!-- SPDX-License-Identifier: BSD-3-Clause -->\n<title>From an nn.Module to a device</title>\n"
        f"<style>{STYLE}</style>\n"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>\n'
        f"{body}\n</svg>\n"
    )


def main() -> int:
    """Writes the file; with --check compares it instead and returns 1 if it differs."""
    if "--check" in sys.argv[1:]:
        return int(FILE.read_text(encoding="utf-8") != picture())
    FILE.write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
