# SPDX-License-Identifier: BSD-3-Clause
# In: a model, a board and a compiler. Out: the image that runs the model there, and how many bytes it takes.
"""Images of models: `build_image` writes an application's sources, compiles them with the runtime, and links."""

from __future__ import annotations

import re
import runpy
import struct
from pathlib import Path
from typing import NamedTuple

from torchette import targets
from torchette.build import library, toolchain
from torchette.build.bare.boards import Board, sources
from torchette.build.bare.project import TEMPLATES, Application, write_application
from torchette.build.selection import Selection
from torchette.build.toolchain import Compiler, Report, Unit
from torchette.errors import BuildError

# The linkers of an image, for objects of any compiler.
LINK_FLAGS = ("-nostartfiles", "-static", "-Wl,--gc-sections", "-Wl,-e,reset")


class Image(NamedTuple):
    """An image: its file, and its bytes in flash and in RAM, the stack included; the UF2 file if the board accepts such files."""

    path: Path
    flash: int
    ram: int
    uf2: Path | None = None


def build_image(
    application: Application,
    compiler: Compiler,
    selection: Selection,
    folder: Path,
    *,
    small: bool = True,
    log_level: int = 2,
    report: Report | None = None,
) -> Image:
    """Writes the application's sources into `folder` and NAME.elf beside them, NAME.uf2 for boards that accept such files;
    optimized for size, or for speed if `small` is False.

    Raises:
        BuildError: it does not compile, or does not fit the board; names the missing bytes.
    """
    own = [path for path in write_application(application, folder) if path.suffix in (".c", ".cpp")]
    board = application.board
    target = targets.find(board.target)
    common = bare_flags(log_level, small=small)
    units = library.units(target, selection, "minimal", common, small=small)
    units += bare_units(board, common)
    units += [Unit(source, (*common, f"-I{folder}", "-x", "c++")) for source in own]
    objects = toolchain.compile_units(compiler, units, report)
    if report:
        report("link", f"{application.name}.elf", 0, 0)
    return link_image(board, compiler, objects, folder / f"{application.name}.elf")


def bare_flags(log_level: int = 2, *, small: bool = True) -> tuple[str, ...]:
    """Flags of every source of an image; newlib has no M_PI for a C++ without extensions."""
    return (*library.flags(small=small, log_level=log_level, tracing=False), "-std=gnu++17")


def bare_units(board: Board, common: tuple[str, ...]) -> list[Unit]:
    """Start-up, semihosting, the few functions of libc, and what the board needs itself."""
    return [
        # functions of libc must not call themselves
        Unit(source, (*common, *(("-fno-builtin",) if source.stem == "libc" else ())))
        for source in sources(board)
    ]


def link_image(board: Board, compiler: Compiler, objects: list[Path], path: Path) -> Image:
    """Links objects with the script image.ld that lies beside `path`.

    Raises:
        BuildError: they do not fit; names the missing bytes of each memory.
    """
    libraries = ("-lm",) if compiler.is_zig else ("-nodefaultlibs", "-lm", "-lc_nano", "-lgcc")
    script = f"-Wl,-T,{path.with_name('image.ld')}"
    try:
        toolchain.link(compiler, objects, path, (*LINK_FLAGS, script, *libraries))
    except BuildError as error:
        missing = overflows(str(error))
        if not missing:
            raise
        raise BuildError(
            f"{path.name} does not fit {board.name}: "
            + " and ".join(f"{size:,} bytes too many for {memory}" for memory, size in missing.items()),
            code="does-not-fit-board",
            hints=[_REMEDIES[memory] for memory in missing],
        ) from error
    flash, ram = image_size(path, board)
    if board.uf2_family is None:
        return Image(path, flash, ram)
    copied = path.with_suffix(".uf2")
    convert = runpy.run_path(str(TEMPLATES / "uf2.py"))["blocks"]
    copied.write_bytes(convert(path.read_bytes(), board.uf2_family))
    return Image(path, flash, ram, copied)


_REMEDIES = {
    "FLASH": "--log-level 0 leaves messages out; quantized weights are a quarter; a board with more: --board, --flash",
    "RAM": "a smaller --stack, --temp least, integers (--quantize int8), or a model compiled to a budget; a board with more: --board, --ram",
}


def overflows(words: str) -> dict[str, int]:
    """The bytes by which each memory is too small, from the messages of GNU ld and lld."""
    found: dict[str, int] = {}
    for memory, size in re.findall(r"region [`'](\w+)'[: ]+overflowed by (\d+) bytes", words):
        found[memory] = max(found.get(memory, 0), int(size))
    return found


def image_size(path: Path, board: Board) -> tuple[int, int]:
    """Bytes in flash and in RAM that an image uses, read from its segments."""
    data = path.read_bytes()
    (start,) = struct.unpack_from("<I", data, 28)
    each, count = struct.unpack_from("<2H", data, 42)
    flash, ram = board.flash.origin, board.ram.origin
    for header in range(start, start + each * count, each):
        kind, _, address, stored_at, stored, size = struct.unpack_from("<6I", data, header)
        if kind != 1:  # PT_LOAD
            continue
        if stored:
            flash = max(flash, stored_at + stored)
        if board.ram.origin <= address < board.ram.origin + board.ram.size:
            ram = max(ram, address + size)
    return flash - board.flash.origin, ram - board.ram.origin
