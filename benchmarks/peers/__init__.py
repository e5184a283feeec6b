# SPDX-License-Identifier: BSD-3-Clause
# In: fifteen models in float32, some of them also in int8 and bfloat16. Out: latency, load time, first call, memory and error of the CPU engine, of
# the portable plan and of other inference engines on this machine, as ratios in a table and as figures in a JSON file. Each side
# has a separate process, which is stopped while another side runs. An engine with a package has a separate virtual environment.
"""Torchette compared with ExecuTorch with XNNPACK, ONNX Runtime, OpenVINO and LiteRT, on one and two threads, in alternating runs."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.models import ROOT
from benchmarks.peers import variants
from benchmarks.peers.sides import OURS, SIDES

FOLDER = ROOT / ".torchette" / "peers"
RESULTS = ROOT / ".torchette" / "bench" / "peers.json"
BUILD = ROOT / "build" / "dev"
TURN_SECONDS = 0.25
# Turns of each process; all models then need about 12 minutes.
ROUNDS, QUICK_ROUNDS = 7, 4
# The portable plan, which has no bar on its latency, is up to 50 times slower: three calls can exceed a turn.
PORTABLE_ROUNDS = 2
# Maximum load by other processes, in processors, during an undisturbed turn.
DISTURBED = 0.15
# Maximum error, relative to eager's maximum; a side with a larger error is not compared.
TOLERANCE = 1e-3
# Maximum time in which an engine converts a model.
CONVERSION_SECONDS = 300.0
# Bytes of memory that stay free for other processes.
SPARE_MEMORY = 3e9


def main(arguments: list[str] | None = None) -> int:
    from benchmarks.peers.report import print_tables

    parser = argparse.ArgumentParser(prog="./dev bench peers", description=__doc__)
    parser.add_argument(
        "--models", nargs="+", metavar="MODEL", help="all by default, in float32, int8 and bfloat16"
    )
    parser.add_argument(
        "--peers", nargs="+", choices=set(SIDES) - set(OURS), metavar="PEER", help="all by default"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="default 1 2")
    parser.add_argument("--isa", choices=("v1", "v3", "v4"), help="the maximum x86-64 level of Torchette")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds instead of {ROUNDS}")
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="measure CPU seconds instead of wall seconds, for a busy machine; one thread",
    )
    parser.add_argument("--convert", action="store_true", help="install and convert, without measurements")
    parser.add_argument(
        "--report", action="store_true", help="print the figures of the JSON file, without measurements"
    )
    parser.add_argument(
        "--json", type=Path, default=RESULTS, metavar="FILE", help="file of the figures; other runs add to it"
    )
    options = parser.parse_args(arguments)
    figures: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    if options.report:
        print_tables(figures)
        return 0

    from benchmarks.peers import models

    known = [*models.NAMES, *variants.NAMES]
    if unknown := set(options.models or ()) - set(known):
        parser.error(f"unknown models: {', '.join(sorted(unknown))}; known models: {', '.join(known)}")
    if options.cpu:
        options.threads = [1]
    sides = [name for name in SIDES if name in OURS or name in (options.peers or SIDES)]
    absent = {name: why for name in sides if (why := _install(name))}
    for name, why in absent.items():
        print(f"{name} is absent: {why}", file=sys.stderr)
    sides = [name for name in sides if name not in absent]
    for model in options.models or known:
        variant = variants.variant(model)
        able = variant.converters if variant else SIDES
        files, errors = _convert_all(model, [name for name in sides if name in able])
        if options.convert:
            continue
        results = _measure(model, files, options)
        results |= {name: {"error": why} for name, why in (errors | absent).items() if name in able}
        figures[model] = {"machine": _machine(options), "sides": results}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if not options.convert:
        print_tables({model: figures[model] for model in options.models or known})
        print(f"Figures: {options.json}")
    return 0


def _progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _machine(options: argparse.Namespace) -> dict[str, Any]:
    from torchette.cli import doctor

    return {
        "processor": doctor.cpu_name(),
        "level": options.isa or doctor.cpu_level(),
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "clock": "CPU" if options.cpu else "wall",
        "load": round(os.getloadavg()[0], 1),
    }


def _python(name: str) -> Path:
    return FOLDER / "venv" / name / "bin" / "python" if SIDES[name].requires else Path(sys.executable)


def _run(command: Iterable[Any], log: Path, seconds: float | None = None) -> str:
    """Runs a command at low priority, with its output in a log. Returns the error, or an empty text."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        try:
            done = subprocess.run(
                ["nice", "-n", "15", *map(str, command)],
                cwd=ROOT,
                env=_environment(2),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return f"no result after {seconds:g} s"
    return _last_line(log) if done.returncode else ""


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip(" ^~")]
    return (lines or ["no reason given"])[-1][:300]


