# SPDX-License-Identifier: BSD-3-Clause
# In: rows with the same columns. Out: text, tab-separated values, or a DataFrame if pandas is installed.
"""A table that does not require pandas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from torchette import notebook
from torchette.devtools import inspect
from torchette.units import counted

_MAX_CELL_WIDTH = 60  # maximum number of characters of a cell


class Table:
    """Rows with named columns.

    Args:
        rows: column -> value.
        columns: names of the columns; by default those of the first row.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
        self.columns = list(columns if columns is not None else rows[0] if rows else ())
        self.rows = [{column: row.get(column) for column in self.columns} for row in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, column: str) -> list[Any]:
        """Returns the values of a column. Raises KeyError if there is no such column."""
        if column not in self.columns:
            raise KeyError(f"no column {column!r}; columns: {', '.join(self.columns)}")
        return [row[column] for row in self.rows]

    def to_dict(self) -> dict[str, list[Any]]:
        """Returns the values of each column."""
        return {column: self[column] for column in self.columns}

    def to_dataframe(self) -> Any:
        """Returns a pandas.DataFrame. Raises MissingPackageError if pandas is not installed."""
        return inspect.pandas().DataFrame(self.rows, columns=self.columns)

    def write_tsv(self, file: IO[str]) -> None:
        """Writes tab-separated values; the first column is the index of the row."""
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
    return text if len(text) <= _MAX_CELL_WIDTH else f"{text[: _MAX_CELL_WIDTH - 1]}…"
