# SPDX-License-Identifier: BSD-3-Clause
# Lists the scalars of the flatbuffers in a .pte, .ptd or .bpte file, one per line, for mutations of meaningful bytes:
# kind (o: offset, n: other integer), position, width, and the target of an offset.

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

from torchette.format import bundled, ptd, pte
from torchette.format.schema import Field, Schema

WIDTHS = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8, "f": 4, "d": 8}


class Walk:
    """Visits all tables of an intact file once."""

    def __init__(self, schema: Schema, data: bytes) -> None:
        self.schema = schema
        self.data = data
        self.found: dict[int, tuple[str, int, int]] = {}  # position -> kind, width, target
        self.visited: set[tuple[str, int]] = set()

    def number(self, position: int, width: int) -> int:
        self.found[position] = ("n", width, 0)
        return int.from_bytes(self.data[position : position + width], "little")

    def offset(self, position: int) -> int:
        target = position + self.number(position, 4)
        self.found[position] = ("o", 4, target)
        return target

    def table(self, name: str, position: int) -> None:
        if (name, position) in self.visited:
            return
        self.visited.add((name, position))
        vtable = position - struct.unpack_from("<i", self.data, position)[0]
        self.found[position] = ("n", 4, 0)
        entries = (self.number(vtable, 2) - 4) // 2
        self.number(vtable + 2, 2)
        for field in self.schema.tables[name]:
            slot = field.offset // 2 - 2
            at = self.number(vtable + field.offset, 2) if slot < entries else 0
            if at:
                self.field(field, position + at, vtable, position)

    def field(self, field: Field, position: int, vtable: int, table: int) -> None:
        if field.kind in ("scalar", "enum"):
            self.number(position, WIDTHS[field.code])
        elif field.kind == "table":
            self.table(field.type, self.offset(position))
        elif field.kind == "union":
            tag = self.number(table + self.number(vtable + field.offset - 2, 2), 1)
            self.table(self.schema.unions[field.type][tag - 1], self.offset(position))
        elif field.kind == "string":
            self.number(self.offset(position), 4)
        else:
            start = self.offset(position)
            for i in range(self.number(start, 4)):
                if field.item == "table":
                    self.table(field.type, self.offset(start + 4 + 4 * i))
                elif field.code != "B":
                    self.number(start + 4 + WIDTHS[field.code] * i, WIDTHS[field.code])


def fields(data: bytes) -> str:
    """Returns the list as text."""
    return "".join(
        f"{kind} {at} {width} {target}\n"
        for at, (kind, width, target) in sorted(field_positions(data).items())
    )


def field_positions(data: bytes) -> dict[int, tuple[str, int, int]]:
    """Returns (kind, width, target of an offset) by position."""
    schemas = {module.SCHEMA.identifier: module.SCHEMA for module in (pte, ptd, bundled)}
    walk = Walk(schemas[data[4:8]], data)
    walk.table(walk.schema.root, walk.offset(0))
    if walk.schema is bundled.SCHEMA:
        program = bytes(bundled.read(data).program)
        start = data.index(program)
        for at, (kind, width, target) in field_positions(program).items():
            walk.found[start + at] = (kind, width, start + target if kind == "o" else target)
    elif walk.schema is ptd.SCHEMA:
        for at, width in ((12, 4), (16, 8), (24, 8), (32, 8), (40, 8)):  # of the header
            walk.found[at] = ("n", width, 0)
    return walk.found


class FieldEditor:
    """Edits fields of a program. A field is given by the path of names and indices that leads to it."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)

    def table(self, *path: str | int) -> tuple[str, int]:
        """Returns the name and the position of the table at a path."""
        name, at = pte.SCHEMA.root, self.follow(0)
        steps = list(path)
        while steps:
            field = self.field(name, str(steps.pop(0)))
            start = self.follow(self.entry(at, field.offset))
            if field.kind == "vector":
                at, name = self.follow(start + 4 + 4 * int(steps.pop(0))), field.type
            elif field.kind == "union":
                tag = self.data[self.entry(at, field.offset - 2)]
                at, name = start, pte.SCHEMA.unions[field.type][tag - 1]
            else:
                at, name = start, field.type
        return name, at

    def set(self, value: int, *path: str | int) -> bytes:
        """Returns the file with a changed field, or with a changed item of a vector if the path ends with an index."""
        item = path[-1] if isinstance(path[-1], int) else None
        owner = path[: -2 if item is not None else -1]
        name, at = self.table(*owner)
        field = self.field(name, str(path[len(owner)]))
        position = self.entry(at, field.offset)
        assert position != at, "the field is not in the file"
        width = WIDTHS[field.code]
        if item is not None:
            position = self.follow(position) + 4 + width * item
        self.data[position : position + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
        return bytes(self.data)

    def remove(self, *path: str | int) -> bytes:
        """Returns the file without a field: its vtable entry is 0."""
        name, at = self.table(*path[:-1])
        vtable = at - struct.unpack_from("<i", self.data, at)[0]
        struct.pack_into("<H", self.data, vtable + self.field(name, str(path[-1])).offset, 0)
        return bytes(self.data)

    def overwrite_string(self, text: bytes, *path: str | int) -> bytes:
        """Returns the file with other bytes at the start of a string."""
        name, at = self.table(*path[:-1])
        start = self.follow(self.entry(at, self.field(name, str(path[-1])).offset)) + 4
        self.data[start : start + len(text)] = text
        return bytes(self.data)

    def field(self, table: str, name: str) -> Any:
        return next(field for field in pte.SCHEMA.tables[table] if field.name == name)

    def entry(self, table: int, offset: int) -> int:
        vtable = table - struct.unpack_from("<i", self.data, table)[0]
        return table + struct.unpack_from("<H", self.data, vtable + offset)[0]

    def follow(self, position: int) -> int:
        return position + struct.unpack_from("<I", self.data, position)[0]


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(fields(Path(sys.argv[1]).read_bytes()))
