# SPDX-License-Identifier: BSD-3-Clause
# Runs every reference model with every backend and precision through the C++ runner. For the given models, prints
# tables with the distance of each file from torch and the reasons of rejections. Exits with status 1 if a distance
# exceeds its limit.
"""Models x precisions x backends, through `executor_runner`.

Each network is converted to a precision, captured once, and compiled for each backend. A cell is the maximum difference
between the output of the runner and the output of torch for the captured network, relative to torch's largest output.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import torchette
from tests.backends.vulkan.device import has_device
from tests.models import trained, zoo
from torchette.devtools.bundle import BundledProgram, MethodTestCase, MethodTestSuite
from torchette.devtools.inspector.comparison import signal_to_noise
from torchette.errors import TorchetteError
from torchette.runtime import Runtime

RUNNER = Path(__file__).resolve().parents[2] / "build" / "dev" / "executor_runner"


class Backend(NamedTuple):
    """A column of the table.

    Attributes:
        option: the `backend` argument of `torchette.compile`.
        delegates: delegates that the file may contain.
        bundled: whether the runner compares the output with a test case in the file.
        precisions: supported precisions; empty for all.
        float16_errors: limit for float16 in units of torch's error, if the backend computes in float16.
    """

    option: str | list[str]
    delegates: Sequence[str] = ()
    bundled: bool = False
    precisions: Sequence[str] = ()
    float16_errors: int | None = None


_SOME = ("float32", "int8 static")
BACKENDS = {
    "portable": Backend("portable"),
    "cpu": Backend("cpu"),
    # XNNPACK accumulates depthwise convolutions in float16 (2048 plus 24 ones is 2060) and rounds hardswish and
    # hardsigmoid several times: each has 2 to 3 times torch's error. MobileNetV3-small has 7.8 times torch's error
    # here, and 5.2 times in the file of ExecuTorch's compiler with the same library.
    "xnnpack": Backend("xnnpack", ["XnnpackBackend"], float16_errors=9),
    "vulkan": Backend("vulkan", ["VulkanBackend"]),
    "xnnpack, cpu": Backend(["xnnpack", "cpu"], ["XnnpackBackend"], precisions=_SOME),
    "xnnpack, vulkan": Backend(["xnnpack", "vulkan"], ["XnnpackBackend", "VulkanBackend"], precisions=_SOME),
    "bundled": Backend("cpu", bundled=True, precisions=_SOME),
}


def _to(dtype: torch.dtype) -> Callable[[nn.Module, tuple[Tensor, ...]], Any]:
    return lambda module, args: copy.deepcopy(module).to(dtype)


def _recipe(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], Any]:
    prepared = trained.by_recipe(name)
    return lambda module, args: prepared(trained.Trained(module, [args], [args]))["module"]


class Precision(NamedTuple):
    """How a network is converted, and the maximum distance of a file from it, relative to its largest output.

    In float32, only the order of sums differs. If values are rounded to 8 bits, a different rounding of one step
    propagates to the output: a file beyond the limit must be as close to the float64 network as torch is, see
    `ERRORS_OF_8_BITS`. In 16 bits, the limit is `ERRORS_OF_16_BITS` times the measured error of torch (bound None)."""

    apply: Callable[[nn.Module, tuple[Tensor, ...]], Any]
    bound: float | None
    dtype: torch.dtype = torch.float32
    rounds: bool = False  # values between operators are rounded to 8 bits


# If a batch norm is folded, our weights are rounded to 16 bits after folding, torch's weights before. Both round each
# weight once, so neither is closer to the float64 network by design. Because the maximum over few outputs varies much,
# a file may have twice torch's error, and its distance from torch is then at most 2 + 1 of these errors.
ERRORS_OF_16_BITS = 3
# If the file and torch's quantized network have the same error against float64, they are at most twice this error apart.
# The noise is the root mean square error; it varies less than the maximum error.
ERRORS_OF_8_BITS = 2
NOISE = 1.25
PRECISIONS = {
    "float32": Precision(lambda module, args: module, 1e-4),
    "float16": Precision(_to(torch.float16), None, torch.float16),
    "bfloat16": Precision(_to(torch.bfloat16), None, torch.bfloat16),
    "float16 weights": Precision(_recipe("float16"), None),
    "bfloat16 weights": Precision(_recipe("bfloat16"), None),
    "int8 static": Precision(_recipe("int8"), 1e-1, rounds=True),
    "int8 dynamic": Precision(_recipe("int8-dynamic"), 5e-2, rounds=True),
    "8da4w": Precision(_recipe("8da4w"), 5e-2, rounds=True),
    "int8 weights": Precision(_recipe("int8-weight-only"), 1e-4),
    "int4 weights": Precision(_recipe("int4-weight-only"), 1e-4),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """The result of one file.

    Attributes:
        difference: difference of its output; None if there is no output.
        why: the reason of a rejection or failure.
        alone: whether no delegate accepted anything, so that the file equals the portable one.
    """

    difference: float | None = None
    why: str = ""
    alone: bool = False
    bound: float = 0.0

    @property
    def good(self) -> bool:
        return self.difference is not None and self.difference <= self.bound  # false for NaN

    @property
    def text(self) -> str:
        if self.difference is None:
            return "-"
        return f"{self.difference:.1e}{'*' if self.alone else ''}{'' if self.good else ' BAD'}"


class Row(NamedTuple):
    """A model in one precision: signal-to-noise ratio of torch against float32 in dB, and a cell for each backend."""

    model: str
    precision: str
    decibels: float
    cells: dict[str, Cell]


def rows(model: str, precisions: Sequence[str], backends: Sequence[str]) -> tuple[list[Row], float]:
    """Measures one model: built once, captured per precision, compiled per backend. Returns rows and CPU seconds."""
    start = sum(os.times()[:4])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    library = zoo.declare_torchvision_operators()  # noqa: F841
    module, args = zoo.build(model)
    float32 = _outputs(module, args)
    exact = _outputs(copy.deepcopy(module).double(), _as(torch.float64, args))
    results = [_row(model, precision, module, args, float32, exact, backends) for precision in precisions]
    return results, sum(os.times()[:4]) - start


def _row(
    model: str,
    name: str,
    module: nn.Module,
    args: tuple[Tensor, ...],
    float32: Tensor,
    exact: Tensor,
    backends: Sequence[str],
) -> Row:
    precision = PRECISIONS[name]
    chosen = [
        backend
        for backend in backends
        if not BACKENDS[backend].precisions or name in BACKENDS[backend].precisions
    ]
    try:
        args = _as(precision.dtype, args)
        program = torch.export.export(precision.apply(module, args), args)
    except Exception as error:  # includes errors of torch and torchao
        return Row(model, name, float("nan"), dict.fromkeys(chosen, Cell(why=_first_line(str(error)))))
    expected = _outputs(program.module(), args)
    decibels = (
        signal_to_noise(float32.double().numpy(), expected.double().numpy()) if name != "float32" else np.inf
    )
    error, noise = distance(expected, exact), _noise(expected, exact)
    cells = {}
    for backend in chosen:
        bound = _bound(BACKENDS[backend], precision, error)
        cell, output = _cell(BACKENDS[backend], program, args, expected, bound)
        if precision.rounds and output is not None and _noise(output, exact) > NOISE * noise:
            cell = dataclasses.replace(cell, bound=precision.bound)
        cells[backend] = cell
    print(
        f"  {model}, {name}: {', '.join(f'{backend} {cell.text}' for backend, cell in cells.items())}",
        file=sys.stderr,
    )
    return Row(model, name, float(decibels), cells)


def _bound(backend: Backend, precision: Precision, error: float) -> float:
    """Returns the maximum distance of a file from torch. `error` is torch's distance from the float64 network."""
    if precision.bound is not None:
        return max(precision.bound, ERRORS_OF_8_BITS * error) if precision.rounds else precision.bound
    computes = precision.dtype is torch.float16 and backend.float16_errors
    return (computes or ERRORS_OF_16_BITS) * error


