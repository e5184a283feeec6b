# SPDX-License-Identifier: BSD-3-Clause
# What the machine has that a model is compiled for: a value that the compiler plans and checks against.
"""`Device`: the memories and limits of the machine that will run the model."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

from torchette import targets
from torchette.errors import InputError
from torchette.units import byte_count


@dataclass(frozen=True)
class Device:
    """What a device has for a model. Sizes are bytes: ``65536`` or ``"64K"``.

    >>> Device(ram="64K", flash="256K", target="cortex-m4", fit=True)
    >>> Device(arenas={"SRAM": "64K", "DRAM": None})

    Attributes:
        ram: for planned, method and temp memory together, of the method that needs most; None: as much as it takes.
        flash: for the .pte file, without the runtime's code; None: as much as it takes.
        target: the processor, whose structures the bill of `ram` counts; see `torchette memory --help`.
        arenas: its memories, the fastest first: name -> size, or None for as many bytes as it takes. Tensors with the
            most traffic for their size go to the first. They become memory ids 1, 2, ...
        fit: change the model where it needs more than `ram`: compute image layers a few rows at a time, which repeats
            some work. Otherwise such a model is refused, with the changes that would make it fit.

    Raises:
        InputError: a size is no number of bytes; there is no such target; `fit` without `ram`.
    """

    ram: int | str | None = None
    flash: int | str | None = None
    target: str = "native"
    arenas: Mapping[str, int | str | None] = field(default_factory=dict)
    fit: bool = False

    def __post_init__(self) -> None:
        for name, size in self.arenas.items():
            _bytes(f"arena {name}", size)
        if self.target not in ("native", "host"):
            targets.processor(self.target)
        sizes = self.ram_bytes, self.flash_bytes
        if self.fit and sizes[0] is None:
            raise InputError("fit=True needs the size to fit into", hints=['Device(ram="256K", fit=True)'])

    @property
    def ram_bytes(self) -> int | None:
        """`ram` as a number."""
        return _bytes("device ram", self.ram)

    @property
    def flash_bytes(self) -> int | None:
        """`flash` as a number."""
        return _bytes("device flash", self.flash)


def _bytes(name: str, size: int | str | None) -> int | None:
    try:
        return size if size is None else byte_count(size) if isinstance(size, str) else operator.index(size)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name}: {error}") from None
