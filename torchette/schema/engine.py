# SPDX-License-Identifier: BSD-3-Clause
# Reads the rows of engine.def, which C++ includes.
"""Constants, activations, chain operations and resize modes of the CPU engine."""

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
    """The name in a chain program and in aten."""
    arity: int
    """The number of operands."""
    overload: str
    """The overload in aten."""


class ChainFold(NamedTuple):
    """A row of engine.def: a reduction that can end a chain."""

    name: str
    """The name in a chain program."""
    operator: str
    """The operator in aten."""
    overload: str
    """The overload in aten."""


class ResizeMode(NamedTuple):
    """A row of engine.def: a mode of `cpu::resize`."""

    name: str
    """The name in the arguments of the operator."""
    filter: str
    """The name of the enumerator in torchette::Filter."""
    operators: tuple[str, str, str]
    """The aten operators for one, two and three spatial dimensions; ``none`` if an operator does not exist."""


CONSTANTS: dict[str, int] = {
    name: int(value) for name, value in rows("engine.def", r"^TORCHETTE_CONSTANT\((\w+), (\d+)\)")
}
"""The constants of the CPU engine, by their names in C++."""
ACTIVATIONS: tuple[str, ...] = tuple(rows("engine.def", r"^TORCHETTE_ACTIVATION\((\w+), "))
"""The names of the activations of the CPU engine."""
CHAIN_OPERATIONS = tuple(
    ChainOperation(name, int(arity), overload)
    for name, arity, overload in rows("engine.def", r"^TORCHETTE_CHAIN_OPERATION\((\w+), (\d), (\w+), ")
)
"""All chain operations, in the order of the file."""
CHAIN_FOLDS = tuple(
    ChainFold(*row) for row in rows("engine.def", r"^TORCHETTE_CHAIN_FOLD\((\w+), (\w+), (\w+)\)")
)
"""All chain reductions, in the order of the file."""
RESIZE_MODES = tuple(
    ResizeMode(name, kind, (one, two, three))
    for name, kind, one, two, three in rows(
        "engine.def", r"^TORCHETTE_RESIZE_MODE\(([\w-]+), (\w+), (\w+), (\w+), (\w+)\)"
    )
)
"""All resize modes, in the order of the file."""