def _environment(threads: int, isa: str | None = None) -> dict[str, str]:
    added = {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "HF_HUB_OFFLINE": "1",
    }
    return os.environ | added | ({"TORCHETTE_ISA": isa} if isa else {})


def _install(name: str) -> str:
    """Creates the environment of a side, or builds its runner, unless it exists. Returns the error, or an empty text."""
    side = SIDES[name]
    if side.native:
        return _build_ours() if name in OURS else _build_executorch()
    if not side.requires:
        return ""
    return make_environment(_python(name).parents[1], side.requires)


def make_environment(folder: Path, requires: Sequence[str]) -> str:
    """Creates a virtual environment with these packages and those of this one, unless it exists. Returns the error, or an empty
    text."""
    stamp, requirements = folder / "installed", "\n".join(requires)
    if stamp.exists() and stamp.read_text() == requirements:
        return ""
    _progress(f"installing {folder.name}")
    venv.create(folder, with_pip=True)
    # A conversion also needs torch and the models' packages, from this environment.
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    checkout = (sysconfig.get_path("purelib"), str(Path(sys.prefix) / "vision"))
    Path(paths["purelib"], "checkout.pth").write_text("\n".join(checkout) + "\n")
    constraint = f"torch=={importlib.metadata.version('torch').partition('+')[0]}"
    (folder / "constraints").write_text(constraint + "\n")
    command = [folder / "bin" / "python", "-m", "pip", "install", "-c", folder / "constraints", *requires]
    if why := _run(command, folder / "install.log"):
        return why
    stamp.write_text(requirements)
    return ""


def _runner(name: str) -> Path:
    return BUILD / "torchette_peers" if name in OURS else FOLDER / "executorch-runner"


def _build_ours() -> str:
    command = ["cmake", "--build", BUILD, "--target", "torchette_peers"]
    return _run(command, FOLDER / "build.log")


def _build_executorch() -> str:
    """Builds the runner with the library in ExecuTorch's package, which has no CMake target for its thread pool."""
    source, runner = Path(__file__).with_name("runner.cpp"), _runner("executorch")
    if runner.exists() and runner.stat().st_mtime > source.stat().st_mtime:
        return ""
    try:
        package = Path(str(importlib.metadata.distribution("executorch").locate_file("executorch")))
    except importlib.metadata.PackageNotFoundError as error:
        return str(error)
    include, library = package / "include", package / "lib"
    libraries = ("backend_xnnpack", "kernels_optimized", "kernels_quantized", "threadpool")
    command: list[Any] = ["g++", "-O2", "-std=c++17", "-w", "-DC10_USING_CUSTOM_GENERATED_MACROS"]
    command += ["-I", include, "-I", include / "executorch" / "runtime" / "core" / "portable_type" / "c10"]
    command += [source, "-o", runner, "-L", library, f"-Wl,-rpath,{library},--no-as-needed"]
    command += [*(f"-lexecutorch_{name}" for name in libraries), "-lexecutorch"]
    return _run(command, FOLDER / "executorch-runner.log")


def _hash(*parts: str | Path) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.read_bytes() if isinstance(part, Path) else part.encode())
    return digest.hexdigest()[:12]


