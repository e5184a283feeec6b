# SPDX-License-Identifier: BSD-3-Clause
# In: tables and values. Out: text for a terminal. If rich is installed and the output is a terminal, rich formats it;
# otherwise, columns are aligned with spaces.
"""Output functions of the verbs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np


def print_json(value: object) -> None:
    """Prints the value as indented JSON."""
    print(json.dumps(value, indent=2, default=str))


def _rich_console() -> Any | None:
    """Returns a rich console if rich is installed and standard output is a terminal."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "") -> None:
    """Prints a table; numeric columns are right-aligned, other columns left-aligned."""
    numeric = [all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(columns))]
    texts = [[_cell(value) for value in row] for row in rows]
    console = _rich_console()
    if console is not None:
        from rich.box import SIMPLE_HEAD
        from rich.markup import escape
        from rich.table import Table

        table = Table(title=title or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        for column, right in zip(columns, numeric, strict=True):
            table.add_column(column, justify="right" if right else "left", overflow="fold")
        for row in texts:
            table.add_row(*map(escape, row))
        console.print(table)
        return
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    if title:
        print(title)
    for row in [list(columns), *texts]:
        cells = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        print("  ".join(cells).rstrip())


def print_rows(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], top: int | None, *, title: str = ""
) -> None:
    """Prints the first `top` rows of a table (None: all), and the number of omitted rows."""
    print_table(columns, rows[:top], title=title)
    if top is not None and len(rows) > top:
        left_out = len(rows) - top
        print(f"… {left_out:,} more row{'s' * (left_out > 1)}; --top {len(rows)} shows all")


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
    )


def statistics(array: np.ndarray) -> dict[str, Any]:
    """Returns min, mean and max of the finite elements of an array, and the number of other elements."""
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    numbers = finite.astype("float64") if finite.size and array.dtype.kind in "fiub" else None
    columns: dict[str, Any] = {
        name: "" if numbers is None else float(f"{function(numbers):.6g}")
        for name, function in (("min", np.min), ("mean", np.mean), ("max", np.max))
    }
    return columns | {"nan/inf": int(array.size - finite.size)}


def print_values(pairs: Sequence[tuple[str, Any]]) -> None:
    """Prints ``name  value`` lines with the values in one column."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{name.ljust(width)}  {_cell(value)}")


def note(text: str) -> None:
    """Prints a message for the user to standard error, separate from the result."""
    print(text, file=sys.stderr)
