# SPDX-License-Identifier: BSD-3-Clause
# What tests of images share: the compilers that are here, and the emulator.

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from torchette import targets
from torchette.build import toolchain
from torchette.build.bare.boards import BOARDS, Board
from torchette.build.toolchain import Compiler

needs_emulator = pytest.mark.skipif(
    shutil.which("qemu-system-arm") is None, reason="apt install qemu-system-arm"
)
# Every board with each compiler; two of them say nearly all, the gate proves each board with one, and the rest take their time.
QUICK = {("mps2-an386", "gcc"), ("mps3-an547", "zig")}


def _marks(board: str, kind: str) -> tuple:
    if (board, kind) in QUICK:
        return ()
    return (pytest.mark.gate,) if kind == "gcc" else (pytest.mark.slow,)


each_board = [
    pytest.param(board, kind, id=f"{board}-{kind}", marks=_marks(board, kind))
    for board in BOARDS
    for kind in ("gcc", "zig")
]


def compiler(board: Board, kind: str) -> Compiler:
    """A compiler for the board; skips the test where it is not here."""
    if kind == "gcc" and shutil.which("arm-none-eabi-g++") is None:
        pytest.skip("apt install gcc-arm-none-eabi libnewlib-arm-none-eabi libstdc++-arm-none-eabi-dev")
    if kind == "zig" and importlib.util.find_spec("ziglang") is None:
        pytest.skip("pip install ziglang")
    return toolchain.find_compiler(targets.find(board.target), "arm-none-eabi-" if kind == "gcc" else None)


def emulate(board: Board, image: Path, *words: str) -> tuple[int, str]:
    """The exit code and the words of an image, which runs in its own folder."""
    given = "".join(f",arg={word}" for word in words)
    command = [f"{word}{given}" if word.endswith("target=native") else word for word in board.emulator]
    done = subprocess.run([*command, image], capture_output=True, text=True, timeout=120, cwd=image.parent)
    return done.returncode, done.stdout + done.stderr
