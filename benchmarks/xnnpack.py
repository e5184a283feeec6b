# SPDX-License-Identifier: BSD-3-Clause
# In: reference models that are large enough for a delegate. Out: the costs of lowering, loading and running them on XNNPACK in
# Torchette and in ExecuTorch, each with its own partitioner and build of the library, as ratios in a table.
"""XNNPACK in Torchette compared with ExecuTorch: latency, load time, lowering, peak memory, delegate calls."""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.models import ROOT, _interleave

MODELS = [
    "mobilenet_v2",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "resnet18",
    "resnet50",
    "vit_tiny",
    "minilm",
]

_LOADS = 10  # loads of a process after its first load
_TURNS = 50  # turns of each side: a shared host may pause a processor for longer than a turn of 20 ms

# A process of one side. It loads a small program, which starts the library. Then it prints, as JSON, the seconds of the first load
# of the file, and the peak memory of the load and one execution, in bytes above the memory after the imports. For each line of its
# input it prints the seconds of one more load.
_SIDE = """
import gc, json, re, sys, time, torch

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

side, small, path, inputs, threads = sys.argv[1:]
args = torch.load(inputs, weights_only=True)
if side == "ours":
    from torchette.runtime import Runtime
    Runtime.get().set_num_threads(int(threads))  # of our kernels and the library
else:
    from executorch.extension.pybindings import portable_lib
    from executorch.runtime import Runtime
    if reset := getattr(portable_lib, "_unsafe_reset_threadpool", None):
        reset(int(threads))

def load(path):
    begin = time.perf_counter()
    program = Runtime.get().load_program(path)  # kept: the peer's method does not keep it alive
    method = program.load_method("forward")
    return time.perf_counter() - begin, program, method

load(small)
gc.disable()
# the peak of getrusage is at least that of the parent process
open("/proc/self/clear_refs", "w").write("5")
before = peak()
first, program, method = load(path)
method.execute(args)
print(json.dumps({"first": first, "peak": (peak() - before) * 1024.0}), flush=True)
del method, program
for _ in sys.stdin:
    print(load(path)[0], flush=True)
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench xnnpack", description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, help=f"by default {', '.join(MODELS)}")
    parser.add_argument("--quick", action="store_true", help="two rounds of loads instead of seven")
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        default=[1, 2],
        metavar="N",
        help="threads of both libraries, one latency per number (default 1 2); other figures use the first number",
    )
    parser.add_argument("--measure", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        json.dump(measure(options.measure, options.quick, options.threads), sys.stdout)
        return 0

    from rich.console import Console
    from rich.table import Table

    from torchette.runtime import Runtime

    if not Runtime.get().backend_registry.is_available("XnnpackBackend"):
        print("this build has no XNNPACK backend: ./dev xnnpack", file=sys.stderr)
        return 1
    console = Console() if sys.stdout.isatty() else Console(width=150)
    latencies = [(f"latency_{n}", f"latency ms, {n} thread{'s' * (n > 1)}", 1e3, 2) for n in options.threads]
    other_columns = [
        ("first", "first load ms", 1e3, 1),
        ("load", "load ms", 1e3, 1),
        ("lower", "lowering CPU s", 1, 1),
        ("peak", "peak MB", 1e-6, 0),
    ]
    headings = [cell for _, title, _, _ in (*latencies, *other_columns) for cell in (title, "ratio")]
    table = Table("model", *headings, "calls", title="ours : ExecuTorch's")
    for name in options.models:
        command = [
            sys.executable,
            "-m",
            "benchmarks.xnnpack",
            "--measure",
            name,
            *["--quick"] * options.quick,
            "--threads",
            *map(str, options.threads),
        ]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
        }
        with console.status(f"{name} ..."):
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            console.print(f"{name} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
            continue
        f = json.loads(done.stdout.splitlines()[-1])
        cells = [name]
        for key, _, unit, digits in (*latencies, *other_columns):
            ours, peer = f[f"{key}_ours"], f[f"{key}_peer"]
            cells += [f"{ours * unit:.{digits}f} : {peer * unit:.{digits}f}", f"{ours / peer:.2f}"]
        table.add_row(*cells, f"{f['calls_ours']:.0f} : {f['calls_peer']:.0f}")
    console.print(table)
    return 0


def _build(name: str) -> Any:
    """Returns a reference model, or a model of timm that is too slow for the tests."""
    from tests.models import zoo

    if name in zoo.names():
        return zoo.build(name)
    import torch

    zoo.declare_torchvision_operators()
    import timm

    torch.manual_seed(0)
    module = timm.create_model(name, pretrained=False).eval().requires_grad_(False)
    return module, (torch.randn(1, 3, 224, 224),)


def measure(name: str, quick: bool, threads: Sequence[int]) -> dict[str, float]:
    """Returns all figures of one model: seconds (medians over the rounds or turns), bytes, and delegate calls. The latency is
    measured for each number of threads, the other figures for the first number."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner as PeerPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower as peer_lower
    from executorch.extension.pybindings import portable_lib
    from executorch.runtime import Runtime as PeerRuntime

    from torchette.backends.xnnpack import XnnpackPartitioner
    from torchette.errors import DelegationWarning
    from torchette.exir import to_edge_transform_and_lower
    from torchette.format import pte
    from torchette.runtime import Runtime

    warnings.simplefilter("ignore", DelegationWarning)
    torch.set_num_threads(1)

    def use(number: int) -> None:
        """Sets the number of threads of programs that are loaded later."""
        if reset := getattr(portable_lib, "_unsafe_reset_threadpool", None):
            reset(number)
        Runtime.get().set_num_threads(number)  # of our kernels and the library

    use(threads[0])
    module, args = _build(name)

    def ours(program: torch.export.ExportedProgram) -> bytes:
        return to_edge_transform_and_lower(program, partitioner=XnnpackPartitioner()).to_executorch().buffer

    def peers(program: torch.export.ExportedProgram) -> bytes:
        return bytes(peer_lower(program, partitioner=[PeerPartitioner()]).to_executorch().buffer)

    # A model that is not measured pays the costs that arise once per process.
    small = torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),)
    files, cpu = {}, {}
    for lower in (ours, peers):
        lower(torch.export.export(*small))
    for key, lower in (("lower_ours", ours), ("lower_peer", peers)):
        program = torch.export.export(module, args)
        gc.collect()
        begin = time.process_time()
        files[key] = lower(program)
        cpu[key] = time.process_time() - begin

    rounds = 2 if quick else 7
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        paths = {key: Path(folder, f"{key}.pte") for key in files}
        for key, path in paths.items():
            path.write_bytes(files[key])
        Path(folder, "small.pte").write_bytes(ours(torch.export.export(*small)))
        inputs = Path(folder, "inputs.pt")
        torch.save(args, inputs)
        loads = _measure_loads(Path(folder, "small.pte"), paths, inputs, rounds, threads[0])
        latency = {}
        for number in threads:
            use(number)
            our_method = Runtime.get().load_program(paths["lower_ours"]).load_method("forward")
            peer_program = PeerRuntime.get().load_program(paths["lower_peer"])  # its method does not keep it
            peer_method = peer_program.load_method("forward")
            for actual, expected in zip(our_method.execute(args), peer_method.execute(args), strict=True):
                torch.testing.assert_close(torch.as_tensor(actual), expected, rtol=1e-3, atol=1e-4)
            calls = {
                f"latency_{number}_ours": functools.partial(our_method.execute, args),
                f"latency_{number}_peer": functools.partial(peer_method.execute, args),
            }
            latency |= _interleave(calls, _TURNS, time.perf_counter)
    counts = {
        side: float(
            sum(len(plan.delegates) for plan in pte.read(files[f"lower_{side}"]).program.execution_plan)
        )
        for side in ("ours", "peer")
    }
    return {**cpu, **loads, **latency, "calls_ours": counts["ours"], "calls_peer": counts["peer"]}


def _measure_loads(
    small: Path, paths: dict[str, Path], inputs: Path, rounds: int, threads: int
) -> dict[str, float]:
    """Returns medians of the seconds of the first load of a process and of later loads, and of its peak memory. The sides alternate
    in separate processes, so neither reuses memory of the other."""
    sides = ("ours", "peer")
    figures: dict[str, list[float]] = {
        f"{key}_{side}": [] for key in ("first", "load", "peak") for side in sides
    }
    for _ in range(rounds):
        workers = {}
        for side in sides:
            command = [sys.executable, "-c", _SIDE, side, small, paths[f"lower_{side}"], inputs, str(threads)]
            worker = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert worker.stdin is not None and worker.stdout is not None
            workers[side] = worker.stdin, worker.stdout
            for key, value in json.loads(worker.stdout.readline()).items():
                figures[f"{key}_{side}"].append(value)
        for _ in range(_LOADS):
            for side, (ask, answer) in workers.items():
                print(file=ask, flush=True)
                figures[f"load_{side}"].append(float(answer.readline()))
        for ask, answer in workers.values():
            ask.close()
            answer.read()
    return {key: statistics.median(values) for key, values in figures.items()}


if __name__ == "__main__":
    raise SystemExit(main())
