# SPDX-License-Identifier: BSD-3-Clause
# In: a model, a board and a compiler. Out: an image that runs the model on the board, and its size.
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

# Link flags of an image, for objects of any compiler.
LINK_FLAGS = ("-nostartfiles", "-static", "-Wl,--gc-sections", "-Wl,-e,reset")


class Image(NamedTuple):
    """An image: its path, its bytes in flash and RAM (including the stack), and the UF2 file, if any."""

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
    """Builds the image of an application.

    Writes the sources and NAME.elf to `folder`, and NAME.uf2 for boards that accept such files.

    Args:
        application: the model and its board.
        compiler: compiler for the board's target.
        selection: kernels to include.
        folder: output folder.
        small: optimize for size instead of speed.
        log_level: as TORCHETTE_LOG_LEVEL.
        report: called for each compiled object, and before linking.

    Raises:
        BuildError: the sources do not compile, or the image does not fit the board; the message contains the missing
            bytes.
    """
    sources = [path for path in write_application(application, folder) if path.suffix in (".c", ".cpp")]
    board = application.board
    target = targets.find(board.target)
    common = bare_flags(log_level, small=small)
    units = library.units(target, selection, "minimal", common, small=small)
    units += bare_units(board, common)
    units += [Unit(source, (*common, f"-I{folder}", "-x", "c++")) for source in sources]
    objects = toolchain.compile_units(compiler, units, report)
    if report:
        report("link", f"{application.name}.elf", 0, 0)
    return link_image(board, compiler, objects, folder / f"{application.name}.elf")


def bare_flags(log_level: int = 2, *, small: bool = True) -> tuple[str, ...]:
    """Returns the flags of every source of an image; newlib defines M_PI only with C++ extensions."""
    return (*library.flags(small=small, log_level=log_level, tracing=False), "-std=gnu++17")


def bare_units(board: Board, common: tuple[str, ...]) -> list[Unit]:
    """Returns start-up code, semihosting, the minimal libc, and the source of the board."""
    return [
        # Functions of libc must not be compiled to calls of themselves.
        Unit(source, (*common, *(("-fno-builtin",) if source.stem == "libc" else ())))
        for source in sources(board)
    ]


def link_image(board: Board, compiler: Compiler, objects: list[Path], path: Path) -> Image:
    """Links objects with the script image.ld in the folder of `path`.

    Raises:
        BuildError: linking fails; if the image does not fit, the message contains the missing bytes of each memory.
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
            + " and ".join(f"{memory} is {size:,} bytes too small" for memory, size in missing.items()),
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
    "FLASH": "--log-level 0 omits messages; int8 weights need a quarter of the flash; for a larger board: --board, --flash",
    "RAM": "a smaller --stack, --temp least, integers (--quantize int8), or a model compiled for a budget; for a larger board: --board, --ram",
}


def overflows(words: str) -> dict[str, int]:
    """Returns the bytes by which each memory is too small, from the messages of GNU ld and lld."""
    overflow_bytes: dict[str, int] = {}
    for memory, size in re.findall(r"region [`'](\w+)'[: ]+overflowed by (\d+) bytes", words):
        overflow_bytes[memory] = max(overflow_bytes.get(memory, 0), int(size))
    return overflow_bytes


def image_size(path: Path, board: Board) -> tuple[int, int]:
    """Returns the bytes in flash and in RAM that an image uses, from its segments."""
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
