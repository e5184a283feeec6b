# SPDX-License-Identifier: BSD-3-Clause
# In: reference models and targets. Out: bytes of code and constants of the smallest program that runs each there: the
# runtime, then what the model's kernels add. The C library is not counted; ExecuTorch's core stands beside.
"""Image bytes by target and model, as `torchette build` makes them."""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path

# Text of ExecuTorch 1.5.0's core alone with verification, -Os, without logs and kernels (docs/size.md).
PEER = {"x86-64-linux-musl": 29_192, "cortex-m4": 26_964}
MODELS = ("keyword_spotting", "mobilenet_v2", "lstm")
TARGETS = ("x86-64-linux-musl", "aarch64-linux", "armv7-linux", "riscv64-linux", "cortex-m4", "cortex-m55")


def main(arguments: list[str] | None = None) -> int:
    import torchette
    from tests.models import zoo
    from torchette.build import footprint, library, selection, targets, toolchain

    parser = argparse.ArgumentParser(prog="./dev bench images", description=__doc__)
    parser.add_argument("targets", nargs="*", default=TARGETS, help=f"default: {' '.join(TARGETS)}")
    parser.add_argument("--compiler", help="as for torchette build (default: ziglang)")
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args(arguments)
    names = options.models.split(",")
    chosen = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            module, args = zoo.build(name)
            torchette.compile(module, args).save(Path(folder, f"{name}.pte"))
            chosen[name] = selection.of_file(Path(folder, f"{name}.pte"))
    print(f"{'bytes of text':20}{'core':>9}{'peer':>9}" + "".join(f"{name:>20}" for name in names))
    for name in options.targets:
        target = targets.find(name)
        driver = toolchain.find_compiler(target, options.compiler)
        common = library.flags(small=True, log_level=0)
        program = toolchain.Unit(Path(__file__).with_name("smallest.cpp"), common)
        line = ""
        for selected in chosen.values():
            units = library.core_units("minimal", common)
            units += library.kernel_units(target, selected, common, small=True)
            objects = toolchain.compile_units(driver, [*units, program], _dot)
            parts = footprint.measure(objects, "main")
            kernels = parts.shared + sum(cost.own for cost in parts.kernels)
            core = parts.rest
            line += f"{core + kernels:>20,}"
        peer = f"{PEER[name]:,}" if name in PEER else "-"
        print(f"\r{name:20}{core:>9,}{peer:>9}{line}")
    return 0


def _dot(done: int, of: int, name: str) -> None:
    print(f"\r{done} of {of} {name:30}\r", end="", file=sys.stderr, flush=True)
