# SPDX-License-Identifier: BSD-3-Clause
# In: the networks of tests/models/architectures.py. Out: the latency of the CPU engine's plan relative to the portable plan, and the
# bytes of both, worst first. Each network runs in a separate process. Figures are stored, so an interrupted run can continue.
"""The CPU engine's plan compared with the portable plan on every network of the zoo, in alternating runs, on one and two threads."""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.models import ROOT, _arena_bytes

RESULTS = ROOT / ".torchette" / "bench" / "zoo.json"
BACKENDS = ("cpu", "portable")
TURN_SECONDS = 0.02


def main(arguments: list[str] | None = None) -> int:
    from tests.models import architectures

    parser = argparse.ArgumentParser(prog="./dev bench zoo", description=__doc__)
    parser.add_argument("networks", nargs="*", help="words of names; default: all")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="default 1 2")
    parser.add_argument("--quick", action="store_true", help="5 turns of each instead of 25")
    parser.add_argument("--again", action="store_true", help="measure networks again that have figures")
    parser.add_argument(
        "--json", type=Path, default=RESULTS, metavar="FILE", help="figures; a later run adds to them"
    )
    parser.add_argument("--measure", metavar="NETWORK", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        json.dump(measure(options.measure, options.threads, 5 if options.quick else 25), sys.stdout)
        return 0
    figures: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    names = [
        name
        for name in architectures.NAMES
        if not options.networks or any(word in name for word in options.networks)
    ]
    version = _version()
    for count, name in enumerate(names, 1):
        if not options.again and figures.get(name, {}).get("version") == version:
            continue
        command = [sys.executable, "-m", "benchmarks", "zoo", "--measure", name]
        command += ["--threads", *map(str, options.threads), *["--quick"] * options.quick]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
        }
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            figures[name] = {"error": reason}
            print(f"{count}/{len(names)} {name}: {reason}", flush=True)
        else:
            figures[name] = json.loads(done.stdout.splitlines()[-1]) | {"version": version}
            print(f"{count}/{len(names)} {name}: {_worst(figures[name]):.2f}", flush=True)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    _print_table({name: figures[name] for name in names if name in figures})
    return 0


def _version() -> str:
    """Returns a hash of the compiler and the kernels."""
    digest = hashlib.sha256()
    for path in sorted(
        p for p in (ROOT / "torchette").rglob("*") if p.suffix in (".py", ".cpp", ".h", ".def")
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def measure(name: str, threads: list[int], turns: int) -> dict[str, Any]:
    """Returns the bytes of file and plan, and by number of threads the minimum seconds of a call, of both plans."""
    import torchette
    from tests.models import architectures
    from torchette.format import pte
    from torchette.runtime import Runtime

    module, args = architectures.build(name)
    figures: dict[str, Any] = {"file": {}, "planned": {}, "seconds": {}}
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for backend in BACKENDS:
            paths[backend] = torchette.compile(module, args, backend=backend).save(Path(folder, backend))
            data = paths[backend].read_bytes()
            figures["file"][backend] = len(data)
            figures["planned"][backend] = _arena_bytes(pte.read(data))
        for count in threads:
            calls = {}
            for backend in BACKENDS:
                program = Runtime.get().load_program(paths[backend])
                calls[backend] = program.load_method("forward", threads=count).execute
            figures["seconds"][str(count)] = _least(calls, args, turns)
    return figures


def _least(calls: dict[str, Any], args: tuple[Any, ...], turns: int) -> dict[str, float]:
    """Returns the minimum seconds of a call of each plan; the calls alternate."""
    least = dict.fromkeys(calls, float("inf"))
    clock = time.perf_counter
    gc.collect()
    gc.disable()
    for _ in range(turns):
        for name, call in calls.items():
            end = clock() + TURN_SECONDS
            while True:
                begin = clock()
                call(args)
                now = clock()
                least[name] = min(least[name], now - begin)
                if now > end:
                    break
    gc.enable()
    return least


def _ratio(figures: dict[str, float]) -> float:
    return figures["cpu"] / figures["portable"]


def _worst(figures: dict[str, Any]) -> float:
    return max(map(_ratio, figures["seconds"].values()))


def _print_table(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from torchette.cli import doctor

    console = Console(highlight=False) if sys.stdout.isatty() else Console(width=150, highlight=False)
    measured = {name: f for name, f in figures.items() if "seconds" in f}
    threads = sorted({t for f in measured.values() for t in f["seconds"]}, key=int)
    title = f"The CPU engine : the portable plan, {len(measured)} networks; {doctor.cpu_name()}, {doctor.cpu_level()}"
    table = Table("network", title=title, title_justify="left")
    for t in threads:
        table.add_column(f"ms, {t} thread{'s' * (t != '1')}", justify="right", no_wrap=True)
        table.add_column("ratio\n(1)", justify="right")
    for column in ("planned KB", "ratio\n(1)", "file KB", "ratio\n(1.02)"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in sorted(measured, key=lambda name: _worst(measured[name]), reverse=True):
        cells = []
        for t in threads:
            seconds = measured[name]["seconds"].get(t)
            cells += _pair(seconds, 1e3, 1.0) if seconds else ["", ""]
        table.add_row(
            name,
            *cells,
            *_pair(measured[name]["planned"], 1 / 1024, 1.0),
            *_pair(measured[name]["file"], 1 / 1024, 1.02),
        )
    console.print(table)
    for t in threads:
        slower = sum(_ratio(f["seconds"][t]) > 1 for f in measured.values() if t in f["seconds"])
        console.print(
            f"Slower than the portable plan with {t} thread{'s' * (t != '1')}: {slower} of {len(measured)}"
        )
    for name, f in figures.items():
        if "error" in f:
            console.print(f"[red]{name}[/]: {f['error']}")


def _pair(figures: dict[str, float], unit: float, bar: float) -> list[str]:
    ratio = _ratio(figures)
    values = " : ".join(f"{figures[backend] * unit:.3g}" for backend in BACKENDS)
    return [values, f"[{'red' if ratio > bar else 'green'}]{ratio:.2f}[/]"]