def _as(dtype: torch.dtype, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(arg.to(dtype) if arg.is_floating_point() else arg for arg in args)


def distance(actual: Tensor, expected: Tensor) -> float:
    """Returns the maximum difference of two outputs, relative to the largest expected element."""
    return ((actual.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


def _noise(actual: Tensor, exact: Tensor) -> float:
    return (actual.double() - exact.double()).square().mean().sqrt().item()


def _outputs(module: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
    with torch.no_grad():
        return copy.deepcopy(module)(*args)  # a decoder writes to its cache


def _cell(
    backend: Backend, program: Any, args: tuple[Tensor, ...], expected: Tensor, bound: float
) -> tuple[Cell, Tensor | None]:
    """Compiles and runs a program. Returns the cell, and the output unless the runner compared it."""
    try:
        compiled = torchette.compile(program, backend=backend.option)
    except TorchetteError as error:
        return Cell(why=_first_line(str(error))), None
    except Exception as error:
        return Cell(why=f"FAILED: {type(error).__name__}: {_first_line(str(error))}"), None
    alone = bool(backend.delegates) and not any(
        name.encode() in bytes(compiled) for name in backend.delegates
    )
    with tempfile.TemporaryDirectory(prefix="torchette-matrix-") as folder:
        path = compiled.save(Path(folder, "model.pte"))
        try:
            if backend.bundled:
                _judged(path, args, expected, bound)
                return Cell(0.0, alone=alone, bound=bound), None
            output = _read(path, args, expected)
        except (RuntimeError, OSError) as error:
            return Cell(why=f"FAILED: {_first_line(str(error))}", alone=alone), None
    return Cell(distance(output, expected), alone=alone, bound=bound), output


def _read(path: Path, args: tuple[Tensor, ...], expected: Tensor) -> Tensor:
    """Returns the output. Files are `.npy`, or raw bytes for dtypes that numpy does not support."""
    suffix = ".bin" if expected.dtype == torch.bfloat16 else ".npy"
    inputs = [path.with_name(f"input{place}{suffix}") for place in range(len(args))]
    for file, arg in zip(inputs, args):
        if suffix == ".npy":
            np.save(file, arg.numpy())
        else:
            file.write_bytes(arg.contiguous().view(torch.uint8).numpy().tobytes())
    _run(path, "--inputs", ",".join(map(str, inputs)), "--output_file", str(path.with_name("out")))
    output = path.with_name(f"out-0{suffix}")
    if suffix == ".npy":
        tensor = torch.from_numpy(np.load(output))
    else:
        tensor = torch.frombuffer(bytearray(output.read_bytes()), dtype=expected.dtype).view(expected.shape)
    if tensor.dtype != expected.dtype or tensor.shape != expected.shape:
        raise RuntimeError(
            f"{tensor.dtype} {list(tensor.shape)} is not {expected.dtype} {list(expected.shape)}"
        )
    return tensor


def _judged(path: Path, args: tuple[Tensor, ...], expected: Tensor, bound: float) -> None:
    """Lets the runner compare the output.

    Raises:
        RuntimeError: it exceeds the bound.
    """
    suite = MethodTestSuite("forward", [MethodTestCase(args, expected)])
    bundle = path.with_suffix(".bpte")
    bundle.write_bytes(BundledProgram(None, [suite], path).serialize())
    most = bound * expected.double().abs().max().item()
    _run(bundle, "--bundleio_rtol", "0", "--bundleio_atol", f"{most:.9g}")


def _run(path: Path, *more: str) -> None:
    command = [str(RUNNER), "--model_path", str(path), "--print_output", "none", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"executor_runner ended with {done.returncode}")


def _first_line(text: str) -> str:
    return (
        re.sub(r"\S*/torchette-matrix-\w+/", "", text.strip().splitlines()[0])[:160]
        if text.strip()
        else "no reason"
    )


# ---- tables ----


def table(rows: Sequence[Row], backends: Sequence[str]) -> str:
    """Formats a line for each row, followed by the rejections with their reasons."""
    lines = [["model", "precision", "dB", *backends]]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        decibels = "" if row.precision == "float32" else f"{row.decibels:.1f}"
        lines.append(
            [
                row.model,
                row.precision,
                decibels,
                *(row.cells[b].text if b in row.cells else "" for b in backends),
            ]
        )
        for name, cell in row.cells.items():
            if cell.why:
                reasons.setdefault(cell.why, []).append(f"{row.model}, {row.precision}, {name}")
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    for why, where in reasons.items():
        drawn += ["", why, *(f"  - {place}" for place in where)]
    return "\n".join(drawn)


def missing() -> dict[str, str]:
    """Returns backends that this machine cannot run -> reason."""
    registry = Runtime.get().backend_registry
    lacks = {} if has_device() else {"VulkanBackend": "no Vulkan device (./dev tools)"}
    if not registry.is_available("XnnpackBackend"):
        lacks["XnnpackBackend"] = "no XNNPACK backend (./dev xnnpack)"
    return {
        name: lacks[delegate]
        for name, backend in BACKENDS.items()
        for delegate in backend.delegates
        if delegate in lacks
    }


# Slowest models first, so that all processors finish at about the same time.
_LONGEST = ["llama", "lstm", "gru", "minilm", "efficientnet_b0", "vit_tiny", "mobilenet_v3_small"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev matrix", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(zoo.names())}")
    for name, values in (("precision", PRECISIONS), ("backend", BACKENDS)):
        parser.add_argument(
            f"--{name}",
            action="append",
            choices=list(values),
            help="one of them; may be repeated (default: all)",
        )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count(),
        help="number of models in parallel (default: number of processors)",
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.models if name not in zoo.names()]:
        parser.error(f"unknown model {unknown[0]}; available: {', '.join(zoo.names())}")
    start = time.monotonic()
    left_out = missing()
    backends = [name for name in options.backend or BACKENDS if name not in left_out]
    for name, why in left_out.items():
        print(f"{name} is skipped: {why}")
    models = sorted(options.models or zoo.names(), key=(_LONGEST + zoo.names()).index)
    work = functools.partial(rows, precisions=options.precision or list(PRECISIONS), backends=backends)
    all_rows: list[Row] = []
    seconds = 0.0
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for each, cost in pool.map(work, models):
            all_rows += each
            seconds += cost
            print(f"{table(each, backends)}\n", flush=True)
    cells = [cell for row in all_rows for cell in row.cells.values()]
    bad = [
        cell
        for cell in cells
        if cell.why.startswith("FAILED") or (cell.difference is not None and not cell.good)
    ]
    refused = sum(cell.difference is None for cell in cells)
    print(
        "dB: signal-to-noise ratio of torch in this precision against float32. *: the backend accepts no operator."
    )
    print(
        f"{len(cells)} files: {len(cells) - refused - len(bad)} within bounds, {refused} refused, {len(bad)} bad;"
        f" {time.monotonic() - start:.0f} s, {seconds:.0f} s of processors"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
