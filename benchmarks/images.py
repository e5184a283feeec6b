# SPDX-License-Identifier: BSD-3-Clause
# In: reference models and targets. Out: bytes of code and constants of the smallest program for each: the runtime, and the
# addition of the model's kernels. The C library counts only in WebAssembly, where the size is that of the module that a page
# loads. A column has the core of ExecuTorch.
"""Size of programs by target and model, built by `torchette build`."""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from torchette.progress import Progress

if TYPE_CHECKING:
    from torchette.build.selection import Selection
    from torchette.targets import Target

# Text section of the core of ExecuTorch 1.5.0 with verification, -Os, without logs and kernels (benchmarks/size.md).
PEER = {"host": 29_192, "x86-64-linux-musl": 29_192, "cortex-m4": 26_964}
MODELS = ("digits", "keyword_spotting", "mobilenet_v2", "lstm")
TARGETS = (
    "host",
    "aarch64-linux",
    "armv7-linux",
    "riscv64-linux",
    "cortex-m4",
    "cortex-m55",
    "wasm32-browser",
)


def main(arguments: list[str] | None = None) -> int:
    import torchette
    from tests.models import zoo
    from torchette import targets
    from torchette.build import selection

    parser = argparse.ArgumentParser(prog="./dev bench images", description=__doc__)
    parser.add_argument("targets", nargs="*", default=TARGETS, help=f"default: {' '.join(TARGETS)}")
    parser.add_argument("--compiler", help="as for torchette build (default: ziglang)")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--backend", default="portable", help="as for torchette compile (default: portable)")
    options = parser.parse_args(arguments)
    names = options.models.split(",")
    chosen = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            module, args = zoo.build(name)
            torchette.compile(module, args, backend=options.backend).save(Path(folder, f"{name}.pte"))
            chosen[name] = selection.of_file(Path(folder, f"{name}.pte"))
    print(f"{'bytes of text':20}{'core':>9}{'peer':>9}" + "".join(f"{name:>20}" for name in names))
    for name in options.targets:
        target = targets.find(name)
        if target.kind == "wasm":
            sizes = [(None, _module_bytes(selected)) for selected in chosen.values()]
        else:
            sizes = [_program_bytes(target, selected, options.compiler) for selected in chosen.values()]
        core = "-" if sizes[0][0] is None else f"{sizes[0][0]:,}"
        peer = f"{PEER[name]:,}" if name in PEER else "-"
        print(f"\r{name:20}{core:>9}{peer:>9}" + "".join(f"{size:>20,}" for _, size in sizes), flush=True)
    return 0


def _program_bytes(target: Target, selected: Selection, named: str | None) -> tuple[int, int]:
    """Returns the bytes of the runtime without and with the kernels."""
    from torchette.build import footprint, library, toolchain

    driver = toolchain.find_compiler(target, named)
    common = library.flags(small=True, log_level=0)
    units = library.core_units("minimal", common)
    units += library.kernel_units(target, selected, common, small=True)
    units.append(toolchain.Unit(Path(__file__).with_name("smallest.cpp"), common))
    parts = footprint.measure(toolchain.compile_units(driver, units, Progress()), "main")
    return parts.runtime, parts.runtime + parts.shared + sum(cost.own for cost in parts.kernels)


def _module_bytes(selected: Selection) -> int:
    from torchette.build import web

    with tempfile.TemporaryDirectory() as folder:
        files = web.build([], Path(folder), chosen=selected, small=True, log_level=0, report=Progress())
        return files[0].stat().st_size
