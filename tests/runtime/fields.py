# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte, .ptd or .bpte file. Out: where each number of its flatbuffers stands, one a line, for mutations that hit
# what matters:
# kind (o: offset, n: another number), position, width, and the position that an offset leads to.

from __future__ import annotations

import struct
import sys
from pathlib import Path

from torchette.format import bundled, ptd, pte
from torchette.format.schema import Field, Schema

WIDTHS = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8, "f": 4, "d": 8}


class Walk:
    """Visits a sound file once, table by table."""

    def __init__(self, schema: Schema, data: bytes) -> None:
        self.schema = schema
        self.data = data
        self.found: dict[int, tuple[str, int, int]] = {}  # position -> kind, width, target
        self.seen: set[tuple[str, int]] = set()

    def number(self, position: int, width: int) -> int:
        self.found[position] = ("n", width, 0)
        return int.from_bytes(self.data[position : position + width], "little")

    def offset(self, position: int) -> int:
        target = position + self.number(position, 4)
        self.found[position] = ("o", 4, target)
        return target

    def table(self, name: str, position: int) -> None:
        if (name, position) in self.seen:
            return
        self.seen.add((name, position))
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
    """The list, as text."""
    return "".join(
        f"{kind} {at} {width} {target}\n" for at, (kind, width, target) in sorted(places(data).items())
    )


def places(data: bytes) -> dict[int, tuple[str, int, int]]:
    """By position: kind, width, and what an offset leads to."""
    schemas = {module.SCHEMA.identifier: module.SCHEMA for module in (pte, ptd, bundled)}
    walk = Walk(schemas[data[4:8]], data)
    walk.table(walk.schema.root, walk.offset(0))
    if walk.schema is bundled.SCHEMA:
        program = bytes(bundled.read(data).program)
        start = data.index(program)
        for at, (kind, width, target) in places(program).items():
            walk.found[start + at] = (kind, width, start + target if kind == "o" else target)
    elif walk.schema is ptd.SCHEMA:
        for at, width in ((12, 4), (16, 8), (24, 8), (32, 8), (40, 8)):  # of the header
            walk.found[at] = ("n", width, 0)
    return walk.found


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(fields(Path(sys.argv[1]).read_bytes()))
