# SPDX-License-Identifier: BSD-3-Clause
# In: the .def files, which C++ includes. Out: their rows.
"""The tables that C++ and Python share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["CODES", "DTYPES", "LAYOUTS", "LIMITS", "Code", "Dtype", "rows"]


class Dtype(NamedTuple):
    """A row of dtypes.def."""

    number: int
    """torch's, which files store."""
    name: str
    """Of the enumerator of torchette::ScalarType."""
    torch_name: str
    """Such as ``float32``."""
    nbytes: int
    """Of an element."""
    cpp_type: str
    """Of an element; empty if no kernel computes with it."""

    @property
    def computed(self) -> bool:
        """Whether kernels compute with it."""
        return bool(self.cpp_type)

    @property
    def schema_name(self) -> str:
        """Of the enumerator of the file format's ScalarType."""
        name = self.torch_name if self.name.startswith("Complex") else self.name
        return name.upper().replace("_", "")

    @property
    def short_name(self) -> str:
        """As people type it, such as ``f32``; ``bool`` has no shorter one."""
        return self.torch_name.replace("float", "f").replace("uint", "u").replace("int", "i")


class Code(NamedTuple):
    """A row of kernels.def."""

    letter: str
    """In a kernel's signature."""
    cpp_type: str
    """Of the parameter."""
    schema_type: str
    """As in an operator's schema; empty if the kernel writes it."""
    written: bool
    """Whether the kernel writes it wherever it stands."""


def rows(file: str, pattern: str) -> list[Any]:
    """The groups of a pattern at the beginnings of the lines of a .def file."""
    return re.findall(pattern, (Path(__file__).parent / file).read_text(encoding="utf-8"), re.M)


def _dtypes() -> tuple[Dtype, ...]:
    listed = rows("dtypes.def", r"^TORCHETTE_(?:STORED_)?DTYPE\((\d+), (\w+), (\w+), (\d+)(?:, (\w+))?\)")
    found = tuple(
        Dtype(int(number), name, torch_name, int(nbytes), cpp_type)
        for number, name, torch_name, nbytes, cpp_type in listed
    )
    assert [dtype.number for dtype in found] == list(range(len(found)))
    return found


def _codes() -> tuple[Code, ...]:
    listed = rows(
        "kernels.def", r"^TORCHETTE_(?:WRITTEN_CODE\('(\w)', ([^,]+)|CODE\('(\w)', ([^,]+), ([^,]+)),"
    )
    return tuple(
        Code(letter or slot, cpp_type or slot_type, schema_type, bool(slot))
        for slot, slot_type, letter, cpp_type, schema_type in listed
    )


# The upper bound of a dimension that has none.
NO_BOUND = 2**31 - 1

DTYPES = _dtypes()
"""By number."""
CODES = _codes()
"""In the file's order."""
LAYOUTS: dict[str, str] = dict(rows("layouts.def", r'^TORCHETTE_LAYOUT\(([^,]+), "(\w+)"\)'))
"""By the C++ type that loading a method allocates, its members: P a pointer, otherwise the bytes of a number."""
LIMITS: dict[str, int] = {
    name: int(value) for name, value in rows("limits.def", r"^TORCHETTE_LIMIT\((\w+), (\d+)\)")
}
"""The limits of files and payloads by their names in C++."""
