# SPDX-License-Identifier: BSD-3-Clause
# What tests of other machines share: the compilers that are here, and the emulators.

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from torchette import targets
from torchette.build import toolchain
from torchette.build.bare.boards import BOARDS, Board, Region, qemu
from torchette.build.toolchain import Compiler

needs_emulator = pytest.mark.skipif(
    shutil.which("qemu-system-arm") is None, reason="apt install qemu-system-arm"
)
# Two boards stand for all of them every day: Cortex-M4 has no vectors, Cortex-M55 has them. --full runs every board with each
# compiler: ziglang first compiles its own C and C++ libraries for each target.
QUICK = {("mps2-an386", "gcc"), ("mps3-an547", "gcc")}


def _marks(board: str, kind: str) -> tuple:
    return () if (board, kind) in QUICK else (pytest.mark.slow,)


# GNU's compiler for RISC-V has no C++ library in Debian.
each_board = [
    pytest.param(board.name, kind, id=f"{board.name}-{kind}", marks=_marks(board.name, kind))
    for board in BOARDS.values()
    for kind in ("gcc", "zig")
    if board.emulator and (kind == "zig" or not board.target.startswith("riscv"))
]
# qemu has no RP2040. Its micro:bit has a Cortex-M0, which runs the same instructions and also traps misaligned access.
MICROBIT = dataclasses.replace(
    BOARDS["rp2040"],
    name="microbit",
    flash=Region(0, 256 << 10),
    ram=Region(0x20000000, 128 << 10),
    emulator=qemu("arm", "microbit", "-global", "nrf51-soc.sram-size=131072"),
    source="",
    uf2_family=None,
)


def emulated(target: targets.Target) -> list[str]:
    """The command that runs programs of a target with files; skips the test where it is not there."""
    if not target.emulator:
        return []
    if shutil.which(target.emulator[0]) is None:
        pytest.skip(f"./dev tools installs {target.emulator[0]}")
    return list(target.emulator)


def with_zig(*names: str) -> list:
    """Parameters (target, "zig"), which take minutes where a target is new."""
    return [pytest.param(name, "zig", id=f"{name}-zig", marks=pytest.mark.slow) for name in names]


# 64 bits with vectors, dot products and matrix products, and 32 bits. RISC-V has no code of its own: --full runs it.
GATE = {"aarch64-linux", "armv7-linux"}


def with_gcc(*names: str) -> list:
    """Parameters (target, "gcc"): Debian's cross compilers, which have their libraries."""
    return [
        pytest.param(
            name, "gcc", id=f"{name}-gcc", marks=pytest.mark.gate if name in GATE else pytest.mark.slow
        )
        for name in names
    ]


# Windows with GNU's compiler, under Wine: minutes, as its kernels are compiled for three levels.
WINDOWS = pytest.param(
    "x86-64-windows",
    "gcc",
    id="x86-64-windows-gcc",
    marks=pytest.mark.slow,
)


def named(target: targets.Target, kind: str) -> str | None:
    """How `toolchain.find_compiler` takes a compiler of that kind; skips the test where it is not here."""
    if kind == "zig":
        if importlib.util.find_spec("ziglang") is None:
            pytest.skip("pip install 'torchette[build]'")
        return None
    assert target.gcc is not None
    if shutil.which(f"{target.gcc}g++") is None:
        pytest.skip(f"./dev tools installs {target.gcc}g++")
    return target.gcc


def compiler(board: Board, kind: str) -> Compiler:
    """A compiler for the board; skips the test where it is not here."""
    target = targets.find(board.target)
    return toolchain.find_compiler(target, named(target, kind))


def emulate(board: Board, image: Path, *words: str) -> tuple[int, str]:
    """The exit code and the words of an image, which runs in its own folder."""
    given = "".join(f",arg={word}" for word in words)
    if shutil.which(board.emulator[0]) is None:
        pytest.skip(f"apt install {board.emulator_package}")
    command = [f"{word}{given}" if word.endswith("target=native") else word for word in board.emulator]
    done = subprocess.run([*command, image], capture_output=True, text=True, timeout=120, cwd=image.parent)
    return done.returncode, done.stdout + done.stderr
