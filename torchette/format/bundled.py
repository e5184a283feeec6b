# SPDX-License-Identifier: BSD-3-Clause
"""The .bpte file: a program with inputs and expected outputs.

`write` and `read` convert between records and bytes. The record classes are those of
`torchette/schema/bundled_program.fbs`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchette.errors import FormatError
from torchette.format import flatbuffer
from torchette.format.schema import Record, load

if TYPE_CHECKING:
    from typing_extensions import Buffer

SCHEMA = load(Path(__file__).parent.parent / "schema" / "bundled_program.fbs")


def __getattr__(name: str) -> Any:
    try:
        return SCHEMA.types[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def write(record: Record) -> bytes:
    """Returns the bytes of a BundledProgram record. Raises FormatError if the schema cannot represent it."""
    return bytes(flatbuffer.encode(SCHEMA, record))


def read(data: Buffer) -> Any:
    """Returns the BundledProgram record of a file. Raises FormatError."""
    view = memoryview(data).cast("B")
    if bytes(view[4:8]) != SCHEMA.identifier:
        raise FormatError(f"not a bundled program: bytes 4 to 7 should be {SCHEMA.identifier.decode()}")
    return flatbuffer.decode(SCHEMA, view)
