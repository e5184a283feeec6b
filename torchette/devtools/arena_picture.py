# SPDX-License-Identifier: BSD-3-Clause
# In: the tensors in planned memory, with offsets and lifetimes. Out: a diagram, with time to the right and addresses
# upwards, as text for a terminal or as a self-contained SVG.
"""Diagrams of planned memory over time, from `torchette.devtools.device_memory.tenants`."""

from __future__ import annotations

from collections.abc import Sequence

from torchette.devtools import drawing
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


def svg(
    title: str,
    memories: Sequence[tuple[str, Sequence[Tenant], int]],
    steps: int,
    *,
    theme: str | None = None,
    width: int = 960,
    height: int = 360,
) -> str:
    """Returns an SVG of all memories of a method, from top to bottom. Each tensor is a box; its tooltip has the details.

    Args:
        title: line above the diagram.
        memories: name, tensors and bytes of each memory.
        steps: number of instructions.
        theme: colours, as in `drawing.document`.
        width, height: pixels of the diagram of one memory.
    """
    left, top = 80, 58
    parts = [drawing.text(left, 22, title, "title")]
    y = top
    for name, tenants, nbytes in memories:
        x_scale, y_scale = width / max(1, steps), height / max(1, nbytes)
        parts.append(drawing.text(left, y - 8, f"{name}: {nbytes:,} bytes", "quiet"))
        parts.append(drawing.rectangle(left, y, width, height))
        for i, tenant in enumerate(tenants):
            x, w = left + tenant.first * x_scale, (tenant.last + 1 - tenant.first) * x_scale
            h = tenant.nbytes * y_scale
            box = y + height - tenant.offset * y_scale - h
            about = (
                f"%{tenant.value} {tenant.text}\n{tenant.nbytes:,} bytes at {tenant.offset:,}\n"
                f"instructions {tenant.first} to {tenant.last}, written by {tenant.maker}"
            )
            parts.append(drawing.rectangle(x, box, w, h, drawing.series(i), about))
            parts += _label(tenant, x, box, w, h)
        for share in (0, 0.25, 0.5, 0.75, 1):
            at = y + height - share * height
            parts.append(drawing.text(left - 6, at + 4, f"{int(share * nbytes):,}", "quiet small end"))
        parts.append(drawing.text(left, y + height + 18, "instruction 0", "quiet small"))
        if steps > 1:
            parts.append(
                drawing.text(left + width, y + height + 18, f"instruction {steps - 1}", "quiet small end")
            )
        y += height + 64
    return drawing.document(title, left + width + 20, y - 30, parts, theme=theme)


def _label(tenant: Tenant, x: float, y: float, width: float, height: float) -> list[str]:
    """Returns up to two lines in the middle of a box, as far as they fit: the operator, and the shape."""
    operator = tenant.maker.rpartition("::")[2].partition(".")[0]
    shape = tenant.text.partition("[")[2].partition("]")[0].replace(", ", "×")
    lines = [line for line in (operator, shape) if drawing.fitting(line, width - 4)][: int(height // 13)]
    first = y + height / 2 + 4 - 6.5 * (len(lines) - 1)
    return [
        drawing.text(round(x + width / 2, 1), round(first + 13 * i, 1), line, "small middle")
        for i, line in enumerate(lines)
    ]
