# SPDX-License-Identifier: BSD-3-Clause
# In: the reference models of the tests. Out: the cost of compiling, loading and running each in Torchette, ExecuTorch and eager
# torch, as ratios in a table and as figures in a JSON file. The measurements of one model alternate in a separate process, so
# that a busy machine slows all sides equally.
"""Reference models compared: Torchette, the peer (ExecuTorch without a delegate) and eager torch, on one thread each."""

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / ".torchette" / "bench" / "models.json"
# A turn repeats its call for about this many seconds, so that the cost of the clock is negligible.
TURN_SECONDS = 0.02
# A call is repeated for about this total time.
PATIENCE_SECONDS = 4.0

# Column title, numerator, denominator, and maximum ratio.
RATIOS = [
    ("latency / eager", "latency_ours", "latency_eager", 1.0),
    ("latency / peer", "latency_ours", "latency_peer", 1.0),
    ("load / peer", "load_ours", "load_peer", 1.0),
    ("compile CPU / peer", "compile_ours", "compile_peer", 0.4),
    ("arena / bound", "arena_ours", "arena_bound", 1.02),
    ("arena / peer", "arena_ours", "arena_peer", 1.0),
    ("file / peer", "file_ours", "file_peer", 1.0),
]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("models", nargs="*", help="names of models; default: all")
    parser.add_argument("--quick", action="store_true", help="one round of each instead of several")
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="measure load and latency in CPU seconds instead of wall seconds, for a busy machine",
    )
    parser.add_argument(
        "--json", type=Path, default=RESULTS, metavar="FILE", help="output file of the figures"
    )
    parser.add_argument("--measure", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        json.dump(measure(options.measure, options.quick, options.cpu), sys.stdout)
        return 0

    from rich.console import Console

    from tests.models import zoo

    console = Console() if sys.stdout.isatty() else Console(width=150)
    unknown = set(options.models) - set(zoo.names())
    if unknown:
        parser.error(f"unknown models: {', '.join(sorted(unknown))}; known models: {', '.join(zoo.names())}")
    figures: dict[str, dict[str, float]] = {}
    for name in options.models or zoo.names():
        with console.status(f"{name} ..."):
            result, error = _measure_apart(name, options.quick, options.cpu)
        if result is None:
            console.print(f"[red]{name} failed:[/] {error}", highlight=False)
        else:
            figures[name] = result
            console.print(f"{name}: {result['seconds']:.0f} s", style="dim")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(figures, indent=2) + "\n")
    _print_tables(console, figures)
    console.print(f"Figures: {options.json}", style="dim")
    return 0 if len(figures) == len(options.models or zoo.names()) else 1


def _measure_apart(name: str, quick: bool, cpu: bool) -> tuple[dict[str, float] | None, str]:
    """Runs `measure` in a separate process; returns its figures, or None and the reason."""
    command = [sys.executable, "-m", "benchmarks.models", "--measure", name]
    command += ["--quick"] * quick + ["--cpu"] * cpu
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return json.loads(done.stdout.splitlines()[-1]), ""


def measure(name: str, quick: bool, cpu_clock: bool = False) -> dict[str, float]:
    """Returns all figures of one model: seconds (medians over the rounds) and bytes."""
    clock = time.process_time if cpu_clock else time.perf_counter
    start = time.perf_counter()
    import torch
    from executorch.exir import to_edge as peer_to_edge
    from executorch.extension.pybindings import portable_lib
    from executorch.runtime import Runtime as PeerRuntime

    from tests.models import zoo
    from torchette.exir import to_edge
    from torchette.format import pte
    from torchette.runtime import Runtime

    torch.set_num_threads(1)
    if reset := getattr(portable_lib, "_unsafe_reset_threadpool", None):
        reset(1)
    module, args = zoo.build(name)

    def export() -> torch.export.ExportedProgram:
        return torch.export.export(module, args)

    def compile_ours(program: torch.export.ExportedProgram) -> Any:
        manager = to_edge(program).to_executorch()
        return manager, bytes(manager.buffer)

    def compile_peer(program: torch.export.ExportedProgram) -> Any:
        manager = peer_to_edge(program).to_executorch()
        return manager, bytes(manager.buffer)

    # A model that is not measured pays the costs that arise once per process.
    small = torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),)
    for warm_up in (compile_ours, compile_peer):
        warm_up(torch.export.export(*small))

    compiled: dict[str, Any] = {}
    cpu: dict[str, list[float]] = {"export": [], "compile_ours": [], "compile_peer": []}
    for _ in range(1 if quick else 3):
        for side, compiler in (("compile_ours", compile_ours), ("compile_peer", compile_peer)):
            gc.collect()
            begin = time.process_time()
            program = export()
            captured = time.process_time()
            compiled[side] = compiler(program)
            cpu["export"].append(captured - begin)
            cpu[side].append(time.process_time() - captured)
    (manager, ours), (_, peers) = compiled["compile_ours"], compiled["compile_peer"]

    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        our_path, peer_path = Path(folder, "ours.pte"), Path(folder, "peer.pte")
        our_path.write_bytes(ours)
        peer_path.write_bytes(peers)
        # The peer's method does not keep its program alive.
        alive: list[Any] = []

        def load_peer() -> Any:
            alive[:] = [PeerRuntime.get().load_program(peer_path)]
            return alive[0].load_method("forward")

        def load_ours() -> Any:
            return Runtime.get().load_program(our_path).load_method("forward")

        load = _interleave({"load_ours": load_ours, "load_peer": load_peer}, 2 if quick else 7, clock)
        our_method, peer_method = load_ours(), load_peer()
        latency = _interleave(
            {
                "latency_ours": lambda: our_method.execute(args),
                "latency_eager": lambda: module(*args),
                "latency_peer": lambda: peer_method.execute(args),
            },
            2 if quick else 7,
            clock,
        )

    return {
        **{key: statistics.median(values) for key, values in cpu.items()},
        **load,
        **latency,
        "arena_ours": _arena_bytes(pte.read(ours)),
        "arena_peer": _arena_bytes(pte.read(peers)),
        "arena_bound": manager.planned_bytes()[1],
        "file_ours": len(ours),
        "file_peer": len(peers),
        "seconds": time.perf_counter() - start,
    }


