# SPDX-License-Identifier: BSD-3-Clause
# In: the name of a board. Out: its processor, the addresses of its memories, and the command of its emulator.
"""The boards that images can be built for: `BOARDS` by name; `script` returns the linker script of a board."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from torchette.build.sources import PACKAGE
from torchette.errors import InputError, TargetError, unknown_name

FOLDER = PACKAGE / "build" / "bare"
STACK = 16 * 1024  # default stack size in bytes


@dataclass(frozen=True)
class Region:
    """A range of memory."""

    origin: int
    size: int


@dataclass(frozen=True)
class Board:
    """A board that runs images.

    Attributes:
        name: name of the board, as accepted by `--board`.
        text: one-line description.
        target: the processor, a name of `torchette build --target`.
        flash: memory of code and constants; execution starts at its first address.
        ram: memory of the stack, variables and the pools of models.
        emulator: command that runs an image, without the path of the image; empty if there is none.
        stack: default stack size in bytes.
        source: C++ file in this folder that is only compiled for this board; empty if there is none.
        uf2_family: family ID of the processor in UF2 files; None if the board does not accept such files.
    """

    name: str
    text: str
    target: str
    flash: Region
    ram: Region
    emulator: tuple[str, ...] = ()
    stack: int = STACK
    source: str = ""
    uf2_family: int | None = None

    @property
    def emulator_package(self) -> str:
        """Debian package of the emulator."""
        return self.emulator[0] if self.emulator[0] == "qemu-system-arm" else "qemu-system-misc"


_K, _M = 1 << 10, 1 << 20


def qemu(processor: str, *machine: str) -> tuple[str, ...]:
    """Returns the qemu command for a machine; `machine` contains the value of -M, then further options."""
    # Exit codes, text and files use semihosting; the serial ports of the board are not connected.
    quiet = ("-nographic", "-monitor", "none", "-serial", "null")
    semihosting = ("-semihosting-config", "enable=on,target=native")
    return (f"qemu-system-{processor}", "-M", *machine, *quiet, *semihosting, "-kernel")


def _mps(machine: str, text: str, target: str, flash: Region, ram: Region) -> Board:
    """Returns one of Arm's prototyping boards."""
    return Board(machine, text, target, flash, ram, qemu("arm", machine))


BOARDS = {
    board.name: board
    for board in (
        _mps("mps2-an386", "Cortex-M4F", "cortex-m4", Region(0, 4 * _M), Region(0x20000000, 4 * _M)),
        _mps("mps2-an500", "Cortex-M7", "cortex-m7", Region(0, 4 * _M), Region(0x20000000, 4 * _M)),
        # It starts in secure state, in which all addresses are higher by 0x10000000.
        _mps(
            "mps2-an505", "Cortex-M33", "cortex-m33", Region(0x10000000, 4 * _M), Region(0x38000000, 4 * _M)
        ),
        _mps("mps3-an547", "Cortex-M55", "cortex-m55", Region(0, _M // 2), Region(0x21000000, 4 * _M)),
        Board(
            "rp2040",
            "Cortex-M0+, Raspberry Pi Pico",
            "cortex-m0plus",
            Region(0x10000000, 2 * _M),
            Region(0x20000000, 264 * _K),
            source="rp2040.cpp",
            uf2_family=0xE48BFF56,
        ),
        # Its boot program is at the start of flash.
        Board(
            "hifive1",
            "RISC-V RV32IMAC, SiFive HiFive1 Rev B",
            "riscv32-imac",
            Region(0x20010000, 4032 * _K),
            Region(0x80000000, 16 * _K),
            qemu("riscv32", "sifive_e,revb=true"),
            stack=4 * _K,
        ),
    )
}


def find(name: str) -> Board:
    """Returns the board with a name.

    Raises:
        TargetError: there is no such board; the message contains the nearest name.
    """
    if name not in BOARDS:
        raise TargetError(
            unknown_name("board", name, BOARDS),
            code="no-such-board",
            hints=[
                f"boards: {', '.join(f'{board.name} ({board.text})' for board in BOARDS.values())}",
                "for another board, choose one with the same processor, and set --flash and --ram",
            ],
        )
    return BOARDS[name]


def region(text: str, origin: int = 0) -> Region:
    """Parses a memory: ``256K``, ``1M@0x08000000``; without an address, it starts at `origin`.

    Raises:
        InputError: the text has another format.
    """
    match = re.fullmatch(r"(\d+)([KM]?)(?:@(0x[0-9a-fA-F]+|\d+))?", text)
    if not match or not int(match[1]):
        raise InputError(f"{text!r} is not a memory", hints=["SIZE or SIZE@ADDRESS: 256K, 1M@0x08000000"])
    size = int(match[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20}[match[2]]
    return Region(int(match[3], 0) if match[3] else origin, size)


def sources(board: Board) -> list[Path]:
    """Returns the C++ files of this folder that an image of the board contains."""
    names = ["libc.cpp", "semihosting.cpp", "startup.cpp", *([board.source] if board.source else [])]
    return [FOLDER / name for name in names]


def script(board: Board, stack: int = STACK) -> str:
    """Returns the linker script of the board, with `stack` bytes for the stack."""
    numbers = {
        **{f"FLASH_{field}": value for field, value in dataclasses.asdict(board.flash).items()},
        **{f"RAM_{field}": value for field, value in dataclasses.asdict(board.ram).items()},
        "STACK_size": stack,
    }
    text = (FOLDER / "image.ld").read_text(encoding="utf-8")
    for name, number in numbers.items():
        text = text.replace(f"@{name.upper()}@", f"{number:#x}" if name.endswith("origin") else str(number))
    return text