def _convert_all(model: str, sides: list[str]) -> tuple[dict[str, Path], dict[str, str]]:
    """Converts a model for each side, unless a file of this model, these versions and, for Torchette, this compiler exists.

    Returns:
        The file of each side, and for a side without a file the reason.
    """
    from tests.models import zoo

    sources = [Path(__file__).with_name("models.py"), ROOT / "tests" / "models" / "zoo.py"]
    zoo.declare_torchvision_operators()  # adds timm to Python's path
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "timm", "transformers")]
    if variants.variant(model):
        sources.append(Path(variants.__file__))
    key = _hash(*sources, *versions)
    inputs = FOLDER / model / f"inputs-{key}"
    worker = ["-m", "benchmarks.peers.worker"]
    if not (inputs / "inputs").exists():
        _progress(f"{model}: eager")
        inputs.mkdir(parents=True, exist_ok=True)
        if why := _run(
            [sys.executable, *worker, "inputs", "-", model, inputs], FOLDER / model / "inputs.log"
        ):
            return {}, dict.fromkeys(sides, why)
    files, errors = {"inputs": inputs}, {}
    compiler = sorted((ROOT / "torchette").rglob("*.py"))
    for name in sides:
        side = SIDES[name]
        if not side.file:
            files[name] = FOLDER / model / name
            continue
        parts: list[str | Path] = [key, Path(__file__).with_name("sides.py"), *side.requires]
        parts += compiler if name in OURS else [importlib.metadata.version("executorch")] * side.native
        folder = FOLDER / model / f"{name}-{_hash(*parts)}"
        file, failed = folder / side.file, folder / "failed"
        # A failure of Torchette may be due to an incomplete build, so it is tried again. Another engine would fail again, after
        # minutes.
        if not file.exists() and (name in OURS or not failed.exists()):
            _progress(f"{model}: converting for {name}")
            folder.mkdir(parents=True, exist_ok=True)
            command = [_python(name), *worker, "convert", name, model, file]
            if side.source:
                command += [files[side.source]] if side.source in files else []
            if why := _run(command, folder / "convert.log", CONVERSION_SECONDS):
                file.unlink(missing_ok=True)
                failed.write_text(why)
        if file.exists():
            files[name] = file
        else:
            errors[name] = f"not converted: {failed.read_text()}"
            _progress(f"{model}: {name} {errors[name]}; to try again, remove {folder}")
    return files, errors


