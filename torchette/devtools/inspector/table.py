# SPDX-License-Identifier: BSD-3-Clause
# In: rows with the same columns. Out: text, tab-separated values, or a DataFrame where pandas is installed.
"""A table that needs no pandas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from torchette import notebook
from torchette.devtools import inspect
from torchette.units import counted

_WIDEST = 60  # characters of a cell as text


class Table:
    """Rows with named columns.

    Args:
        rows: column -> value; the first row has all columns, unless `columns` names them.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
        self.columns = list(columns if columns is not None else rows[0] if rows else ())
        self.rows = [{column: row.get(column) for column in self.columns} for row in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, column: str) -> list[Any]:
        """A column."""
        if column not in self.columns:
            raise KeyError(f"no column {column!r}; there are {', '.join(self.columns)}")
        return [row[column] for row in self.rows]

    def to_dict(self) -> dict[str, list[Any]]:
        """Column -> its values."""
        return {column: self[column] for column in self.columns}

    def to_dataframe(self) -> Any:
        """A pandas.DataFrame. Raises MissingPackageError where pandas is not installed."""
        return inspect.pandas().DataFrame(self.rows, columns=self.columns)

    def write_tsv(self, file: IO[str]) -> None:
        """Write tab-separated values; the first column is the number of the row."""
        file.write("\t".join(["", *self.columns]) + "\n")
        for number, row in enumerate(self.rows):
            cells = ["" if value is None else _one_line(value) for value in row.values()]
            file.write("\t".join([str(number), *cells]) + "\n")

    def __str__(self) -> str:
        rows = [tuple(_cell(value) for value in row.values()) for row in self.rows]
        return str(inspect.Table(counted(len(rows), "row"), tuple(self.columns), rows))

    def _repr_html_(self) -> str:
        rows = [[_cell(value) for value in row.values()] for row in self.rows]
        return notebook.tables([("", self.columns, rows)])

    __repr__ = __str__


def _one_line(value: object) -> str:
    return str(value).replace("\t", " ").replace("\n", "\\n")


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = inspect.printable(_one_line(value))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
