# SPDX-License-Identifier: BSD-3-Clause
# The speedup of threads: one execution with parallel branches, of kernels and of delegates that are devices; and two Python threads
# with one method each.
"""`./dev bench threads`: the ratio of wall times with two threads and with one, in alternating runs."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

import torchette
from torchette.backends.null import NullPartitioner
from torchette.cli._console import print_table
from torchette.exir import ExecutorchBackendConfig
from torchette.runtime import Method, Program, Runtime

BUILD = Path(__file__).resolve().parents[1] / "build" / "dev"
ROUNDS, CALLS = 15, 20


class Towers(torch.nn.Module):
    """Two towers of convolutions over one image."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = torch.nn.ModuleList(
            torch.nn.Sequential(
                *(
                    layer
                    for _ in range(6)
                    for layer in (torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU())
                )
            )
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([tower(x) for tower in self.towers], 1)


def seconds(call) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return time.perf_counter() - start


def at_once(methods: list[Method], x: np.ndarray) -> float:
    """Returns the seconds of CALLS calls of each method, each in a separate thread."""
    threads = [threading.Thread(target=lambda m=m: [m.execute([x]) for _ in range(CALLS)]) for m in methods]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


class Squares(torch.nn.Module):
    """A partitioner with a delegate per input: the null backend accepts one shape per delegate."""

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        return [x * x for x in inputs]


def delegates() -> list[float]:
    """Returns the milliseconds of one delegate of 20 ms, and of two: without an executor, on two threads, pending with one thread."""
    build = ["cmake", "--build", str(BUILD), "--target", "torchette_delegates"]
    subprocess.run(build, check=True, capture_output=True)
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for count in (1, 2):
            inputs = tuple(torch.ones(2, 2 + i) for i in range(count))
            files.append(Path(folder, f"{count}.pte"))
            model = torchette.compile(
                Squares(), inputs, backend=NullPartitioner(), config=ExecutorchBackendConfig(parallel=2)
            )
            model.save(files[-1])
        done = subprocess.run(
            [BUILD / "torchette_delegates", *files], check=True, capture_output=True, text=True
        )
    return [float(word) for word in done.stdout.split()]


def main(arguments: list[str] | None = None) -> int:
    del arguments
    x = np.random.default_rng(0).standard_normal((1, 32, 56, 56), dtype=np.float32)
    model = torchette.compile(
        Towers().eval(), (torch.from_numpy(x),), config=ExecutorchBackendConfig(parallel=2)
    )
    program: Program = Runtime.get().load_program(model.program.buffer)
    one, two, another = (program.load_method("forward", threads=n) for n in (1, 2, 1))
    branches, throughput = [], []
    for _ in range(ROUNDS):
        alone = seconds(lambda: one.execute([x]))
        branches.append(seconds(lambda: two.execute([x])) / alone)
        throughput.append(2 * alone / at_once([one, another], x))
    single, *both = delegates()
    print_table(
        ("what", "ratio", "goal"),
        [
            ("two branches on 2 threads / on 1, wall time", f"{statistics.median(branches):.2f}", "0.58"),
            ("throughput of 2 Python threads / 1", f"{statistics.median(throughput):.2f}", "1.70"),
            *(
                (f"two delegates of 20 ms {how} / one of them, wall time", f"{time_ / single:.2f}", goal)
                for time_, how, goal in zip(
                    both, ("without threads", "on 2 threads", "pending, 1 thread"), ("2", "1.15", "1.15")
                )
            ),
        ],
    )
    print(f"{os.cpu_count()} cores; medians of {ROUNDS} rounds of {CALLS} calls")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
