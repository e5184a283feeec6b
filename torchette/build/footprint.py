# SPDX-License-Identifier: BSD-3-Clause
# In: the ELF objects of a build. Out: the bytes that each kernel adds to a program, from the references between
# sections.
"""Measures the size of each kernel.

Each function has its own section, and unreferenced sections are not linked. The size of a kernel is the size of all
sections that it reaches. `own` counts sections that neither another kernel nor the remaining program reaches.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_ALLOC, _CODE, _STRINGS = 0x2, 0x4, 0x20
_PROGBITS_LIKE = (1, 14, 15, 16, 0x70000001)  # contents, constructor arrays, ARM unwind index


@dataclass(frozen=True)
class Cost:
    """Bytes of code and constants of one kernel.

    Attributes:
        name: the operator.
        own: bytes that only this kernel uses.
        reached: `own`, and bytes shared with other kernels or the runtime.
    """

    name: str
    own: int
    reached: int


@dataclass(frozen=True)
class Footprint:
    """Bytes that the objects of a build add to a program that calls every kernel.

    Attributes:
        kernels: sorted by `own`, largest first.
        shared: bytes that several kernels use.
        runtime: bytes of the runtime and the runner without kernels.
    """

    kernels: tuple[Cost, ...]
    shared: int
    runtime: int


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    data: memoryview
    size: int
    link: int
    info: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int
    is_global: bool


class _Object:
    """An ELF file: its sections, symbols, and the references of each section."""

    def __init__(self, path: Path) -> None:
        data = memoryview(path.read_bytes())
        if bytes(data[:4]) != b"\x7fELF":
            raise ValueError(f"{path} is not an ELF file")
        self.wide = data[4] == 2
        header = "<QQ4x6H" if self.wide else "<II4x6H"
        fields = struct.unpack_from(header, data, 32 if self.wide else 28)
        at, each, count, names = fields[1], fields[5], fields[6], fields[7]
        rows = []
        for i in range(count):
            form = "<IIQQQQIIQQ" if self.wide else "<IIIIIIIIII"
            rows.append(struct.unpack_from(form, data, at + i * each))
        strings = data[rows[names][4] :]
        self.sections = [
            _Section(
                _text(strings, row[0]),
                row[1],
                row[2],
                data[row[4] : row[4] + (0 if row[1] == 8 else row[5])],
                row[5],
                row[6],
                row[7],
            )
            for row in rows
        ]
        self.symbols = self._symbols()
        self.references: dict[int, list[tuple[int, int, int]]] = {}  # section -> (offset, symbol, addend)
        for section in self.sections:
            if section.kind in (4, 9):
                self.references[section.info] = list(self._relocations(section))

    def _symbols(self) -> list[_Symbol]:
        table = next((s for s in self.sections if s.kind == 2), None)
        if table is None:
            return []
        strings = self.sections[table.link].data
        symbols = []
        for entry in struct.iter_unpack("<IBBHQQ" if self.wide else "<IIIBBH", table.data):
            name, value, info, section = (
                (entry[0], entry[4], entry[1], entry[3])
                if self.wide
                else (entry[0], entry[1], entry[3], entry[5])
            )
            symbols.append(_Symbol(_text(strings, name), section, value, info >> 4 != 0))
        return symbols

    def _relocations(self, section: _Section) -> Iterable[tuple[int, int, int]]:
        form = "<QQq" if self.wide else "<IIi"
        if section.kind == 9:  # the addend is stored at the relocated location
            form = form[:-1]
        target = self.sections[section.info].data
        for offset, info, *addend in struct.iter_unpack(form, section.data):
            if not addend and len(target) >= offset + 4:
                addend = list(struct.unpack_from("<i", target, offset))
            yield offset, info >> (32 if self.wide else 8), addend[0] if addend else 0

    def text_at(self, section: int, offset: int) -> str:
        return _text(self.sections[section].data, offset)


def _text(data: memoryview, at: int) -> str:
    end = at
    while end < len(data) and data[end]:
        end += 1
    return bytes(data[at:end]).decode("utf-8", "replace")


_Node = tuple[int, int]  # object, section


def measure(objects: Sequence[Path], entry: str) -> Footprint:
    """Measures the kernels in `objects`, for a program with the entry function `entry`.

    Raises:
        ValueError: an object is not an ELF file, such as objects for WebAssembly, macOS and Windows.
    """
    files = [_Object(path) for path in objects]
    defined: dict[str, _Node] = {}
    for f, file in enumerate(files):
        for symbol in file.symbols:
            if symbol.is_global and 0 < symbol.section < 0xFF00:
                defined.setdefault(symbol.name, (f, symbol.section))

    def place(f: int, index: int) -> _Node | None:
        symbol = files[f].symbols[index]
        if symbol.is_global and symbol.name in defined:
            return defined[symbol.name]
        return (f, symbol.section) if 0 < symbol.section < 0xFF00 else None

    tables: set[_Node] = set()
    kernels: dict[str, set[_Node]] = {}
    for f, file in enumerate(files):
        pointer = 8 if file.wide else 4
        for symbol in file.symbols:
            if "_kernels" not in symbol.name or symbol.section not in file.references:
                continue
            if file.sections[symbol.section].flags & _CODE:  # a function, not a table
                continue
            tables.add((f, symbol.section))
            near = {offset: (to, addend) for offset, to, addend in file.references[symbol.section]}
            for offset, (to, addend) in near.items():
                function = near.get(offset + pointer)
                named = file.symbols[to]
                if (offset - symbol.value) % (3 * pointer) == 0 and function and 0 < named.section < 0xFF00:
                    start = place(f, function[0])
                    name = file.text_at(named.section, named.value + addend)
                    if start is not None and "::" in name:
                        kernels.setdefault(name, set()).add(start)

    def reach(starts: Iterable[_Node]) -> set[_Node]:
        visited, waiting = set(starts), list(starts)
        while waiting:
            f, section = waiting.pop()
            for _, symbol, _ in files[f].references.get(section, ()):
                to = place(f, symbol)
                if to is not None and to not in visited and to not in tables:
                    visited.add(to)
                    waiting.append(to)
        return visited

    def size(nodes: Iterable[_Node]) -> int:
        total = 0
        for f, index in nodes:
            section = files[f].sections[index]
            if section.flags & _ALLOC and section.kind in _PROGBITS_LIKE and not section.flags & _STRINGS:
                total += section.size
        return total

    # A kernel can exist once per instruction set level: its size is the sum over all levels.
    runtime = reach({defined[entry]} if entry in defined else set())
    reached = {name: reach(starts) for name, starts in kernels.items()}
    uses = Counter(node for nodes in reached.values() for node in nodes)
    costs = [
        Cost(name, size(n for n in nodes if uses[n] == 1 and n not in runtime), size(nodes))
        for name, nodes in reached.items()
    ]
    shared = size(node for node, count in uses.items() if count > 1 and node not in runtime)
    return Footprint(tuple(sorted(costs, key=lambda c: (-c.own, c.name))), shared, size(runtime))


def loaded_bytes(program: Path) -> dict[str, int]:
    """Returns the bytes of an ELF program by kind: ``text`` (code and constants), ``data``, ``bss``."""
    parts = {"text": 0, "data": 0, "bss": 0}
    for section in _Object(program).sections:
        if section.flags & _ALLOC:
            parts["bss" if section.kind == 8 else "data" if section.flags & 1 else "text"] += section.size
    return parts
