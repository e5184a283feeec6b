# SPDX-License-Identifier: BSD-3-Clause
"""Reads a FlatBuffers schema and converts it to Python records or a C++ header of slot constants.

In: a `.fbs` file. Out: dataclasses and IntEnums (`Schema.types`) or, if run as a program, the header that the runtime
includes. Both sides use one schema and cannot differ. Needs only the standard library.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

# schema name -> (struct code, C++ type); FlatBuffers has two names for most types
_SCALARS = {
    "bool": ("?", "bool"),
    "byte": ("b", "int8_t"),
    "int8": ("b", "int8_t"),
    "ubyte": ("B", "uint8_t"),
    "uint8": ("B", "uint8_t"),
    "short": ("h", "int16_t"),
    "int16": ("h", "int16_t"),
    "ushort": ("H", "uint16_t"),
    "uint16": ("H", "uint16_t"),
    "int": ("i", "int32_t"),
    "int32": ("i", "int32_t"),
    "uint": ("I", "uint32_t"),
    "uint32": ("I", "uint32_t"),
    "long": ("q", "int64_t"),
    "int64": ("q", "int64_t"),
    "ulong": ("Q", "uint64_t"),
    "uint64": ("Q", "uint64_t"),
    "float": ("f", "float"),
    "float32": ("f", "float"),
    "double": ("d", "double"),
    "float64": ("d", "double"),
}


@dataclass(frozen=True)
class Field:
    """A field of a table.

    `kind` is scalar, enum, string, table, union or vector; `item` is the kind of a vector's elements. `type` is the
    name of the table, union or enum (of the elements, for a vector). `code` is the `struct` code of a scalar or enum
    (element). `offset` is the byte offset of the field's entry in a vtable. A union has two entries; its tag
    entry precedes `offset`.
    """

    name: str
    kind: str
    offset: int
    type: str = ""
    item: str = ""
    code: str = ""
    default: Any = None
    force_align: int = 1
    omit_empty: bool = False


@dataclass
class Schema:
    """A parsed schema. `types` contains a dataclass per table and an IntEnum per enum and per union (its tags)."""

    tables: dict[str, tuple[Field, ...]] = field(default_factory=dict)
    enums: dict[str, str] = field(default_factory=dict)  # enum name -> schema name of its integer type
    unions: dict[str, tuple[str, ...]] = field(default_factory=dict)  # union name -> tables, tag 1 first
    types: dict[str, Any] = field(default_factory=dict)
    root: str = ""
    identifier: bytes = b""
    namespace: str = ""


class _Tokens:
    """The tokens of a schema, each with its line."""

    _PATTERN = re.compile(r"""//[^\n]*|/\*.*?\*/|"[^"\n]*"|[\w.+-]+|[{}()\[\]:;,=]|\s+|.""", re.DOTALL)

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, int]] = []
        line = 1
        for match in self._PATTERN.finditer(text):
            token = match.group()
            if not token.isspace() and not token.startswith(("//", "/*")):
                self._tokens.append((token, line))
            line += token.count("\n")
        self._next = 0

    def peek(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            raise self.error(f"expected {expected or 'more'}, found {token or 'the end'}")
        self._next += 1
        return token

    def skip(self, token: str) -> bool:
        is_next = self.peek() == token
        self._next += is_next
        return is_next

    def until(self, end: str) -> Iterator[str]:
        while not self.skip(end):
            yield self.peek()

    def error(self, message: str) -> ValueError:
        line = self._tokens[min(self._next, len(self._tokens) - 1)][1] if self._tokens else 1
        return ValueError(f"schema line {line}: {message}")


def parse(text: str) -> Schema:
    """Parses the text of a schema: tables, enums, unions of tables, attributes. Raises ValueError with the line."""
    tokens = _Tokens(text)
    schema = Schema()
    raw: dict[str, list[tuple[str, str, bool, str, dict[str, str]]]] = {}
    aliases: dict[
        str, str
    ] = {}  # a union may have several names for one table; each becomes a separate record
    while word := tokens.peek():
        tokens.take()
        if word == "namespace":
            schema.namespace = tokens.take()
        elif word == "file_identifier":
            schema.identifier = tokens.take().strip('"').encode()
        elif word in ("file_extension", "attribute"):
            tokens.take()
        elif word == "root_type":
            schema.root = tokens.take()
        elif word == "enum":
            _parse_enum(tokens, schema)
            continue
        elif word == "union":
            name = tokens.take()
            tokens.take("{")
            members = []
            for _ in tokens.until("}"):
                members.append(tokens.take())
                if tokens.skip(":"):
                    aliases[members[-1]] = tokens.take()
                tokens.skip(",")
            schema.unions[name] = tuple(members)
            tags = {"NONE": 0} | {member: tag for tag, member in enumerate(members, 1)}
            schema.types[name] = enum.IntEnum(name, tags)
            continue
        elif word == "table":
            name = tokens.take()
            raw[name] = _parse_table(tokens)
            continue
        else:
            raise tokens.error(f"unexpected {word}")
        tokens.take(";")
    raw |= {name: raw[table] for name, table in aliases.items()}
    # Fields may refer to tables that are defined later.
    for name, fields in raw.items():
        schema.tables[name] = tuple(_resolve(schema, raw, fields))
        schema.types[name] = _record(name, schema.tables[name])
    return schema


def load(path: str | Path) -> Schema:
    """Parses the schema file at `path`."""
    return parse(Path(path).read_text(encoding="utf-8"))


def _parse_enum(tokens: _Tokens, schema: Schema) -> None:
    name = tokens.take()
    tokens.take(":")
    schema.enums[name] = tokens.take()
    members: dict[str, int] = {}
    tokens.take("{")
    for _ in tokens.until("}"):
        member = tokens.take()
        members[member] = int(tokens.take()) if tokens.skip("=") else max(members.values(), default=-1) + 1
        tokens.skip(",")
    schema.types[name] = enum.IntEnum(name, members)


def _parse_table(tokens: _Tokens) -> list[tuple[str, str, bool, str, dict[str, str]]]:
    """Returns (name, type, whether it is a vector, default, attributes) of each field."""
    fields = []
    tokens.take("{")
    for _ in tokens.until("}"):
        name = tokens.take()
        tokens.take(":")
        vector = tokens.skip("[")
        type_name = tokens.take()
        if vector:
            tokens.take("]")
        default = tokens.take() if tokens.skip("=") else ""
        attributes: dict[str, str] = {}
        if tokens.skip("("):
            for _ in tokens.until(")"):
                key = tokens.take()
                attributes[key] = tokens.take() if tokens.skip(":") else ""
                tokens.skip(",")
        tokens.take(";")
        fields.append((name, type_name, vector, default, attributes))
    return fields


def _resolve(
    schema: Schema, raw: dict[str, Any], fields: list[tuple[str, str, bool, str, dict[str, str]]]
) -> Iterator[Field]:
    offset = 4  # a vtable starts with its size and the size of the table, two bytes each
    for name, type_name, vector, text, attributes in fields:
        if "id" in attributes:
            offset = max(offset, 4 + 2 * int(attributes["id"]))
        code, default = "", None
        if type_name in _SCALARS:
            kind, code = "scalar", _SCALARS[type_name][0]
            default = text == "true" if code == "?" else float(text or 0) if code in "fd" else int(text or 0)
        elif type_name in schema.enums:
            kind, code = "enum", _SCALARS[schema.enums[type_name]][0]
            members = schema.types[type_name]
            default = members[text] if text else next((m for m in members if m == 0), 0)
        elif type_name in schema.unions and not vector:
            kind = "union"
        elif type_name == "string" or type_name in raw:
            kind = "string" if type_name == "string" else "table"
        else:
            raise ValueError(f"schema field {name}: unknown type {type_name}")
        if kind == "union":
            offset += 2
        yield Field(
            name,
            "vector" if vector else kind,
            offset,
            type_name if kind != "scalar" else "",
            kind if vector else "",
            code,
            None if vector else default,
            int(attributes.get("force_align", 1)),
            "omit_empty" in attributes,
        )
        offset += 2


class Record:
    """A table of a schema as a dataclass. The schema declares the fields, so type checkers do not know them."""

    __slots__ = ()

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: object) -> None: ...


