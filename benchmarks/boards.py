# SPDX-License-Identifier: BSD-3-Clause
# In: reference models and boards. Out: bytes of flash and RAM of the image of each model, and the part of them that is code.
"""Firmware images by board and model, built by `torchette compile` and `torchette build` for size, without log messages."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    from benchmarks.targets import ON_BOARDS, save
    from torchette import targets
    from torchette.build import selection, toolchain
    from torchette.build.bare import boards
    from torchette.build.bare.image import build_image
    from torchette.build.bare.project import Application
    from torchette.errors import BuildError

    parser = argparse.ArgumentParser(prog="./dev bench boards", description=__doc__)
    parser.add_argument("boards", nargs="*", default=[*boards.BOARDS], help="default: all")
    parser.add_argument("--gcc", action="store_true", help="with GNU's compiler for Arm (default: ziglang)")
    options = parser.parse_args(arguments)
    columns = ("flash", "code", "constants", "RAM", "pools", "stack")
    print(f"{'board':12}{'model':22}" + "".join(f"{column:>11}" for column in columns))
    with tempfile.TemporaryDirectory() as folder:
        for name in ON_BOARDS:
            save(name, Path(folder))
            model = Path(folder, f"{name}-cpu.pte")
            for board in map(boards.find, options.boards):
                application = Application(model, board, name, board.stack)
                is_gnu = options.gcc and not board.target.startswith("riscv")
                target = targets.find(board.target)
                compiler = toolchain.find_compiler(target, target.gcc if is_gnu else None)
                to = Path(folder, board.name, name)
                try:
                    image = build_image(application, compiler, selection.of_file(model), to, log_level=0)
                except BuildError as error:
                    if error.code != "does-not-fit-board":
                        raise
                    print(f"{board.name:12}{name:22} does not fit", flush=True)
                    continue
                size = model.stat().st_size
                numbers = (
                    image.flash,
                    image.flash - size,
                    size,
                    image.ram,
                    image.ram - application.stack,
                    application.stack,
                )
                print(
                    f"{board.name:12}{name:22}" + "".join(f"{number:11,}" for number in numbers), flush=True
                )
    return 0
