# SPDX-License-Identifier: BSD-3-Clause
# In: names, values and tables. Out: HTML for a notebook, which uses the colors of the light or dark theme.
"""Formats results for notebooks: the `_repr_html_` of programs, methods and reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

ROWS = 12  # maximum number of displayed rows of a table

_LINE = "border-color:color-mix(in srgb,currentColor 18%,transparent)"
_SOFT = "opacity:.65"
_CELL = f"padding:3px 14px 3px 0;background:none;border:0;border-bottom:1px solid;{_LINE};vertical-align:top"


def tables(parts: Iterable[tuple[str, Sequence[str], Sequence[Sequence[Any]]]], heading: str = "") -> str:
    """Formats tables (title, columns, rows) as HTML. Long tables show only their first rows. Text is escaped."""
    rendered = [_table(*part) for part in parts]
    top = f'<div style="font-weight:600;margin-bottom:6px">{_escape(heading)}</div>' if heading else ""
    return f'<div class="torchette" style="font-size:13px;line-height:1.45;max-width:100%;overflow-x:auto">{top}{"".join(rendered)}</div>'


def facts(heading: str, pairs: Sequence[tuple[str, Any]]) -> str:
    """Formats names and values as HTML."""
    return tables([("", (), [(name, value) for name, value in pairs])], heading)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    numeric = [
        all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(rows[0]) if rows else 0)
    ]
    head = "".join(
        f'<th style="{_CELL};font-weight:500;{_SOFT};text-align:{_side(numeric, i)}">{_escape(name)}</th>'
        for i, name in enumerate(columns)
    )
    body = "".join(
        f"<tr>{''.join(_cell(value, _side(numeric, i)) for i, value in enumerate(row))}</tr>"
        for row in rows[:ROWS]
    )
    left = len(rows) - ROWS
    more = f'<div style="{_SOFT};padding-top:3px">and {left:,} more rows</div>' if left > 0 else ""
    name = f'<div style="{_SOFT};margin-top:6px">{_escape(title)}</div>' if title else ""
    header = f"<thead><tr>{head}</tr></thead>" if columns else ""
    table = f'<table style="border-collapse:collapse;margin:0;border:0">{header}<tbody>{body}</tbody></table>'
    return f"{name}{table}{more}"


def _escape(text: str) -> str:
    import html  # with html.entities, 2 of the modules that importing the compiler loads

    return html.escape(text)


def _side(numeric: Sequence[bool], column: int) -> str:
    return "right" if column < len(numeric) and numeric[column] else "left"


def _cell(value: object, side: str) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f'<td style="{_CELL};text-align:{side};font-variant-numeric:tabular-nums">{_escape(text)}</td>'