def _record(name: str, fields: tuple[Field, ...]) -> type[Record]:
    spec: list[Any] = []
    for f in fields:
        if f.kind == "vector":
            spec.append((f.name, Any, field(default_factory=bytes if f.code == "B" else list)))
        else:
            spec.append((f.name, Any, field(default=f.default)))
    return make_dataclass(name, spec, bases=(Record,), slots=True)


def cpp_header(schema: Schema, source: str) -> str:
    """Returns the C++ header. Each table becomes a struct with vtable byte offsets `kFieldName`, scalar defaults
    `kFieldNameDefault`, and the size of each vtable entry's field. Enums and union tags become `enum class`."""
    lines = [
        "// SPDX-License-Identifier: BSD-3-Clause",
        f"// Generated from {source}; do not edit. A constant with the name of a field is the byte offset of its",
        "// vtable entry. A union has two entries; the entry of its tag is named kFieldType.",
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        f"namespace {schema.namespace.replace('.', '::')} {{",
        "",
        f'constexpr char kFileIdentifier[] = "{schema.identifier.decode()}";',
    ]
    for name, tags in schema.types.items():
        if not issubclass(tags, enum.IntEnum):
            continue
        underlying = _SCALARS[schema.enums.get(name, "ubyte")][1]
        lines += ["", f"enum class {name} : {underlying} {{"]
        lines += [f"  {member.name} = {member.value}," for member in tags]
        lines += ["};"]
    for name, fields in schema.tables.items():
        widths: list[str] = []
        for f in fields:
            entries = _entry_widths(f)
            widths += ["4"] * (
                (f.offset - 4) // 2 + 1 - len(entries) - len(widths)
            )  # entries without a field
            widths += map(str, entries)
        lines += ["", f"struct {name} {{"]
        if widths:
            lines.append(f"  static constexpr uint8_t kWidths[] = {{{', '.join(widths)}}};")
        for f in fields:
            constant = "k" + "".join(part[:1].upper() + part[1:] for part in f.name.split("_"))
            if f.kind == "union":
                lines.append(f"  static constexpr uint16_t {constant}Type = {f.offset - 2};")
            lines.append(f"  static constexpr uint16_t {constant} = {f.offset};")
            if f.kind == "scalar":
                cpp_type = next(cpp for code, cpp in _SCALARS.values() if code == f.code)
                value = str(f.default).lower()
                lines.append(f"  static constexpr {cpp_type} {constant}Default = {value};")
            elif f.kind == "enum":
                lines.append(
                    f"  static constexpr {f.type} {constant}Default = static_cast<{f.type}>({int(f.default)});"
                )
        lines += ["};"]
    lines += ["", f"}}  // namespace {schema.namespace.replace('.', '::')}", ""]
    return "\n".join(lines)


def _entry_widths(field: Field) -> tuple[int, ...]:
    if field.kind == "union":
        return 1, 4
    return (struct.calcsize("<" + field.code) if field.kind in ("scalar", "enum") else 4,)


def main() -> None:
    """Writes the C++ header of a schema file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("schema", type=Path, help="a .fbs file")
    parser.add_argument("--cpp", type=Path, required=True, metavar="OUT", help="the header to write")
    arguments = parser.parse_args()
    text = cpp_header(load(arguments.schema), arguments.schema.name)
    # Keep the modification time of an unchanged header, so that it causes no rebuild.
    if not arguments.cpp.exists() or arguments.cpp.read_text(encoding="utf-8") != text:
        arguments.cpp.parent.mkdir(parents=True, exist_ok=True)
        arguments.cpp.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
