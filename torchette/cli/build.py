# SPDX-License-Identifier: BSD-3-Clause
# In: .pte files and a target. Out: a folder with the runtime for the target, with only the kernels that the files
# require.
"""Build the runtime for another machine, with the kernels that models require

Compiles with the package ziglang (pip install ziglang==0.17.0), or with your compiler. A build for several models
runs each of them. The first build for a target takes minutes; later builds compile only changes.

examples:
  torchette build --target aarch64-linux net.pte -o build      for a Raspberry Pi
  torchette build --target cortex-m4 --compiler arm-none-eabi- kws.pte digits.pte -o build
  torchette build --target host --ops aten::add.out,aten::mm.out --dtypes float32 -o build
  torchette build --target wasm32-wasi -o build                all kernels, for any model
  torchette build --list                                       the targets
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from torchette.build.bare.image import Image
from torchette.build.selection import Selection
from torchette.cli import DONE, UsageError, _board
from torchette.cli._console import note, print_json, print_table, print_values
from torchette.progress import Progress
from torchette.targets import Target

if TYPE_CHECKING:
    from torchette.build.make import BuildResult


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", metavar="MODEL.pte", type=Path, nargs="*", help="the models that the build must run"
    )
    parser.add_argument(
        "--target", default="host", help="the machine to build for, see --list (default: host)"
    )
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="the folder to write")
    parser.add_argument("--ops", metavar="A,B,...", help="operators to keep, instead of those of the models")
    parser.add_argument("--dtypes", metavar="A,B,...", help="dtypes to keep, instead of those of the models")
    parser.add_argument(
        "--compiler",
        metavar="COMMAND",
        help="prefix of GNU tools (arm-none-eabi-), or a C++ compiler with flags (default: ziglang)",
    )
    parser.add_argument(
        "--optimize",
        choices=["size", "speed"],
        help="default: size without an operating system, otherwise speed",
    )
    parser.add_argument(
        "--log-level",
        type=int,
        choices=range(5),
        default=2,
        help="messages to keep: 0 none, 4 all (default: 2)",
    )
    parser.add_argument("--llm", action="store_true", help="also build the runtime of language models")
    _board.arguments(parser.add_argument_group("images of models, for targets without an operating system"))
    parser.add_argument("--list", action="store_true", help="list the targets")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    from torchette import targets
    from torchette.build.make import make

    if options.list:
        table = [(t.name, t.text, ", ".join(t.emulator) or "-", t.note) for t in targets.TARGETS.values()]
        print_table(("target", "", "emulator", "note"), table)
        return DONE
    target = targets.find(options.target)
    if options.output is None:
        raise UsageError("no output folder; pass -o DIR")
    if options.llm and target.kind == "bare":
        raise UsageError(f"--llm requires files and a heap, which {target.name} does not have")
    chosen = _selection(options)
    if target.name == "wasm32-browser":
        return _build_for_browser(options, chosen)
    with Progress(interval=0) as progress:
        result = make(
            target,
            chosen,
            options.output,
            compiler=options.compiler,
            small=None if options.optimize is None else options.optimize == "size",
            log_level=options.log_level,
            llm=options.llm,
            report=progress,
        )
    images = _build_images(options, target, chosen) if target.kind == "bare" else []
    result.files.update({f"image of {image.path.stem}": image.path for image in images})
    if options.json:
        _print_json(target, chosen, result, images)
    else:
        _print_text(target, chosen, result)
    return DONE


def _selection(options: argparse.Namespace) -> Selection:
    """Returns the operators and dtypes of the models, or those of --ops and --dtypes."""
    from torchette.build import selection

    chosen = selection.of_files(options.models)
    if options.ops is None and options.dtypes is None:
        return chosen
    operators, dtypes = chosen.operators, chosen.dtypes
    if options.ops is not None:
        operators = selection.checked_operators(_names(options.ops))
    if options.dtypes is not None:
        dtypes = selection.checked_dtypes(_names(options.dtypes))
    return Selection(operators, dtypes, chosen.backends)


def _operators(chosen: Selection) -> tuple[set[str], set[str]]:
    """Returns the operators of the library that a build keeps, and those that it omits."""
    from torchette.build import kernels

    known = set(kernels.library())
    selected = known if chosen.operators is None else known & chosen.operators
    return selected, known - selected


def _print_json(target: Target, chosen: Selection, result: BuildResult, images: list[Image]) -> None:
    selected, left = _operators(chosen)
    bytes_ = result.footprint
    print_json(
        {
            "target": target.name,
            "files": {kind: str(path) for kind, path in result.files.items()},
            "kernels": [vars(cost) for cost in bytes_.kernels] if bytes_ else sorted(selected),
            "left_out": {"operators": sorted(left), "dtypes": _left_out(chosen.dtypes)},
            "shared_bytes": bytes_.shared if bytes_ else None,
            "other_bytes": bytes_.runtime if bytes_ else None,
            "runner": result.loaded,
            "images": {image.path.stem: {"flash": image.flash, "ram": image.ram} for image in images},
        }
    )


def _print_text(target: Target, chosen: Selection, result: BuildResult) -> None:
    from torchette.build.selection import DTYPES

    bytes_, loaded = result.footprint, result.loaded
    if bytes_ is not None:
        print_table(
            ("kernel", "own bytes", "with shared"),
            [(cost.name, cost.own, cost.reached) for cost in bytes_.kernels],
            title=f"Kernels of {target.name}: bytes of code and constants",
        )
        print()
    selected, left = _operators(chosen)
    dtypes = _left_out(chosen.dtypes)
    num_dtypes = f"{len(DTYPES) - len(dtypes)} of {len(DTYPES)}"
    rows: list[tuple[str, object]] = [
        ("kernels", f"{len(selected)} of {len(selected) + len(left)}; {len(left)} left out"),
        ("dtypes", f"{num_dtypes}; left out: {', '.join(dtypes) or 'none'}"),
    ]
    if bytes_ is not None:
        own_bytes = sum(cost.own for cost in bytes_.kernels)
        rows += [("kernels' own bytes", own_bytes), ("shared by kernels", bytes_.shared)]
        if loaded is not None:
            rows.append(("runtime and runner", bytes_.runtime))
    if loaded is not None:
        rows.append(
            ("total image", f"{loaded['text']:,} text, {loaded['data']:,} data, {loaded['bss']:,} bss")
        )
    print_values([*rows, *((kind, str(path)) for kind, path in result.files.items())])
    if target.note:
        note(f"{target.name}: {target.note}")


def _build_for_browser(options: argparse.Namespace, chosen: Selection) -> int:
    from torchette.build import web

    small = options.optimize == "size"
    with Progress(interval=0) as progress:
        written = web.build(
            options.models,
            options.output,
            chosen=chosen,
            small=small,
            log_level=options.log_level,
            llm=options.llm,
            report=progress,
        )
    for path in written:
        print(f"{path}  {path.stat().st_size:,} bytes")
    return DONE


def _build_images(options: argparse.Namespace, target: Target, chosen: Selection) -> list[Image]:
    """Builds an image of each model, which compares its results with those of this machine."""
    from torchette.build import toolchain
    from torchette.build.bare.boards import BOARDS
    from torchette.build.bare.image import build_image
    from torchette.build.bare.project import Application
    from torchette.devtools.embed import identifier

    default = next(board.name for board in BOARDS.values() if board.target == target.name)
    board, stack, temp = _board.chosen(options, default)
    if board.target != target.name:
        raise UsageError(f"{board.name} has a {board.target}, but the target is {target.name}")
    compiler = toolchain.find_compiler(target, options.compiler)
    images = []
    for model in options.models:
        name = identifier(model.stem)
        with Progress(interval=0) as progress:
            image = build_image(
                Application(model, board, name, stack, temp),
                compiler,
                chosen,
                options.output / "images" / name,
                small=options.optimize != "speed",
                log_level=options.log_level,
                report=progress,
            )
        images.append(image)
        note(f"{image.path.name} for {board.name}: {image.flash:,} bytes of flash, {image.ram:,} of RAM")
        if image.uf2:
            note(f"{image.uf2} is the file to copy onto the board")
    return images


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _left_out(dtypes: frozenset[str] | None) -> list[str]:
    from torchette.build.selection import DTYPES

    return [] if dtypes is None else [name for name in DTYPES if name not in dtypes]
