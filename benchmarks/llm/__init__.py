# SPDX-License-Identifier: BSD-3-Clause
# In: a Llama with 135 million parameters and 4-bit or 8-bit weights, the same for all sides. Out: tokens per second of prefill and
# decode, time to the first token, load time and memory of Torchette and of other engines on this machine, as tables and a JSON
# file. Each side has a separate process, which is stopped while another side runs. An engine with a package has a separate virtual
# environment.
"""Language models: Torchette compared with ExecuTorch, llama.cpp, OpenVINO GenAI and ONNX Runtime GenAI, on one and two threads."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.llm.sides import SIDES
from benchmarks.models import ROOT
from benchmarks.peers import DISTURBED, _busy_seconds, _environment, _last_line, _run, make_environment

FOLDER = ROOT / ".torchette" / "llm"
RESULTS = ROOT / ".torchette" / "bench" / "llm.json"
# Measurement -> minimum ratio of Torchette to the best other engine.
MIN_RATIOS = {"decode 100": 1.10, "decode 500": 1.10, "prefill 128": 1.0, "prefill 512": 1.0}
MEMORY = 1.15  # maximum ratio of resident memory to the file size


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench llm", description=__doc__)
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 8], choices=(4, 8), metavar="N")
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE", help="all by default"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="default 1 2")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds per side (default: 7)")
    parser.add_argument("--convert", action="store_true", help="install and convert, without measurements")
    parser.add_argument(
        "--report", action="store_true", help="print the figures of the JSON file, without measurements"
    )
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="figures")
    options = parser.parse_args(arguments)
    figures: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    for bits in [] if options.report else options.bits:
        files, absent = _convert(bits, options.sides)
        if not options.convert:
            figures[f"{bits} bits"] = _measure(files, options) | {
                name: {"error": why} for name, why in absent.items()
            }
            figures["machine"] = _machine()
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if figures and not options.convert:
        print(_report(figures))
    return 0


def _machine() -> str:
    from torchette.cli import doctor

    return f"{doctor.cpu_name()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}"


def _python(name: str) -> Path:
    return FOLDER / "venv" / name / "bin" / "python" if SIDES[name].requires else Path(sys.executable)


def _convert(bits: int, names: list[str]) -> tuple[dict[str, Path], dict[str, str]]:
    """Returns the file of each side, and for a side without a file the reason. To convert again, remove the file."""
    folder = FOLDER / f"{bits}bit"
    if not (folder / "hf" / "model.safetensors").exists():
        packages = make_environment(FOLDER / "venv" / "model", ["--no-deps", "gguf==0.19.0"])
        command = [FOLDER / "venv" / "model" / "bin" / "python", "-m", "benchmarks.llm.model", folder, bits]
        if why := packages or _run(command, FOLDER / "model.log"):
            return {}, dict.fromkeys(names, f"no model: {why}")
    files, absent = {}, {}
    for name in names:
        side, python = SIDES[name], _python(name)
        why = make_environment(python.parents[1], side.requires) if side.requires else ""
        if not why and not (folder / side.file).exists():
            why = _run(
                [python, "-m", "benchmarks.llm.sides", "convert", name, folder, bits],
                FOLDER / f"{name}-{bits}.log",
            )
        if why:
            absent[name] = why
            print(f"{name}, {bits} bits: {why}", file=sys.stderr)
        else:
            files[name] = folder / side.file
    return files, absent


class Worker:
    """A process of a side that has loaded its file with a number of threads. It is stopped while other processes run."""

    def __init__(self, name: str, threads: int, path: Path) -> None:
        self.name, self.threads = name, threads
        self.turns: list[dict[str, float]] = []
        reading, writing = os.pipe()
        log = FOLDER / f"{name}-run.log"
        command = [_python(name), "-m", "benchmarks.llm.sides", "run", name, path, threads, writing]
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [*map(str, command)], cwd=ROOT, env=_environment(threads), stdin=subprocess.PIPE, stdout=errors,
                stderr=errors, text=True, pass_fds=(writing,),
            )  # fmt: skip
        os.close(writing)
        self._answer = os.fdopen(reading)
        ready = self._answer.readline()
        if not ready:
            self.process.wait()
            raise RuntimeError(_last_line(log))
        self.ready: dict[str, float] = json.loads(ready)
        self.process.send_signal(signal.SIGSTOP)

    def take_turn(self) -> None:
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        turn = {}
        for measurement in MIN_RATIOS:
            busy, begin, own_before = _busy_seconds(), time.perf_counter(), self._own_seconds()
            print(measurement, file=self.process.stdin, flush=True)
            turn[measurement] = float(self._answer.readline())
            other_seconds = _busy_seconds() - busy - (self._own_seconds() - own_before)
            turn[f"others {measurement}"] = other_seconds / (time.perf_counter() - begin)
        self.turns.append(turn)
        self.process.send_signal(signal.SIGSTOP)

    def _own_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def figures(self) -> dict[str, float]:
        """Returns tokens per second: the median over the undisturbed rounds, or the maximum if all were disturbed."""
        speeds = {}
        for measurement in MIN_RATIOS:
            clean = [turn[measurement] for turn in self.turns if turn[f"others {measurement}"] < DISTURBED]
            seconds = (
                statistics.median(clean) if len(clean) > 2 else min(turn[measurement] for turn in self.turns)
            )
            job, count = measurement.split()
            speeds[measurement] = (int(count) if job == "prefill" else 1) / seconds
        return speeds


def _start(name: str, path: Path, threads: list[int], workers: list[Worker]) -> str:
    """Adds a worker for each number of threads. Returns the error, or an empty text."""
    try:
        workers.extend(Worker(name, count, path) for count in threads)
    except RuntimeError as error:
        return str(error)
    return ""


def _measure(files: dict[str, Path], options: argparse.Namespace) -> dict[str, Any]:
    """Returns by side: its figures by number of threads, or its error."""
    workers: list[Worker] = []
    figures: dict[str, Any] = {}
    try:
        for name, path in files.items():
            why = _start(name, path, options.threads, workers)
            if why:
                figures[name] = {"error": why}
        for _ in range(options.rounds):
            for worker in workers:
                worker.take_turn()
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
    for worker in workers:
        side = figures.setdefault(worker.name, {"file": _bytes(files[worker.name]), "threads": {}})
        if "error" not in side:
            side["threads"][str(worker.threads)] = worker.ready | worker.figures()
    return figures


def _bytes(path: Path) -> int:
    return (
        sum(each.stat().st_size for each in path.iterdir() if "model" in each.name)
        if path.is_dir()
        else path.stat().st_size
    )


def _report(figures: dict[str, Any]) -> str:
    """Markdown."""
    lines = [figures.get("machine", "")]
    for bits, sides in figures.items():
        if bits == "machine":
            continue
        held = {name: side for name, side in sides.items() if "error" not in side}
        threads = sorted({count for side in held.values() for count in side["threads"]})
        lines += ["", f"Weights of {bits}", ""]
        for count in threads:
            columns = [
                *(f"{measurement} ({bar:g})" for measurement, bar in MIN_RATIOS.items()),
                "load ms",
                "first token ms",
            ]
            columns += ["MB resident", "of its file"]
            lines += [f"| threads: {count} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
            best = {
                measurement: max(
                    (side["threads"][count][measurement] for name, side in held.items() if name != "ours"),
                    default=0.0,
                )
                for measurement in MIN_RATIOS
            }
            for name, side in held.items():
                measured = side["threads"][count]
                cells = [f"{measured[measurement]:.0f}" for measurement in MIN_RATIOS]
                if name == "ours":
                    cells = [
                        f"{measured[measurement]:.0f}"
                        + (f" = {measured[measurement] / best[measurement]:.2f}" if best[measurement] else "")
                        for measurement in MIN_RATIOS
                    ]
                cells += [f"{1e3 * measured['load']:.0f}", f"{1e3 * measured['first']:.0f}"]
                cells += [f"{measured['memory'] / 1e6:.0f}", f"{measured['memory'] / side['file']:.2f}"]
                lines.append(f"| {name} | {' | '.join(cells)} |")
            lines.append("")
        lines += [f"{name}: {side['error']}" for name, side in sides.items() if "error" in side]
    return "\n".join(lines)
