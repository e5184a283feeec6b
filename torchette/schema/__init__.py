# SPDX-License-Identifier: BSD-3-Clause
# Reads the rows of the .def files, which C++ includes.
"""The tables that C++ and Python share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["CODES", "DTYPES", "LAYOUTS", "LIMITS", "Code", "Dtype", "rows"]


class Dtype(NamedTuple):
    """A row of dtypes.def."""

    number: int
    """The code in torch and in files."""
    name: str
    """The name of the enumerator in torchette::ScalarType."""
    torch_name: str
    """The name in torch, such as ``float32``."""
    nbytes: int
    """The size of an element in bytes."""
    cpp_type: str
    """The C++ type of an element; empty if no kernel computes with the dtype."""

    @property
    def is_computed(self) -> bool:
        """Whether kernels compute with the dtype."""
        return bool(self.cpp_type)

    @property
    def schema_name(self) -> str:
        """The name of the enumerator in the ScalarType of the file format."""
        name = self.torch_name if self.name.startswith("Complex") else self.name
        return name.upper().replace("_", "")

    @property
    def short_name(self) -> str:
        """The name for the command line, such as ``f32``; for ``bool`` the name in torch."""
        return self.torch_name.replace("float", "f").replace("uint", "u").replace("int", "i")


class Code(NamedTuple):
    """A row of kernels.def."""

    letter: str
    """The code in a kernel's signature."""
    cpp_type: str
    """The C++ type of the parameter."""
    schema_type: str
    """The type in an operator's schema; empty if the kernel writes the parameter."""
    is_written: bool
    """Whether the kernel always writes the parameter."""


def rows(file: str, pattern: str) -> list[Any]:
    """Returns the groups of a regular expression for each line of a .def file that starts with a match."""
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


# The upper bound of an unbounded dimension.
NO_BOUND = 2**31 - 1

DTYPES = _dtypes()
"""All dtypes, by code."""
CODES = _codes()
"""All signature codes, in the order of the file."""
LAYOUTS: dict[str, str] = dict(rows("layouts.def", r'^TORCHETTE_LAYOUT\(([^,]+), "(\w+)"\)'))
"""The members of each C++ structure that loading a method allocates, by name: P is a pointer or size_t, a digit the bytes of
another member."""
LIMITS: dict[str, int] = {
    name: int(value) for name, value in rows("limits.def", r"^TORCHETTE_LIMIT\((\w+), (\d+)\)")
}
"""The limits of files and payloads, by their names in C++."""
