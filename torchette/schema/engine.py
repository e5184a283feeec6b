# SPDX-License-Identifier: BSD-3-Clause
# In: engine.def, which C++ includes. Out: its rows.
"""The CPU engine's constants, activations, chain operations and modes."""

from __future__ import annotations

from typing import NamedTuple

from torchette.schema import rows

__all__ = [
    "ACTIVATIONS", "CHAIN_FOLDS", "CHAIN_OPERATIONS", "CONSTANTS", "RESIZE_MODES", "ChainFold", "ChainOperation",
    "ResizeMode",
]  # fmt: skip


class ChainOperation(NamedTuple):
    """A row of engine.def: an operation of chain programs that is not an activation."""

    name: str
    """In a program; also aten's."""
    arity: int
    """The number of operands."""
    overload: str
    """Of aten's operator."""


class ChainFold(NamedTuple):
    """A row of engine.def: a reduction that can end a chain."""

    name: str
    """In a program."""
    operator: str
    """Of aten."""
    overload: str
    """Of aten's operator."""


class ResizeMode(NamedTuple):
    """A row of engine.def: a mode of `cpu::resize`."""

    name: str
    """In the operator's arguments."""
    filter: str
    """Of the enumerator of torchette::Filter."""
    operators: tuple[str, str, str]
    """Of aten, for one, two and three spatial dimensions; ``none`` if there is none."""


CONSTANTS: dict[str, int] = {
    name: int(value) for name, value in rows("engine.def", r"^TORCHETTE_CONSTANT\((\w+), (\d+)\)")
}
"""The CPU engine's constants by their names in C++."""
ACTIVATIONS: tuple[str, ...] = tuple(rows("engine.def", r"^TORCHETTE_ACTIVATION\((\w+), "))
"""The names of the CPU engine's activations."""
CHAIN_OPERATIONS = tuple(
    ChainOperation(name, int(arity), overload)
    for name, arity, overload in rows("engine.def", r"^TORCHETTE_CHAIN_OPERATION\((\w+), (\d), (\w+), ")
)
"""In the file's order."""
CHAIN_FOLDS = tuple(
    ChainFold(*row) for row in rows("engine.def", r"^TORCHETTE_CHAIN_FOLD\((\w+), (\w+), (\w+)\)")
)
"""In the file's order."""
RESIZE_MODES = tuple(
    ResizeMode(name, kind, (one, two, three))
    for name, kind, one, two, three in rows(
        "engine.def", r"^TORCHETTE_RESIZE_MODE\(([\w-]+), (\w+), (\w+), (\w+), (\w+)\)"
    )
)
"""In the file's order."""
