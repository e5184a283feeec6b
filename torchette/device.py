# SPDX-License-Identifier: BSD-3-Clause
# The properties of a target machine that the compiler plans memory for and checks.
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
    """The memory of a device that is available to a model. Sizes are bytes: ``65536`` or ``"64K"``.

    >>> Device(ram="64K", flash="256K", target="cortex-m4", fit=True)
    >>> Device(arenas={"SRAM": "64K", "DRAM": None})

    Attributes:
        ram: for planned, method and temp memory together, of the method that requires the most; None: unlimited.
        flash: for the .pte file, without the runtime's code; None: unlimited.
        target: the processor, which determines the sizes of the runtime's structures; see `torchette memory --help`.
        arenas: the memories, the fastest first: name -> size, or None for an unlimited size. The first arenas contain
            the tensors with the most traffic for their size. The arenas become memory ids 1, 2, ...
        fit: whether to change a model that requires more than `ram`: image layers are computed a few rows at a time,
            which repeats some work. Otherwise such a model raises an error that lists these changes.

    Raises:
        InputError: if a size is not a number of bytes, the target does not exist, or `fit` is set without `ram`.
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
            raise InputError(
                "fit=True requires the size of the memory", hints=['Device(ram="256K", fit=True)']
            )

    @property
    def ram_bytes(self) -> int | None:
        """`ram` in bytes."""
        return _bytes("device ram", self.ram)

    @property
    def flash_bytes(self) -> int | None:
        """`flash` in bytes."""
        return _bytes("device flash", self.flash)


def _bytes(name: str, size: int | str | None) -> int | None:
    try:
        return size if size is None else byte_count(size) if isinstance(size, str) else operator.index(size)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name}: {error}") from None
