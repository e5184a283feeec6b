# SPDX-License-Identifier: BSD-3-Clause
# What was measured comes in, one thing after the other; a later run reads it from the file and measures only the rest.
"""`Measurements`: a file of lines of JSON that grows while models are measured."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torchette.errors import InputError


class Measurements:
    """Values by name, in memory, and in a file where there is one.

    Args:
        path: the file, which is made if it is not there; None for none.
        of: what is measured, and on what. A file of something else is refused.

    Raises:
        InputError: the file is of something else.
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
            other = [key for key in of if not isinstance(before, dict) or before.get(key) != of[key]]
            raise InputError(
                f"{self._path} has measurements of something else: {', '.join(other)} differ",
                hints=["another file, or none, measures anew"],
            )
        self._values = {record["name"]: record["value"] for record in records[1:] if "name" in record}
        if not lines:
            self._append({"of": of})
        elif not text.endswith("\n"):  # it was cut off within a line
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def get(self, name: str) -> Any:
        """What was measured; None if it was not."""
        return self._values.get(name)

    def put(self, name: str, value: object) -> None:
        """Keeps a value."""
        self._values[name] = value
        if self._path is not None:
            self._append({"name": name, "value": value})

    def _append(self, record: dict[str, Any]) -> None:
        assert self._path is not None
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _record(line: str) -> dict[str, Any] | None:
    """A line; None for one that was cut off."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
