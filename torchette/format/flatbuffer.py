# SPDX-License-Identifier: BSD-3-Clause
"""Conversion between records and FlatBuffers bytes, for any schema that `schema.py` reads.

`encode` stores each distinct string, vector and table once, so that its output is small and depends only on the
records. `decode` accepts untrusted bytes: it returns records or raises FormatError, in linear time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from torchette.errors import FormatError
from torchette.format.schema import Field, Record, Schema

_WIDTHS = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8, "f": 4, "d": 8}


def encode(schema: Schema, record: Record, *, reserve: int = 0, size_prefixed: bool = False) -> bytearray:
    """Serializes `record`, of the schema's root table, with `reserve` zero bytes after the file identifier.

    If `size_prefixed`, a u32 with the number of following bytes comes first; alignments count from the prefix.

    Vectors may be any sequence; `[ubyte]` also accepts bytes-like objects. a string, table, vector or union that is
    None is omitted. Raises FormatError if a field cannot represent its value.
    """
    return _Encoder(schema).finish(record, reserve, size_prefixed)


def decode(schema: Schema, data: memoryview, *, start: int = 0) -> Any:
    """Returns the record of the root table in `data`, a view of single bytes. The offset of the root is at byte
    `start`.

    Equal parts may share one object, so do not modify the result. `[ubyte]` becomes bytes, or a view of `data` if its
    alignment is forced; other vectors become lists. An absent vector becomes an empty one; an absent string, table or
    union becomes None. Raises FormatError.
    """
    decoder = _Decoder(schema, data)
    return decoder.table(schema.root, decoder.follow(start))


class Span(NamedTuple):
    """The bytes of one object: a table, a vtable, a string or a vector with its count."""

    start: int
    nbytes: int
    table: str  # name of the enclosing table type


def spans(schema: Schema, data: memoryview) -> list[Span]:
    """Returns the location of each object of the root table in `data`; the other bytes are padding.

    An object that several tables share belongs to the first of them. Raises FormatError.
    """
    surveyor = _Surveyor(schema, data)
    surveyor.table(schema.root, surveyor.follow(0))
    return surveyor.spans


class _Entry(NamedTuple):
    """One vtable entry of a table to write: a field, or one of the two entries of a union."""

    attribute: str
    bit: int
    default: Any
    encode: (
        Callable[[Any], Any] | None
    )  # None for a value that is stored unchanged, and omitted if it is the default
    code: str
    width: int


class _Layout(NamedTuple):
    """The inline part of a table with a given set of entries."""

    pack: Callable[..., bytes]
    vtable: int
    size: int
    alignment: int
    references: list[tuple[int, int]]  # (index of a value that is a place, its position in the table)


class _Encoder:
    """Builds the file from its end to its start, so that the target of an offset is placed first.

    A place is a distance from the end of the file. A stored offset is the place of the field minus the place of its
    target. Objects are deduplicated by content.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._parts: list[bytes] = []  # in reverse file order
        self._size = 0
        self._alignment = 4
        self._end_offsets: dict[Any, int] = {}
        self._plans: dict[str, list[_Entry]] = {}
        self._layouts: dict[tuple[str, int], _Layout] = {}

    def finish(self, record: Record, reserve: int, size_prefixed: bool) -> bytearray:
        root = self._table(self._schema.root, record)
        prefix = 4 * size_prefixed
        start = self._reserve(prefix + 8 + reserve, self._alignment) - prefix
        self._parts.append(struct.pack("<I4s", start - root, self._schema.identifier) + bytes(reserve))
        if size_prefixed:
            self._parts.append(start.to_bytes(4, "little"))
        self._parts.reverse()
        return bytearray().join(self._parts)

    def _reserve(self, size: int, alignment: int, at: int = 0) -> int:
        """Returns the place of `size` bytes with an aligned byte `at`. The caller appends the bytes."""
        padding = -(self._size + size - at) % alignment
        if padding:
            self._parts.append(bytes(padding))
        self._alignment = max(self._alignment, alignment)
        self._size += padding + size
        return self._size

    def _string(self, value: str) -> int:
        end_offset = self._end_offsets.get(value)
        if end_offset is None:
            data = value.encode()
            end_offset = self._end_offsets[value] = self._reserve(len(data) + 5, 4)
            self._parts.append(b"%b%b\0" % (len(data).to_bytes(4, "little"), data))
        return end_offset

    def _scalars(self, code: str, alignment: int, value: Sequence[Any]) -> int:
        count = len(value)
        data = bytes(value) if code == "B" else struct.pack(f"<{count}{code}", *value)
        if code == "B" and len(data) != count:
            raise TypeError(f"{type(value).__name__} has elements of more than one byte")
        key = (alignment, count, data)
        end_offset = self._end_offsets.get(key)
        if end_offset is None:
            end_offset = self._end_offsets[key] = self._reserve(4 + len(data), alignment, 4)
            self._parts += (data, count.to_bytes(4, "little"))
        return end_offset

    def _references(self, encode: Callable[[Any], int], value: Iterable[Any]) -> int:
        targets = tuple([encode(item) for item in value])
        end_offset = self._end_offsets.get(targets)
        if end_offset is None:
            count = len(targets)
            end_offset = self._end_offsets[targets] = self._reserve(4 + 4 * count, 4)
            offsets = [end_offset - 4 - 4 * index - target for index, target in enumerate(targets)]
            self._parts.append(struct.pack(f"<{count + 1}I", count, *offsets))
        return end_offset

    def _table(self, name: str, record: Record) -> int:
        present = 0
        values: list[Any] = []
        try:
            for attribute, bit, default, encode_value, _, _ in self._plans.get(name) or self._plan(name):
                value = getattr(record, attribute)
                if encode_value is not None:
                    if value is None or (value := encode_value(value)) is None:
                        continue
                elif value == default:
                    continue
                present |= bit
                values.append(value)
            key = (name, present, *values)
            end_offset = self._end_offsets.get(key)
            if end_offset is None:
                layout = self._layouts.get((name, present)) or self._layout(name, present)
                end_offset = self._end_offsets[key] = self._reserve(layout.size, layout.alignment, 4)
                for index, position in layout.references:
                    values[index] = end_offset - position - values[index]
                self._parts.append(layout.pack(layout.vtable - end_offset, *values))
        except FormatError:
            raise
        except (struct.error, AttributeError, TypeError, ValueError, OverflowError) as error:
            raise FormatError(f"the table {name} cannot represent {record!r:.200}: {error}") from error
        return end_offset

    def _plan(self, name: str) -> list[_Entry]:
        """Returns the entries of a table, widest first, so that the inline part needs no padding."""
        entries = []
        for field in self._schema.tables[name]:
            bit = 1 << (field.offset // 2 - 2)
            if field.kind in ("scalar", "enum"):
                # A float is always stored: -0.0 equals its default, and as a key of _places it would equal 0.0.
                store = struct.Struct("<" + field.code).pack if field.code in "fd" else None
                width = _WIDTHS[field.code]
                code = f"{width}s" if store else field.code
                entries.append(_Entry(field.name, bit, field.default, store, code, width))
                continue
            if field.kind == "union":
                tags = self._schema.types[field.type].__members__
                entries.append(_Entry(field.name, bit >> 1, None, partial(_tag, tags), "B", 1))
            entries.append(_Entry(field.name, bit, None, self._encode_reference(field), "I", 4))
        entries.sort(key=lambda entry: -entry.width)
        self._plans[name] = entries
        return entries

    def _encode_reference(self, field: Field) -> Callable[[Any], int | None]:
        kind = field.item or field.kind
        encode_item: Callable[[Any], int]
        if kind == "string":
            encode_item = self._string
        elif kind == "table":
            encode_item = partial(self._table, field.type)
        elif kind == "union":
            return lambda value: self._table(type(value).__name__, value)
        else:
            alignment = max(4, _WIDTHS[field.code], field.force_align)
            encode_vector = partial(self._scalars, field.code, alignment)
        if field.kind != "vector":
            return encode_item
        if field.item in ("string", "table"):
            encode_vector = partial(self._references, encode_item)
        return (
            (lambda value: encode_vector(value) if len(value) else None)
            if field.omit_empty
            else encode_vector
        )

    def _layout(self, name: str, present: int) -> _Layout:
        entries = [entry for entry in self._plans[name] if entry.bit & present]
        positions = [0] * present.bit_length()
        references = []
        size = 4
        for index, entry in enumerate(entries):
            positions[entry.bit.bit_length() - 1] = size
            if entry.code == "I" and entry.encode:
                references.append((index, size))
            size += entry.width
        vtable = struct.pack(f"<{len(positions) + 2}H", 4 + 2 * len(positions), size, *positions)
        end_offset = self._end_offsets.get(vtable)
        if end_offset is None:
            end_offset = self._end_offsets[vtable] = self._reserve(len(vtable), 2)
            self._parts.append(vtable)
        pack = struct.Struct("<i" + "".join(entry.code for entry in entries)).pack
        alignment = max([4] + [entry.width for entry in entries])
        layout = self._layouts[name, present] = _Layout(pack, end_offset, size, alignment, references)
        return layout


def _tag(tags: dict[str, int], value: object) -> int:
    kind = type(value).__name__
    if kind not in tags:
        raise TypeError(f"a {kind} is not one of {', '.join(tags)}")
    return int(tags[kind])


class _Decoder:
    """Reads objects by position, each one once.

    The objects of a valid file do not overlap, so their total size is at most the size of the file. A budget enforces
    this: a file in which the same bytes represent many objects is rejected before it needs much time or memory.
    """

    def __init__(self, schema: Schema, data: memoryview) -> None:
        self._schema = schema
        self._data = data
        self._size = len(data)
        self._budget = 2 * len(data)
        self._decoded: dict[tuple[str, int], Any] = {}
        self._vtables: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._fields = {
            name: tuple((field, field.offset // 2 - 2, self._reader(field)) for field in fields)
            for name, fields in schema.tables.items()
        }

    def _need(self, position: int, size: int, label: str, alignment: int = 1) -> None:
        if position < 0 or position + size > self._size:
            raise FormatError(
                f"{label} at byte {position} needs {size} bytes, beyond the {self._size} bytes of the file",
                hints=["the file is truncated or damaged; write or copy it again"],
            )
        if position % alignment:
            raise FormatError(f"{label} at byte {position} is not aligned to {alignment} bytes")

    def _spend(self, size: int, label: str, position: int) -> None:
        self._budget -= size
        if self._budget < 0:
            raise FormatError(f"{label} at byte {position} overlaps other objects of the file")

    def follow(self, position: int) -> int:
        """Returns the position that the offset at `position` points to."""
        self._need(position, 4, "an offset", 4)
        return position + int.from_bytes(self._data[position : position + 4], "little")

    def table(self, name: str, position: int) -> Any:
        cached = self._decoded.get((name, position))
        if cached is not None:
            return cached
        self._need(position, 4, f"table {name}", 4)
        vtable = position - struct.unpack_from("<i", self._data, position)[0]
        size, entries = self._vtables.get(vtable) or self._vtable(name, vtable)
        self._need(position, size, f"table {name}")
        self._spend(size, f"table {name}", position)
        values = []
        for field, slot, read in self._fields[name]:
            entry = entries[slot] if slot < len(entries) else 0
            if field.kind == "union":
                tag_entry = entries[slot - 1] if slot <= len(entries) else 0
                values.append(self._union(name, field, position, size, tag_entry, entry))
            elif entry == 0:
                values.append(_absent(field))
            elif entry < 4 or entry + (_WIDTHS[field.code] if read is None else 4) > size:
                raise FormatError(f"{name}.{field.name} of the table at byte {position} is outside the table")
            elif read is None:
                values.append(self._scalar(name, field, position + entry))
            else:
                values.append(read(self.follow(position + entry)))
        record = self._decoded[name, position] = self._schema.types[name](*values)
        return record

    def _vtable(self, name: str, position: int) -> tuple[int, tuple[int, ...]]:
        label = f"the vtable of a table {name}"
        self._need(position, 4, label)
        own_size, table_size = struct.unpack_from("<HH", self._data, position)
        if own_size < 4 or own_size % 2 or table_size < 4:
            raise FormatError(f"{label} at byte {position} has impossible sizes {own_size} and {table_size}")
        self._need(position, own_size, label, 2)
        entries = struct.unpack_from(f"<{own_size // 2 - 2}H", self._data, position + 4)
        vtable = self._vtables[position] = (table_size, entries)
        return vtable

    def _scalar(self, name: str, field: Field, position: int) -> Any:
        self._need(position, width := _WIDTHS[field.code], f"{name}.{field.name}", width)
        value = struct.unpack_from("<" + field.code, self._data, position)[0]
        if field.kind == "scalar":
            return value
        try:
            return self._schema.types[field.type](value)
        except ValueError:
            raise FormatError(
                f"{name}.{field.name} at byte {position} is {value}, not a {field.type}"
            ) from None

    def _union(self, name: str, field: Field, position: int, size: int, tag_entry: int, entry: int) -> Any:
        if tag_entry == 0 and entry == 0:
            return None
        if not 4 <= tag_entry < size or not 4 <= entry <= size - 4:
            raise FormatError(f"{name}.{field.name} of the table at byte {position} is outside the table")
        tag = self._data[position + tag_entry]
        members = self._schema.unions[field.type]
        if not 1 <= tag <= len(members):
            raise FormatError(
                f"{name}.{field.name} of the table at byte {position} has tag {tag}, not a {field.type}"
            )
        return self.table(members[tag - 1], self.follow(position + entry))

    def _reader(self, field: Field) -> Callable[[int], Any] | None:
        """Returns the reader of the object that a field's offset points to; None for a scalar or enum, which is stored
        inline."""
        kind = field.item or field.kind
        read: Callable[[int], Any] | None = None
        if kind == "string":
            read = self._string
        elif kind == "table":
            read = partial(self.table, field.type)
        if field.kind != "vector":
            return read
        if read is None:
            return partial(self._scalars, field)
        return partial(self._references, field.type or kind, read)

    def _string(self, position: int) -> str:
        cached = self._decoded.get(("string", position))
        if cached is not None:
            result: str = cached
            return result
        start, count = self._vector(position, 1, "a string")
        self._need(start, count + 1, "a string")
        try:
            text = str(self._data[start : start + count], "utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"the string at byte {position} is not UTF-8: {error}") from None
        if self._data[start + count]:
            raise FormatError(f"the string at byte {position} does not end with a zero byte")
        self._decoded["string", position] = text
        return text

    def _scalars(self, field: Field, position: int) -> Sequence[Any]:
        code = field.code
        cached: Sequence[Any] | None = self._decoded.get((code, position))
        if cached is not None:
            return cached
        start, count = self._vector(position, _WIDTHS[code], f"the vector of {field.name}")
        values: Sequence[Any]
        if code == "B":
            data = self._data[start : start + count]
            values = data if field.force_align > 1 else bytes(data)
        else:
            values = list(struct.unpack_from(f"<{count}{code}", self._data, start))
        self._decoded[code, position] = values
        return values

    def _references(self, kind: str, read: Callable[[int], Any], position: int) -> list[Any]:
        cached = self._decoded.get(("[" + kind, position))
        if cached is not None:
            result: list[Any] = cached
            return result
        start, count = self._vector(position, 4, f"a vector of {kind}")
        offsets = struct.unpack_from(f"<{count}I", self._data, start)
        values = [read(start + 4 * index + offset) for index, offset in enumerate(offsets)]
        self._decoded["[" + kind, position] = values
        return values

    def _vector(self, position: int, width: int, label: str) -> tuple[int, int]:
        """Returns the position of the first element and the element count, after a check that all elements are in the
        file."""
        start = self.follow(position)  # the count comes first
        count = start - position
        start = position + 4
        self._need(start, count * width, label, width if count else 1)
        self._spend(4 + count * width, label, position)
        return start, count


class _Surveyor(_Decoder):
    """Decodes and records the location of each object."""

    def __init__(self, schema: Schema, data: memoryview) -> None:
        super().__init__(schema, data)
        self.spans: list[Span] = []
        self._inside = [schema.root]

    def table(self, name: str, position: int) -> Any:
        self._inside.append(name)
        try:
            return super().table(name, position)
        finally:
            self._inside.pop()

    def _spend(self, size: int, label: str, position: int) -> None:
        super()._spend(size, label, position)
        terminator = 1 if label == "a string" else 0
        self.spans.append(Span(position, size + terminator, self._inside[-1]))

    def _vtable(self, name: str, position: int) -> tuple[int, tuple[int, ...]]:
        vtable = super()._vtable(name, position)
        self.spans.append(Span(position, 4 + 2 * len(vtable[1]), name))
        return vtable


def _absent(field: Field) -> Any:
    if field.kind == "vector":
        return b"" if field.code == "B" else []
    return field.default
