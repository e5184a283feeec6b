# SPDX-License-Identifier: BSD-3-Clause
# In: the tensors in planned memory, with offsets and lifetimes. Out: a diagram, with time to the right and addresses
# upwards, as text for a terminal or as a self-contained SVG.
"""Diagrams of planned memory over time, from `torchette.devtools.device_memory.tenants`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from torchette.devtools.device_memory import Tenant

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
FREE = "·"


def letters(tenants: Sequence[Tenant]) -> list[str]:
    """Returns the letter of each tensor in `text`, in order; letters repeat after the last one."""
    return [_LETTERS[i % len(_LETTERS)] for i in range(len(tenants))]


def text(tenants: Sequence[Tenant], nbytes: int, steps: int, *, width: int = 72, height: int = 12) -> str:
    """Returns one memory as lines of letters.

    Args:
        tenants: the tensors in this memory.
        nbytes: its size.
        steps: number of instructions.
        width: maximum number of columns (time).
        height: maximum number of lines (addresses).
    """
    columns, lines = max(1, min(width, steps)), max(1, min(height, nbytes))
    grid = [[FREE] * columns for _ in range(lines)]
    area = [[0] * columns for _ in range(lines)]
    for letter, tenant in zip(letters(tenants), tenants, strict=True):
        for line in range(lines):
            low, high = line * nbytes // lines, (line + 1) * nbytes // lines
            height_here = min(high, tenant.offset + tenant.nbytes) - max(low, tenant.offset)
            if height_here <= 0:
                continue
            for column in range(columns):
                start, end = column * steps // columns, (column + 1) * steps // columns
                width_here = min(end, tenant.last + 1) - max(start, tenant.first)
                # A cell shows the tensor that covers most of it.
                if width_here > 0 and height_here * width_here > area[line][column]:
                    area[line][column] = height_here * width_here
                    grid[line][column] = letter
    margin = len(f"{nbytes:,}")
    drawn = [
        f"{line * nbytes // lines:>{margin},} {''.join(grid[line])}" for line in range(lines - 1, -1, -1)
    ]
    right = str(max(0, steps - 1))
    axis = "0" + right.rjust(columns - 1) if columns > len(right) else "0"
    return "\n".join([*drawn, f"{'':>{margin}} {axis} instruction"])


def svg(title: str, memories: Sequence[tuple[str, Sequence[Tenant], int]], steps: int) -> str:
    """Returns an SVG of all memories of a method, from top to bottom. Each tensor is a box with its name as tooltip.

    Args:
        title: line above the diagram.
        memories: name, tensors and bytes of each memory.
        steps: number of instructions.
    """
    width, height, left, top = 960, 360, 110, 48
    parts: list[str] = []
    y = top
    for name, tenants, nbytes in memories:
        parts.append(f'<text x="{left}" y="{y - 6}">{escape(name)}: {nbytes:,} bytes</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{width}" height="{height}" class="arena"/>')
        x_scale, y_scale = width / max(1, steps), height / max(1, nbytes)
        for i, tenant in enumerate(tenants):
            x, w = left + tenant.first * x_scale, (tenant.last + 1 - tenant.first) * x_scale
            h = tenant.nbytes * y_scale
            bottom = y + height - tenant.offset * y_scale
            colour = f"hsl({i * 47 % 360} 55% {65 + i % 3 * 6}%)"
            about = (
                f"%{tenant.value} {tenant.text}\n{tenant.nbytes:,} bytes at {tenant.offset:,}\n"
                f"instructions {tenant.first} to {tenant.last}, written by {tenant.maker}"
            )
            parts.append(
                f'<rect x="{x:.2f}" y="{bottom - h:.2f}" width="{w:.2f}" height="{h:.2f}" fill="{colour}">'
                f"<title>{escape(about)}</title></rect>"
            )
        for share in (0, 0.5, 1):
            at = y + height - share * height
            parts.append(f'<text x="{left - 6}" y="{at + 4:.0f}" class="axis">{int(share * nbytes):,}</text>')
        parts.append(
            f'<text x="{left}" y="{y + height + 16}">instruction 0 to {max(0, steps - 1)}, time to the right</text>'
        )
        y += height + 64
    style = (
        "text{font:13px sans-serif;fill:#222}.axis{text-anchor:end}.arena{fill:#f4f4f4;stroke:#999}"
        "rect:not(.arena){stroke:#333;stroke-width:.4}rect:not(.arena):hover{stroke-width:2}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" height="{y}">'
        f"<style>{style}</style>"
        f'<rect width="100%" height="100%" fill="white" class="page" style="stroke:none"/>'
        f'<text x="{left}" y="20" style="font-weight:bold">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )
