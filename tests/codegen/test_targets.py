# SPDX-License-Identifier: BSD-3-Clause
# Generated C++ on other machines, run in emulators: the folder compiles without the runtime, and the results are equal
# to those of the interpreter on this machine.

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.build.images import compiler, emulate, emulated, named, with_gcc, with_zig
from tests.building import run
from tests.models import artifacts
from tests.sweep import sweep
from torchette import targets
from torchette.build import toolchain
from torchette.build.bare import boards
from torchette.build.bare.image import bare_flags, bare_units, link_image
from torchette.build.make import link_flags
from torchette.build.toolchain import DEVICE_FLAGS, Compiler, Unit
from torchette.codegen import codegen
from torchette.runtime import Runtime

# Relative to the maximum result, because reductions run in another order.
TOLERANCE = 2e-6
MAIN = """\
#include "net.h"
static const float in[] = {@in@}, expected[] = {@expected@};
static float out[NET_FORWARD_OUT0_NUMEL];
int main() {
  if (net_forward(in, out) != 0) return 3;
  for (int i = 0; i < NET_FORWARD_OUT0_NUMEL; ++i) {
    const float error = out[i] - expected[i] + (i == 0 ? OFFSET : 0);
    if (!(error <= @tolerance@f && -error <= @tolerance@f)) return 4;
  }
  return 0;
}
"""


def sources(model: str, folder: Path) -> tuple[list[Path], Path]:
    """Returns the files of a model's unit, and a program that exits with 0 for correct results and 4 for wrong ones."""
    (folder / "net.pte").write_bytes(artifacts.our_file(model))
    codegen(folder / "net.pte", folder)
    (x,) = (tensor.numpy() for tensor in artifacts.args(model))
    (expected,) = Runtime.get().load_program(folder / "net.pte").load_method("forward").execute([x])
    text = MAIN.replace("@tolerance@", repr(float(np.abs(expected).max()) * TOLERANCE))
    for word, array in (("@in@", x), ("@expected@", expected)):
        text = text.replace(word, ",".join(f"{number!r}f" for number in array.ravel().tolist()))
    (folder / "main.cc").write_text(text)
    return sorted(folder.glob("*.cpp")), folder / "main.cc"


def compiled(used: Compiler, model: str, folder: Path, flags: tuple[Any, ...]) -> list[list[Path]]:
    """Returns the objects of two programs: one with the correct expected results, and one with wrong ones."""
    files, program = sources(model, folder)
    mains = [Unit(program, (*flags, f"-DOFFSET={offset}")) for offset in ("0", "1")]
    objects = toolchain.compile_units(used, [*(Unit(file, flags) for file in files), *mains])
    return [[*objects[:-2], main] for main in objects[-2:]]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *with_gcc("aarch64-linux", "armv7-linux", "riscv64-linux"),
        *with_zig("aarch64-linux", "x86-64-linux-musl"),
    ],
)
@pytest.mark.parametrize("model", sweep(["digits", "keyword_spotting"], "digits"))
def test_linux(name: str, kind: str, model: str, tmp_path: Path) -> None:
    target = targets.find(name)
    emulator = emulated(target)
    used = toolchain.find_compiler(target, named(target, kind))
    flags = ("-std=c++17", "-Os", "-fwrapv", "-w")
    for status, objects in zip((0, 4), compiled(used, model, tmp_path, flags)):
        toolchain.link(used, objects, tmp_path / "program", link_flags(target, used))
        run(*emulator, tmp_path / "program", status=status)


@pytest.mark.parametrize(
    ("board", "kind", "model"),
    [
        ("mps2-an386", "gcc", "digits"),
        pytest.param("mps2-an500", "gcc", "digits", marks=pytest.mark.slow),
        pytest.param("mps2-an505", "gcc", "digits", marks=pytest.mark.slow),
        pytest.param("mps3-an547", "gcc", "keyword_spotting", marks=pytest.mark.slow),
    ],
)
def test_boards(board: str, kind: str, model: str, tmp_path: Path) -> None:
    if shutil.which("qemu-system-arm") is None:
        pytest.skip("apt install qemu-system-arm")
    machine = boards.BOARDS[board]
    used = compiler(machine, kind)
    common = bare_flags(0)
    start = toolchain.compile_units(used, bare_units(machine, common))
    (tmp_path / "image.ld").write_text(boards.script(machine))
    flags = (*DEVICE_FLAGS, "-Os", "-fwrapv")
    for status, objects in zip((0, 4), compiled(used, model, tmp_path, flags)):
        image = link_image(machine, used, [*start, *objects], tmp_path / "net.elf")
        assert emulate(machine, image.path)[0] == status


@pytest.mark.slow  # ziglang compiles the C++ library first
def test_webassembly(tmp_path: Path) -> None:
    if importlib.util.find_spec("ziglang") is None or shutil.which("node") is None:
        pytest.skip("pip install ziglang, apt install nodejs")
    used = toolchain.find_compiler(targets.find("wasm32-wasi"))
    wasi = Path(__file__).parents[1] / "build" / "wasi.mjs"
    for status, objects in zip((0, 4), compiled(used, "digits", tmp_path, (*DEVICE_FLAGS, "-Os"))):
        toolchain.link(used, objects, tmp_path / "program.wasm")
        run("node", "--no-warnings", wasi, tmp_path, "program.wasm", status=status)
