# SPDX-License-Identifier: BSD-3-Clause
# In: a program's bytes and a board. Out: the number of instructions that its image executes in the board's emulator.
"""Counts instructions as a substitute for time if the board is not available."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path

from torchette import targets
from torchette.build import selection, toolchain
from torchette.build.bare import boards
from torchette.build.bare.image import build_image
from torchette.build.bare.project import Application
from torchette.errors import BuildError, MissingCompilerError, TargetError

# qemu plugin that prints the number of executed instructions at the end of a program. It declares the parts of qemu's
# interface that it uses, because no package contains the header.
PLUGIN = """#include <stdint.h>
#include <stdio.h>
typedef uint64_t Id;
typedef struct Block Block;
int qemu_plugin_version = 1;
void qemu_plugin_register_vcpu_tb_trans_cb(Id id, void (*translated)(Id id, Block* block));
size_t qemu_plugin_tb_n_insns(const Block* block);
void qemu_plugin_register_vcpu_tb_exec_inline(Block* block, int add, void* to, uint64_t number);
void qemu_plugin_register_atexit_cb(Id id, void (*ended)(Id id, void* data), void* data);
static uint64_t count;
static void translated(Id id, Block* block) {
  qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &count, qemu_plugin_tb_n_insns(block));
}
static void ended(Id id, void* data) { fprintf(stderr, "instructions %llu\\n", (unsigned long long)count); }
int qemu_plugin_install(Id id, const void* info, int argc, char** argv) {
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, ended, 0);
  return 0;
}
"""


def count_plugin(folder: Path) -> Path:
    """Returns the path of qemu's counting plugin in a folder; compiles it if necessary.

    Raises:
        MissingCompilerError: this machine has no C compiler.
    """
    plugin = folder / "count.so"
    if not plugin.exists():
        if shutil.which("cc") is None:
            raise MissingCompilerError(
                "counting instructions requires the compiler cc, which is not installed",
                hints=["apt install gcc"],
            )
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(plugin)]
        subprocess.run(command, check=True, input=PLUGIN, text=True)
    return plugin


class Counter:
    """Counts instructions on one board. Results are cached by program.

    Args:
        board: name of the board.
        compiler: as for `torchette build`; by default the GNU compiler of the target if installed, else ziglang.

    Raises:
        TargetError: the board does not exist, or has no emulator.
        MissingCompilerError: the emulator or a compiler is not installed.
    """

    def __init__(self, board: str, compiler: str | None = None) -> None:
        self._board = boards.find(board)
        target = targets.find(self._board.target)
        if not self._board.emulator:
            raise TargetError(f"{board} has no emulator, which counting instructions requires")
        if shutil.which(self._board.emulator[0]) is None:
            raise MissingCompilerError(
                f"the emulator {self._board.emulator[0]} of {board} is not installed",
                hints=[f"apt install {self._board.emulator_package}"],
            )
        if compiler is None and shutil.which(f"{target.gcc}g++"):
            compiler = target.gcc
        self._compiler = toolchain.find_compiler(target, compiler)
        self._counts: dict[str, int] = {}

    def instructions(self, program: bytes) -> int:
        """Counts instructions from reset to the end of one call, including loading.

        Raises:
            BuildError: the image does not fit the board, or fails.
        """
        key = sha256(program).hexdigest()
        if key not in self._counts:
            with tempfile.TemporaryDirectory() as name:
                self._counts[key] = self._counted(program, Path(name))
        return self._counts[key]

    def _counted(self, program: bytes, folder: Path) -> int:
        model = folder / "model.pte"
        model.write_bytes(program)
        application = Application(model, self._board, "model", self._board.stack)
        image = build_image(application, self._compiler, selection.of_file(model), folder, log_level=0)
        command = [*self._board.emulator, str(image.path), "-plugin", str(count_plugin(folder))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        match = re.search(r"instructions (\d+)", done.stderr)
        if done.returncode or match is None:
            raise BuildError(
                f"the image exited with code {done.returncode} on {self._board.name}: {done.stderr[-300:]}",
                hints=["torchette build MODEL.pte --board BOARD --run shows its messages"],
            )
        return int(match[1])
