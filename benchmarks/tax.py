# SPDX-License-Identifier: BSD-3-Clause
# In: a model of 1,000 one-element additions, compiled by both compilers. Out: the cost of the runtime per instruction, for Torchette
# and for ExecuTorch, from one C++ source that is built with both.
"""The overhead of the runtime: opening, loading and dispatching, per instruction, compared with ExecuTorch's libraries."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "dev"  # built by ./dev setup: the libraries of users
COUNT = 1000


class Row(NamedTuple):
    """A row of the table: name, unit, goal, and the figures of the two sides."""

    name: str
    unit: str
    goal: float
    ours: float
    peer: float | None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench tax", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=300)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        rows, note = measure(Path(name), options.repetitions)
    print(f"{'framework tax':56}{'goal':>8}{'ours':>10}{'peer':>10}{'ours/peer':>11}")
    for row in rows:
        peer, ratio = ("-", "-") if row.peer is None else (f"{row.peer:.4g}", f"{row.ours / row.peer:.2g}")
        mark = "" if row.ours <= row.goal else "  over the goal"
        print(f"{row.name + ', ' + row.unit:56}{row.goal:8g}{row.ours:10.4g}{peer:>10}{ratio:>11}{mark}")
    if note:
        print(note, file=sys.stderr)
    return 0


def measure(folder: Path, repetitions: int) -> tuple[list[Row], str]:
    """Returns the rows, and the reason if the peer's column is empty.

    Both runtimes read the same files: those of the peer's compiler if it is installed. File sizes are those of each compiler's own
    files.

    Raises:
        subprocess.CalledProcessError: the side of Torchette does not build or run.
    """
    files, note = write_models(folder)
    chain, single = (files.get(f"peer_{n}", files[f"ours_{n}"]) for n in ("chain", "single"))
    ours = {kind: build(folder, kind, _our_flags(kind)) for kind in ("noop", "add")}
    peer: dict[str, Path] = {}
    if not note:
        try:
            peer = {kind: build(folder, f"peer_{kind}", _peer_flags(kind)) for kind in ("noop", "add")}
            run(peer["noop"], chain, COUNT, 1)
        except subprocess.CalledProcessError as error:
            peer, note = {}, f"ExecuTorch is omitted, because its side does not build: {error.stderr[-300:]}"

    def both(kind: str, file: Path, count: int, figure: str, scale: float) -> tuple[float, float | None]:
        our_figure = run(ours[kind], file, count, repetitions)[figure] / scale
        return our_figure, run(peer[kind], file, count, repetitions)[figure] / scale if peer else None

    sizes = {
        side: files[f"{side}_chain"].stat().st_size / COUNT
        for side in ("ours", "peer")
        if f"{side}_chain" in files
    }
    rows = [
        Row("dispatch", "ns / instruction", 2.5, *both("noop", chain, COUNT, "execute", COUNT)),
        Row("one-element add in all", "ns", 10, *both("add", chain, COUNT, "execute", COUNT)),
        Row(
            "load of a method, a file of Torchette's compiler",
            "ns / instruction",
            40,
            *both("noop", files["ours_chain"], COUNT, "load", COUNT),
        ),
        Row(
            "load, with all kernels registered",
            "ns / instruction",
            40,
            *both("add", chain, COUNT, "load", COUNT),
        ),
        Row("open with verification", "ns / instruction", 40, *both("noop", chain, COUNT, "verify", COUNT)),
        Row("method memory", "bytes / instruction", 100, *both("noop", chain, COUNT, "arena", COUNT)),
        Row("file", "bytes / instruction", 110, sizes["ours"], sizes.get("peer")),
        Row("execute of one instruction", "ns", 200, *both("noop", single, 1, "execute", 1)),
        _traced(run(ours["noop"], chain, COUNT, repetitions)),
        *_counted(folder, chain),
    ]
    if "peer_chain" in files:
        load = both("noop", files["peer_chain"], COUNT, "load", COUNT)
        rows.insert(
            3, Row("load of a method, a file of ExecuTorch's compiler", "ns / instruction", 40, *load)
        )
    return rows, note


def _traced(figures: dict[str, float]) -> Row:
    """Returns the cost of an event of an ETDump per instruction; two readings of the system's clock cost `clock`."""
    cost = (figures["traced"] - figures["execute"]) / COUNT
    return Row(f"event of an ETDump (clock read twice: {figures['clock']:.3g} ns)", "ns", 50, cost, None)


