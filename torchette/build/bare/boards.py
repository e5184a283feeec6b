# SPDX-License-Identifier: BSD-3-Clause
# In: the name of a board. Out: its processor, the addresses of its memories, and the command of its emulator.
"""The boards that images are made for: `BOARDS` by name, `script` is the linker script of one."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from torchette.errors import InputError, TargetError, unknown_name

FOLDER = Path(__file__).parent
STACK = 16 * 1024  # bytes, by default


@dataclass(frozen=True)
class Region:
    """A range of memory."""

    origin: int
    size: int


@dataclass(frozen=True)
class Board:
    """A board on which images run.

    Attributes:
        name: what `--board` takes.
        text: one line of description.
        target: the processor, a name of `torchette build --target`.
        flash: the memory of code and constants; execution begins at its first address.
        ram: the memory of the stack, variables and the pools of models.
        emulator: the command that runs an image; the path of the image follows.
    """

    name: str
    text: str
    target: str
    flash: Region
    ram: Region
    emulator: tuple[str, ...] = ()


_M = 1 << 20


def _mps(machine: str, text: str, target: str, flash: Region, ram: Region) -> Board:
    """One of Arm's prototyping boards, which qemu-system-arm emulates."""
    # exit codes, text and files go through semihosting; the board's own ports are not connected
    quiet = ("-nographic", "-monitor", "none", "-serial", "null")
    semihosting = ("-semihosting-config", "enable=on,target=native")
    return Board(
        machine,
        text,
        target,
        flash,
        ram,
        ("qemu-system-arm", "-M", machine, *quiet, *semihosting, "-kernel"),
    )


BOARDS = {
    board.name: board
    for board in (
        _mps("mps2-an386", "Cortex-M4F", "cortex-m4", Region(0, 4 * _M), Region(0x20000000, 4 * _M)),
        _mps("mps2-an500", "Cortex-M7", "cortex-m7", Region(0, 4 * _M), Region(0x20000000, 4 * _M)),
        # it begins in its secure state, where all memories have addresses 0x10000000 higher
        _mps(
            "mps2-an505", "Cortex-M33", "cortex-m33", Region(0x10000000, 4 * _M), Region(0x38000000, 4 * _M)
        ),
        _mps("mps3-an547", "Cortex-M55", "cortex-m55", Region(0, _M // 2), Region(0x21000000, 4 * _M)),
    )
}


def find(name: str) -> Board:
    """The board called `name`.

    Raises:
        TargetError: there is none; names the nearest.
    """
    if name not in BOARDS:
        raise TargetError(
            unknown_name("board", name, BOARDS),
            code="no-such-board",
            hints=[
                f"the boards are {', '.join(f'{board.name} ({board.text})' for board in BOARDS.values())}",
                "for another board name one with the same processor, and give --flash and --ram",
            ],
        )
    return BOARDS[name]


def region(text: str, origin: int = 0) -> Region:
    """Memory from text: ``256K``, ``1M@0x08000000``; without an address it begins at `origin`.

    Raises:
        InputError: the text has another form.
    """
    match = re.fullmatch(r"(\d+)([KM]?)(?:@(0x[0-9a-fA-F]+|\d+))?", text)
    if not match or not int(match[1]):
        raise InputError(f"{text!r} is not a memory", hints=["SIZE or SIZE@ADDRESS: 256K, 1M@0x08000000"])
    size = int(match[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20}[match[2]]
    return Region(int(match[3], 0) if match[3] else origin, size)


def script(board: Board, stack: int = STACK) -> str:
    """The linker script of the board, with `stack` bytes for the stack."""
    numbers = {
        **{f"FLASH_{field}": value for field, value in dataclasses.asdict(board.flash).items()},
        **{f"RAM_{field}": value for field, value in dataclasses.asdict(board.ram).items()},
        "STACK_size": stack,
    }
    text = (FOLDER / "image.ld").read_text(encoding="utf-8")
    for name, number in numbers.items():
        text = text.replace(f"@{name.upper()}@", f"{number:#x}" if name.endswith("origin") else str(number))
    return text