def _interleave(
    calls: dict[Any, Callable[[], Any]], rounds: int, clock: Callable[[], float]
) -> dict[Any, float]:
    """Returns the median seconds of each call over the rounds; in each round the calls alternate.

    A call that needs seconds (some of the peer without a delegate) is not repeated in later rounds.
    """
    repetitions, turns = {}, {}
    for name, call in calls.items():
        # the minimum of two: after a pause in a single call, each turn would have only one call
        once = max(min(_seconds(call, clock), _seconds(call, clock)), 1e-7)
        repetitions[name] = max(1, round(TURN_SECONDS / once))
        turns[name] = min(rounds, max(1, round(PATIENCE_SECONDS / once)))
    seconds: dict[Any, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    for turn in range(rounds):
        for name, call in calls.items():
            if turn >= turns[name]:
                continue
            begin = clock()
            for _ in range(repetitions[name]):
                call()
            seconds[name].append((clock() - begin) / repetitions[name])
    gc.enable()
    return {name: statistics.median(values) for name, values in seconds.items()}


def _seconds(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    begin = clock()
    call()
    return clock() - begin


def _arena_bytes(file: Any) -> int:
    """Returns the planned bytes of the first method; its first size is a placeholder."""
    return sum(file.program.execution_plan[0].non_const_buffer_sizes[1:])


def _print_tables(console: Any, figures: dict[str, dict[str, float]]) -> None:
    """Prints the ratios, worst model first, and then the figures."""
    from rich.table import Table

    def worst(name: str) -> float:
        return max(figures[name][over] / figures[name][under] / bar for _, over, under, bar in RATIOS)

    order = sorted(figures, key=worst, reverse=True)
    ratios = Table(title="Ratios: lower is better; red exceeds the bar", title_justify="left")
    ratios.add_column("model", no_wrap=True)
    for title, _, _, bar in RATIOS:
        ratios.add_column(f"{title}\n(bar {bar:g})", justify="right")
    for name in order:
        cells = [(figures[name][over] / figures[name][under], bar) for _, over, under, bar in RATIOS]
        ratios.add_row(name, *(f"[{'red' if r > bar else 'green'}]{r:.3g}[/]" for r, bar in cells))
    if figures:
        sums = [
            (sum(f[over] for f in figures.values()) / sum(f[under] for f in figures.values()), bar)
            for _, over, under, bar in RATIOS
        ]
        ratios.add_section()
        ratios.add_row("sum / sum", *(f"[{'red' if r > bar else 'green'}]{r:.3g}[/]" for r, bar in sums))
    console.print(ratios)

    values = Table(title="Figures: ours | the peer | eager or bound", title_justify="left")
    values.add_column("model", no_wrap=True)
    for title in ("export CPU s", "compile CPU s", "load ms", "latency ms", "arena KB", "file KB"):
        values.add_column(title, justify="right", no_wrap=True)
    for name in order:
        f = figures[name]
        values.add_row(
            name,
            f"{f['export']:.2f}",
            f"{f['compile_ours']:.2f} | {f['compile_peer']:.2f}",
            f"{1e3 * f['load_ours']:.2f} | {1e3 * f['load_peer']:.2f}",
            " | ".join(_short(1e3 * f[k]) for k in ("latency_ours", "latency_peer", "latency_eager")),
            " | ".join(_short(f[k] / 1024) for k in ("arena_ours", "arena_peer", "arena_bound")),
            " | ".join(f"{f[k] / 1024:,.0f}" for k in ("file_ours", "file_peer")),
        )
    console.print(values)


def _short(value: float) -> str:
    """Formats a number with at least three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    raise SystemExit(main())
