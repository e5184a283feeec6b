# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file and inputs. Out: the outputs of its method, as a summary and as a file. Requires only numpy, except in
# ATen mode.
"""Run a method of a .pte file and show or save its outputs

Missing inputs are generated: normal noise for floats, zeros and ones for integers. Buffers that the model
updates start from their stored values.

examples:
  torchette run net.pte                                    generated inputs
  torchette run net.pte --inputs photo.npy --output scores.npz
  torchette run net.pte --inputs 1x3x224x224 --seed 1 --json
  torchette run net.pte --aten                             on torch's kernels, for comparison
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from torchette.cli import DONE, UsageError, _method
from torchette.cli._console import note, print_json, print_table, statistics
from torchette.cli._parser import output_argument
from torchette.devtools.profile import milliseconds


def arguments(parser: argparse.ArgumentParser) -> None:
    _method.arguments(parser)
    output_argument(parser, "FILE", "save the outputs: .npz, or .npy for a single one")
    parser.add_argument("--json", action="store_true", help="print JSON, with all values")
    parser.add_argument("--aten", action="store_true", help="run torch's kernels (docs/aten-mode.md)")


def run(options: argparse.Namespace) -> int:
    if options.output and options.output.suffix not in (".npz", ".npy"):
        raise UsageError(f"{options.output}: outputs are saved as .npz or .npy")
    chosen = _method.choose(options)
    method = _method.load(chosen, aten=options.aten)
    start = time.perf_counter()
    results = method.execute(chosen.inputs, real_view=True)
    seconds = time.perf_counter() - start
    outputs = {port.name: _array(value) for port, value in zip(chosen.info.outputs, results)}
    if options.output:
        _save(options.output, outputs)
    if options.json:
        print_json(
            {
                name: {"dtype": str(a.dtype), "shape": a.shape, "values": a.tolist()}
                for name, a in outputs.items()
            }
        )
        return DONE
    print_table(
        ["output", "dtype", "shape", "min", "mean", "max", "nan/inf", "values"],
        [_row(name, array) for name, array in outputs.items()],
    )
    note(f"{chosen.info.name} ran in {milliseconds(seconds)}")
    return DONE


def _array(value: Any) -> np.ndarray:
    """Returns an output as an array; as float32 for bfloat16, which numpy does not have."""
    return np.asarray(value.float() if "bfloat16" in str(getattr(value, "dtype", "")) else value)


def _row(name: str, array: np.ndarray) -> list[Any]:
    shape = "x".join(map(str, array.shape)) or "scalar"
    first = " ".join(f"{value:.4g}" for value in array.ravel()[:4].tolist())
    more = " ..." if array.size > 4 else ""
    return [name, str(array.dtype), shape, *statistics(array).values(), first + more]


def _save(path: Path, outputs: dict[str, np.ndarray]) -> None:
    if path.suffix == ".npy":
        if len(outputs) != 1:
            raise UsageError(
                f"{path}: a .npy file contains one array, but there are {len(outputs)} outputs; use .npz"
            )
        np.save(path, next(iter(outputs.values())))
    else:
        np.savez(path, **outputs)  # type: ignore[arg-type]
