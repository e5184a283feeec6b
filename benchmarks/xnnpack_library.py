# SPDX-License-Identifier: BSD-3-Clause
# In: the networks of benchmarks/xnnpack.py as XNNPACK payloads in float32 and int8. Out: the time of one execution on our
# kernels, on XNNPACK's library, in ExecuTorch, and in other checkouts, as ratios. docs/decisions/0029 has the figures.
"""XNNPACK's payloads on our kernels, on XNNPACK's library, and in ExecuTorch: processor time of one execution with one thread.

ExecuTorch contains a newer version of the library, and runs the same files. Each side is a process that loads the same files. The sides alternate, and the minimum time of each counts. A payload that the
library does not run is marked with `-`. `TORCHETTE_ISA=v3` limits our kernels to AVX2. The library has no such setting, so
compare that level with a checkout that has a library without AVX-512.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import IO

from benchmarks.models import ROOT
from benchmarks.xnnpack import MODELS, _build

TURN_SECONDS = 0.1

# A process of one side. For each line "file inputs" it loads a method and prints the seconds of one execution and the implementation
# that runs the payload. For each line with a number it executes the method that number of times and prints the seconds of one
# execution.
_SIDE = """
import sys, time, torch
side = sys.argv[1]
if side == "executorch":
    from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
    from executorch.runtime import Runtime
    _unsafe_reset_threadpool(1)
else:
    from torchette.runtime import Runtime
    registry = Runtime.get().backend_registry
    Runtime.get().set_num_threads(1)  # of our kernels and the library
    try:
        registry.set_option("XnnpackBackend", library=side != "kernels")
    except Exception:
        pass  # a checkout before that option

def runs_on():
    if side == "executorch":
        return "XNNPACK's library of ExecuTorch"
    try:
        return registry.get_option("XnnpackBackend", "last_payload")
    except Exception:
        return "XNNPACK's library" if registry.get_option("XnnpackBackend", "library") else "Torchette's kernels"

def seconds(count):
    begin = time.process_time()
    for _ in range(count):
        method.execute(args)
    return (time.process_time() - begin) / count

for line in sys.stdin:
    words = line.split()
    if len(words) == 2:
        args = torch.load(words[1], weights_only=True)
        program = Runtime.get().load_program(words[0])  # kept: ExecuTorch's method does not keep it alive
        method = program.load_method("forward")
        what = runs_on()
        seconds(1)
        print(min(seconds(1), seconds(1)), what, flush=True)
    else:
        print(seconds(int(words[0])), flush=True)
"""


class Side:
    """A process that executes payloads."""

    def __init__(self, name: str, checkout: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONWARNINGS": "ignore"}
        process = subprocess.Popen(
            [sys.executable, "-c", _SIDE, name],
            cwd=checkout,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        self._ask: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout

    def ask(self, line: str) -> str:
        print(line, file=self._ask, flush=True)
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError("a side of the benchmark has ended; its error is above")
        return answer.strip()


def save(name: str, folder: Path) -> dict[str, Path]:
    """Writes the payloads of a network by precision, and its inputs."""
    import torch

    import torchette
    from torchette.backends.xnnpack import XNNPACKQuantizer, get_symmetric_quantization_config

    module, args = _build(name)
    torch.save(args, folder / f"{name}.pt")
    files = {}
    for precision in ("float32", "int8"):
        how = {}
        if precision == "int8":
            quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
            how = {"quantizer": quantizer, "calibration": [args]}
        files[precision] = folder / f"{name}-{precision}.pte"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torchette.compile(module, args, backend="xnnpack", **how).save(files[precision])
    return files


def measure(sides: dict[str, Side], path: Path, inputs: Path, turns: int) -> dict[str, tuple[float, str]]:
    """Returns the minimum seconds of one execution of each side, and the implementation that runs the payload."""
    loaded = {name: side.ask(f"{path} {inputs}").split(maxsplit=1) for name, side in sides.items()}
    best = {name: float(seconds) for name, (seconds, _) in loaded.items()}
    counts = {name: max(1, round(TURN_SECONDS / seconds)) for name, seconds in best.items()}
    for _ in range(turns):
        for name, side in sides.items():
            best[name] = min(best[name], float(side.ask(str(counts[name]))))
    return {name: (best[name], loaded[name][1]) for name in sides}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench xnnpack_library", description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, help=f"by default {', '.join(MODELS)}")
    parser.add_argument("--turns", type=int, default=20, help="turns of each side (default 20)")
    parser.add_argument(
        "--checkout",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="another checkout with a built native module, as one more side; may be repeated",
    )
    options = parser.parse_args(arguments)
    sides = {name: Side(name, ROOT) for name in ("kernels", "library", "executorch")}
    for checkout in options.checkout:
        name, _, folder = checkout.partition("=")
        sides[name] = Side(name, Path(folder).resolve())
    peers = list(sides)[1:]
    print(f"| network | precision | kernels, ms | {' | '.join(f'{name} / kernels' for name in peers)} |")
    print(f"|---|---|---|{'---|' * len(peers)}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            for precision, path in save(name, Path(folder)).items():
                figures = measure(sides, path, Path(folder, f"{name}.pt"), options.turns)
                ours, _ = figures["kernels"]
                ratios = [
                    f"{figures[side][0] / ours:.2f}" if figures[side][1].startswith("XNNPACK") else "-"
                    for side in peers
                ]
                print(f"| {name} | {precision} | {ours * 1e3:.2f} | {' | '.join(ratios)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