def _counted(folder: Path, chain: Path) -> list[Row]:
    """Returns the processor instructions of the loop by callgrind, for builds with and without tracing; empty without callgrind.

    Both are an execution of 1,000 empty kernels; it includes a few instructions before the loop.
    """
    if shutil.which("valgrind") is None:
        return []
    rows = []
    for tracing in (1, 0):
        sources = [path for path in (ROOT / "torchette/runtime").glob("*.cpp") if "minimal" not in path.stem]
        sources += [ROOT / f"torchette/extension/{name}.cpp" for name in ("etdump", "data_sink")]
        flags = [f"-DTORCHETTE_EVENT_TRACER={tracing}", "-DNOOP_KERNEL", *_includes(), *map(str, sources)]
        program = build(folder, f"tracing_{tracing}", [*flags, "-lpthread"])
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder / 'callgrind'}"]
        command += [
            "--toggle-collect=torchette::Method::execute()",
            str(program),
            str(chain),
            str(COUNT),
            "1",
            "untraced",
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        count = int(done.stderr.split("Collected :")[1].split()[0]) / 5  # executions
        name = f"dispatch and an empty kernel, a build {'with' if tracing else 'without'} tracing"
        rows.append(Row(name, "processor instructions", 27, count / COUNT, None))
    return rows


def write_models(folder: Path) -> tuple[dict[str, Path], str]:
    """Returns the files of both compilers, by names such as `ours_chain`, and the reason if the peer has none."""
    import torch

    from torchette.exir import to_edge

    class Chain(torch.nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            for _ in range(self.count):
                x = torch.add(x, y)
            return x

    compilers = {"ours": to_edge}
    note = ""
    if importlib.util.find_spec("executorch") is None:
        note = "ExecuTorch is omitted: pip install executorch==1.5.1"
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from executorch.exir import to_edge as peer_to_edge
        compilers["peer"] = peer_to_edge
    files = {}
    for name, count in (("chain", COUNT), ("single", 1)):
        for side, compile_ in compilers.items():
            program = torch.export.export(Chain(count), (torch.ones(1), torch.ones(1)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                files[f"{side}_{name}"] = folder / f"{side}_{name}.pte"
                files[f"{side}_{name}"].write_bytes(compile_(program).to_executorch().buffer)
    return files, note


def build(folder: Path, name: str, flags: list[str]) -> Path:
    """Compiles the benchmark with these flags."""
    target = folder / name
    compiler = os.environ.get("CXX", "c++")
    command = [
        compiler,
        "-std=c++17",
        "-O2",
        "-w",
        str(ROOT / "benchmarks" / "tax.cpp"),
        *flags,
        "-o",
        str(target),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


def _includes() -> list[str]:
    generated = BUILD / "generated"
    return [f"-I{ROOT}", f"-I{generated}", f"-I{generated / 'torchette' / 'extension' / 'compat'}"]


def _our_flags(kind: str) -> list[str]:
    flags = _includes()
    libraries = [str(BUILD / "libtorchette_core.a"), str(BUILD / "libtorchette_extension.a")]
    if kind == "noop":
        flags.append("-DNOOP_KERNEL")
    else:
        libraries.append(str(BUILD / "libtorchette_kernels.a"))
    return [*flags, "-Wl,--start-group", *libraries, "-Wl,--end-group", "-lpthread", "-ldl"]


def _peer_flags(kind: str) -> list[str]:
    spec = importlib.util.find_spec("executorch")
    assert spec is not None and spec.submodule_search_locations
    package = Path(next(iter(spec.submodule_search_locations)))
    include, lib = package / "include", package / "lib"
    flags = [
        *(f"-I{include}", f"-I{include}/executorch/runtime/core/portable_type/c10"),
        *(
            "-DC10_USING_CUSTOM_GENERATED_MACROS",
            f"-L{lib}",
            f"-Wl,-rpath,{lib}",
            "-Wl,--no-as-needed",
            "-lexecutorch",
        ),
    ]
    if kind == "noop":
        return [*flags, "-DNOOP_KERNEL"]
    return [*flags, "-lexecutorch_kernels_optimized", "-lexecutorch_threadpool"]


def run(program: Path, file: Path, count: int, repetitions: int) -> dict[str, float]:
    """Returns the figures of one side."""
    command = [str(program), str(file), str(count), str(repetitions)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {
        name: float(value) for name, value in map(str.split, done.stdout.splitlines()) if name != "result"
    }


if __name__ == "__main__":
    sys.exit(main())
