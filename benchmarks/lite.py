# SPDX-License-Identifier: BSD-3-Clause
# In: reference models. Out: PyTorch Mobile's lite interpreter, which torch still contains, compared with the runtime: latency,
# load time, bytes of the file, and time per instruction.
"""PyTorch Mobile's lite interpreter compared with this runtime: one process per model, alternating runs, one thread."""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODELS = ("chain", "digits", "keyword_spotting", "mobilenet_v3_small", "resnet18", "minilm")
CHAIN = 1000  # additions of one element; the time is that of the interpreter
SIDES = ("lite", "portable", "engine")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench lite", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"by default {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.one, options.rounds)))
        return 0
    print(f"{'model':20}{'':10}{'latency us':>12}{'load us':>10}{'file KB':>10}{'lite / it':>11}")
    for name in options.models or MODELS:
        command = ["-m", "benchmarks.lite", "--one", name, "--rounds", str(options.rounds)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment)
        if done.returncode:
            print(f"{name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            return 1
        figures = json.loads(done.stdout.splitlines()[-1])
        for side in SIDES:
            latency, load, size = figures[side]
            ratio = figures["lite"][0] / latency
            print(f"{name:20}{side:10}{latency:12.4g}{load:10.4g}{size / 1000:10.4g}{ratio:11.3g}")
    return 0


def model_of(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Returns the module and its arguments."""
    import torch

    from tests.models import artifacts

    class Chain(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            for _ in range(CHAIN):
                x = x + y
            return x

    if name == "chain":
        return Chain().eval(), (torch.ones(1), torch.ones(1))
    return artifacts.fresh_module(name).eval(), artifacts.args(name)


def measure(name: str, rounds: int) -> dict[str, tuple[float, float, int]]:
    """Returns by side: microseconds of an execution and of a load, and bytes of the file; medians over the rounds.

    Raises:
        AssertionError: the outputs of a side differ from eager.
    """
    import torch
    from torch.jit.mobile import _load_for_lite_interpreter

    import torchette

    torch.set_num_threads(1)
    module, inputs = model_of(name)
    with torch.no_grad(), warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        expected = module(*inputs)
        files = {side: Path(folder, side) for side in SIDES}
        torch.jit.trace(module, inputs)._save_for_lite_interpreter(str(files["lite"]))
        for side, backend in (("portable", "portable"), ("engine", "auto")):
            torchette.compile(module, inputs, backend=backend).save(files[side])

        def ours(path: Path) -> Callable[[], Any]:
            method = torchette.runtime.Runtime.get().load_program(path).load_method("forward", threads=1)
            return lambda: method.execute(inputs)

        def lite(path: Path) -> Callable[[], Any]:
            loaded = _load_for_lite_interpreter(str(path))
            return lambda: loaded.forward(*inputs)

        opens = {"lite": lite, "portable": ours, "engine": ours}
        runs = {side: opens[side](files[side]) for side in SIDES}
        for side, run in runs.items():
            result = run()
            result = torch.as_tensor(result[0] if isinstance(result, (list, tuple)) else result)
            torch.testing.assert_close(
                result, expected, rtol=1e-3, atol=1e-3, msg=f"{side} differs from eager"
            )
        times: dict[str, list[float]] = {side: [] for side in SIDES}
        loads: dict[str, list[float]] = {side: [] for side in SIDES}
        gc.disable()
        for _ in range(rounds):
            for side in SIDES:
                start = time.perf_counter()
                opens[side](files[side])
                loads[side].append(time.perf_counter() - start)
                start, count = time.perf_counter(), 0
                while count < 3 or time.perf_counter() - start < 0.03:
                    runs[side]()
                    count += 1
                times[side].append((time.perf_counter() - start) / count)
        return {
            side: (
                statistics.median(times[side]) * 1e6,
                statistics.median(loads[side]) * 1e6,
                files[side].stat().st_size,
            )
            for side in SIDES
        }


if __name__ == "__main__":
    raise SystemExit(main())
