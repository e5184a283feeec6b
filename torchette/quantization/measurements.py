# SPDX-License-Identifier: BSD-3-Clause
# Measurements are appended to a file. A later run reads the file and measures only the missing values.
"""`Measurements`: a JSON Lines file that grows while models are measured."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torchette.errors import InputError


class Measurements:
    """Named values in memory and, optionally, in a file.

    Args:
        path: the file, which is created if it does not exist; None keeps the values in memory only.
        of: describes the model and the conditions of the measurements.

    Raises:
        InputError: if the file contains measurements under other conditions.
    """

    def __init__(self, path: str | os.PathLike[str] | None, of: dict[str, Any]) -> None:
        self._path = None if path is None else Path(path)
        self._values: dict[str, Any] = {}
        if self._path is None:
            return
        text = self._path.read_text(encoding="utf-8", errors="replace") if self._path.exists() else ""
        lines = text.splitlines()
        records = [record for line in lines if (record := _record(line)) is not None]
        if lines and (not records or records[0].get("of") != of):
            before = records[0].get("of") if records else None
            changed = [key for key in of if not isinstance(before, dict) or before.get(key) != of[key]]
            raise InputError(
                f"{self._path} contains measurements of another configuration; different: {', '.join(changed)}",
                hints=["use another file, or no file, to start a new measurement"],
            )
        self._values = {record["name"]: record["value"] for record in records[1:] if "name" in record}
        if not lines:
            self._append({"of": of})
        elif not text.endswith("\n"):  # an interrupted run wrote an incomplete line
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def get(self, name: str) -> Any:
        """Returns the value of a measurement, or None if there is none."""
        return self._values.get(name)

    def put(self, name: str, value: object) -> None:
        """Stores a value."""
        self._values[name] = value
        if self._path is not None:
            self._append({"name": name, "value": value})

    def _append(self, record: dict[str, Any]) -> None:
        assert self._path is not None
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _record(line: str) -> dict[str, Any] | None:
    """Parses a line. Returns None if the line is incomplete."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
