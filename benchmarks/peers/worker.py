# SPDX-License-Identifier: BSD-3-Clause
# A process of one side, in the side's environment. `convert SIDE MODEL FILE` writes its file, and next to it the inputs and results
# of eager. `run SIDE FILE THREADS FOLDER` loads and runs the file, and then repeats calls for each number of seconds that it reads.
# runner.cpp does the same for sides with a C++ API. Both answer in lines of JSON.
"""Conversion and timing of one side; benchmarks/peers/__init__.py sends the requests."""

from __future__ import annotations

import importlib
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import variants
from benchmarks.peers.sides import SIDES


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to the standard output
    verb, name, *arguments = sys.argv[1:]
    answer = {"inputs": write_inputs, "convert": convert, "run": run}[verb]
    answer(SIDES.get(name), answers, *arguments)


def write_inputs(side: None, answers: Any, model: str, folder: str) -> None:
    """Writes the inputs and eager's results as raw bytes, and the types and shapes of the inputs as lines of text for C++."""
    import torch

    from benchmarks.peers import models

    module, args = models.build(variants.base(model))
    with torch.no_grad():
        outputs = module(*args)
    for kind, tensors in (("in", args), ("out", outputs if isinstance(outputs, tuple) else (outputs,))):
        for index, tensor in enumerate(tensors):
            tensor.numpy().tofile(Path(folder, f"{kind}{index}"))
    lines = [" ".join([str(arg.dtype).removeprefix("torch."), *map(str, arg.shape)]) for arg in args]
    Path(folder, "inputs").write_text("\n".join(lines) + "\n")


def convert(side: Any, answers: Any, model: str, path: str, source: str = "") -> None:
    begin = time.process_time()
    convert_to = side.convert
    if variant := variants.variant(model):
        convert_to = next(each for name, each in variant.converters.items() if SIDES[name] is side)
    from benchmarks.peers import models

    module, args = models.build(variants.base(model))
    convert_to(source or module, args, Path(path))
    print(json.dumps({"convert": time.process_time() - begin}), file=answers)


def run(side: Any, answers: Any, path: str, threads: str, folder: str, results: str) -> None:
    inputs = []
    for index, line in enumerate(Path(folder, "inputs").read_text().splitlines()):
        dtype, *sizes = line.split()
        inputs.append(np.fromfile(Path(folder, f"in{index}"), dtype).reshape([int(size) for size in sizes]))
    importlib.import_module(side.library)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _peak()
    begin = time.perf_counter()
    call, outputs = side.load(Path(path), int(threads), inputs)
    loaded = time.perf_counter()
    call()
    first = time.perf_counter() - loaded
    ready = {"load": loaded - begin, "first": first, "memory": _peak() - before}
    for index, output in enumerate(outputs()):
        np.asarray(output, np.float32).tofile(Path(results, f"out{index}"))
    print(json.dumps(ready), file=answers)
    clock = time.perf_counter
    for line in sys.stdin:
        seconds: list[float] = []
        cpu, end = time.process_time(), clock() + float(line)
        while len(seconds) < 3 or clock() < end:
            begin = clock()
            call()
            seconds.append(clock() - begin)
        cpu = (time.process_time() - cpu) / len(seconds)
        turn = {
            "median": statistics.median(seconds),
            "least": min(seconds),
            "cpu": cpu,
            "calls": len(seconds),
        }
        print(json.dumps(turn), file=answers)


def _peak() -> int:
    """Returns the peak of resident bytes."""
    match = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert match
    return 1024 * int(match[1])


if __name__ == "__main__":
    main()
