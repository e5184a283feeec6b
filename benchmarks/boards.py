# SPDX-License-Identifier: BSD-3-Clause
# In: reference models and boards. Out: bytes of flash and RAM of the image that runs each there, and what of them is code.
"""Images by board and model, as `torchette build` makes them: for size, without messages."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

MODELS = ("digits", "keyword_spotting")


def main(arguments: list[str] | None = None) -> int:
    from tests.models import artifacts
    from torchette import targets
    from torchette.build import selection, toolchain
    from torchette.build.bare import boards
    from torchette.build.bare.image import build_image
    from torchette.build.bare.project import Application

    parser = argparse.ArgumentParser(prog="./dev bench boards", description=__doc__)
    parser.add_argument("boards", nargs="*", default=[*boards.BOARDS], help="default: all")
    parser.add_argument("--compiler", help="as for torchette build (default: ziglang)")
    options = parser.parse_args(arguments)
    columns = ("flash", "code", "constants", "RAM", "pools", "stack")
    print(f"{'board':12}{'model':20}" + "".join(f"{column:>11}" for column in columns))
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            model = Path(folder, f"{name}.pte")
            model.write_bytes(artifacts.our_file(name))
            for board in map(boards.find, options.boards):
                application = Application(model, board, name)
                compiler = toolchain.find_compiler(targets.find(board.target), options.compiler)
                made = build_image(
                    application,
                    compiler,
                    selection.of_file(model),
                    Path(folder, board.name, name),
                    log_level=0,
                )
                size = model.stat().st_size
                numbers = (
                    made.flash,
                    made.flash - size,
                    size,
                    made.ram,
                    made.ram - application.stack,
                    application.stack,
                )
                print(
                    f"{board.name:12}{name:20}" + "".join(f"{number:11,}" for number in numbers), flush=True
                )
    return 0
