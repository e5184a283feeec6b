# SPDX-License-Identifier: BSD-3-Clause
# Shared by tests of other machines: the installed compilers and emulators.

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
# Two boards are tested daily: Cortex-M4 without vector instructions, Cortex-M55 with them. --full runs every board with
# each compiler: ziglang first compiles its C and C++ libraries for each target.
QUICK = {("mps2-an386", "gcc"), ("mps3-an547", "gcc")}


def _marks(board: str, kind: str) -> tuple:
    return () if (board, kind) in QUICK else (pytest.mark.slow,)


# Debian has no C++ library for the GNU compiler for RISC-V.
each_board = [
    pytest.param(board.name, kind, id=f"{board.name}-{kind}", marks=_marks(board.name, kind))
    for board in BOARDS.values()
    for kind in ("gcc", "zig")
    if board.emulator and (kind == "zig" or not board.target.startswith("riscv"))
]
# qemu does not emulate the RP2040. Its micro:bit has a Cortex-M0 with the same instructions, which also traps
# misaligned access.
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
    """Returns the command that runs programs of a target with files; skips the test if it is not installed."""
    if not target.emulator:
        return []
    if shutil.which(target.emulator[0]) is None:
        pytest.skip(f"./dev tools installs {target.emulator[0]}")
    return list(target.emulator)


def with_zig(*names: str) -> list:
    """Parameters (target, "zig"); the first build for a target takes minutes."""
    return [pytest.param(name, "zig", id=f"{name}-zig", marks=pytest.mark.slow) for name in names]


# 64-bit with vector, dot-product and matmul instructions, and 32-bit. RISC-V has no specific code and runs only with
# --full.
GATE = {"aarch64-linux", "armv7-linux"}


def with_gcc(*names: str) -> list:
    """Parameters (target, "gcc"): Debian's cross compilers with their libraries."""
    return [
        pytest.param(
            name, "gcc", id=f"{name}-gcc", marks=pytest.mark.gate if name in GATE else pytest.mark.slow
        )
        for name in names
    ]


# Windows with the GNU compiler, under Wine: takes minutes, because kernels are compiled for three levels.
WINDOWS = pytest.param(
    "x86-64-windows",
    "gcc",
    id="x86-64-windows-gcc",
    marks=pytest.mark.slow,
)


def named(target: targets.Target, kind: str) -> str | None:
    """Returns the argument of `toolchain.find_compiler` for a kind of compiler; skips the test if not installed."""
    if kind == "zig":
        if importlib.util.find_spec("ziglang") is None:
            pytest.skip("pip install 'torchette[build]'")
        return None
    assert target.gcc is not None
    if shutil.which(f"{target.gcc}g++") is None:
        pytest.skip(f"./dev tools installs {target.gcc}g++")
    return target.gcc


def compiler(board: Board, kind: str) -> Compiler:
    """Returns a compiler for the board; skips the test if it is not installed."""
    target = targets.find(board.target)
    return toolchain.find_compiler(target, named(target, kind))


def emulate(board: Board, image: Path, *words: str) -> tuple[int, str]:
    """Runs an image in its folder; returns the exit code and the output."""
    args = "".join(f",arg={word}" for word in words)
    if shutil.which(board.emulator[0]) is None:
        pytest.skip(f"apt install {board.emulator_package}")
    command = [f"{word}{args}" if word.endswith("target=native") else word for word in board.emulator]
    done = subprocess.run([*command, image], capture_output=True, text=True, timeout=120, cwd=image.parent)
    return done.returncode, done.stdout + done.stderr