class Worker:
    """A process of a side that has loaded its file with a number of threads. It is stopped while other processes run."""

    def __init__(self, name: str, threads: int, files: dict[str, Path], isa: str | None) -> None:
        self.name, self.threads = name, threads
        self.turns: list[dict[str, float]] = []
        arguments = [files[name], threads, files["inputs"]]
        command = (
            [_runner(name)]
            if SIDES[name].native
            else [_python(name), "-m", "benchmarks.peers.worker", "run", name]
        )
        with tempfile.TemporaryDirectory() as results, tempfile.NamedTemporaryFile("w+") as log:
            self.process = subprocess.Popen(
                [*map(str, command), *map(str, arguments), results],
                cwd=ROOT,
                env=_environment(threads, isa if name in OURS else None),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            assert self.process.stdin is not None and self.process.stdout is not None
            self._ask, self._answer = self.process.stdin, self.process.stdout
            ready = self._answer.readline()
            if not ready:
                self.process.wait()
                raise RuntimeError(_last_line(Path(log.name)))
            self.ready: dict[str, float] = json.loads(ready)
            self.ready["error"] = _difference(files["inputs"], Path(results))
        self.process.send_signal(signal.SIGSTOP)

    def take_turn(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        busy, begin = _busy_seconds(), time.perf_counter()
        print(TURN_SECONDS, file=self._ask, flush=True)
        turn = json.loads(self._answer.readline())
        elapsed, own_seconds = time.perf_counter() - begin, turn["cpu"] * turn["calls"]
        turn["others"] = max(0.0, _busy_seconds() - busy - own_seconds) / elapsed
        self.turns.append(turn)
        self.process.send_signal(signal.SIGSTOP)

    def figures(self, cpu: bool) -> dict[str, float]:
        """Returns the seconds of a call: the median over the undisturbed turns, and the minimum over all turns."""
        clean = [turn for turn in self.turns if turn["others"] < DISTURBED]
        counted = clean or sorted(self.turns, key=lambda turn: turn["others"])[:2]
        latency = statistics.median(turn["cpu" if cpu else "median"] for turn in counted)
        least = min(turn["cpu" if cpu else "least"] for turn in self.turns)
        return {"latency": latency, "least": least, "clean": len(clean), "turns": len(self.turns)}

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def _busy_seconds() -> float:
    """Returns the processor seconds of all processes."""
    user, nice, system, _, _, *remaining = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + sum(remaining)) / os.sysconf("SC_CLK_TCK")


def _free_memory() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def _difference(inputs: Path, results: Path) -> float:
    """Returns the maximum difference of all results from eager, relative to eager's maximum."""
    import numpy as np

    worst = 0.0
    for path in sorted(inputs.glob("out*")):
        expected, actual = np.fromfile(path, np.float32), np.fromfile(results / path.name, np.float32)
        if expected.shape != actual.shape:
            return math.inf
        worst = max(worst, float(np.abs(actual - expected).max() / np.abs(expected).max()))
    return worst


def _measure(model: str, files: dict[str, Path], options: argparse.Namespace) -> dict[str, Any]:
    """Returns by side: its figures, with those of a call by number of threads, or its error."""
    figures: dict[str, Any] = {}
    workers: list[Worker] = []
    names = [name for name in SIDES if name in files]
    variant = variants.variant(model)
    tolerance = variant.tolerance if variant else TOLERANCE
    _progress(f"{model}: loading")
    try:
        for name in names:
            started, why = _start(name, files, options, tolerance)
            workers += started
            if why:
                figures[name] = {"error": why}
        _progress(f"{model}: {len(workers)} processes in turns")
        for turn in range(QUICK_ROUNDS if options.quick else ROUNDS):
            for worker in workers:
                if worker.name != "portable" or turn < PORTABLE_ROUNDS:
                    worker.take_turn()
    finally:
        for worker in workers:
            worker.end()
    for name in [name for name in names if name not in figures]:
        mine = [worker for worker in workers if worker.name == name]
        figures[name] = {
            # The minimum over the processes: the cost of a load or a first call without disturbance.
            **{key: min(worker.ready[key] for worker in mine) for key in ("load", "first")},
            "memory": mine[0].ready["memory"],
            "error_of_eager": max(worker.ready["error"] for worker in mine),
            "file": _file_bytes(name, files[name]),
            "planned": _planned_bytes(files[name]) if name in OURS else None,
            "threads": {str(worker.threads): worker.figures(options.cpu) for worker in mine},
        }
    return figures


def _start(
    name: str, files: dict[str, Path], options: argparse.Namespace, tolerance: float
) -> tuple[list[Worker], str]:
    """Returns a worker for each number of threads, and an empty text; or no workers, and the error."""
    workers: list[Worker] = []
    try:
        for threads in options.threads:
            if _free_memory() < SPARE_MEMORY + 3 * _file_bytes(name, files[name]):
                raise RuntimeError("not enough free memory to load it together with the others")
            workers.append(Worker(name, threads, files, options.isa))
            if not workers[-1].ready["error"] < tolerance:
                raise RuntimeError(f"differs from eager by {workers[-1].ready['error']:.1e}")
    except (RuntimeError, OSError) as error:
        for worker in workers:
            worker.end()
        return [], str(error)
    return workers, ""


def _file_bytes(name: str, path: Path) -> int:
    """Returns the bytes of the file and of the files that it needs."""
    return sum(p.stat().st_size for p in path.parent.glob(f"{path.stem}.*")) if SIDES[name].file else 0


def _planned_bytes(path: Path) -> int:
    from benchmarks.models import _arena_bytes
    from torchette.format import pte

    return _arena_bytes(pte.read(path.read_bytes()))
