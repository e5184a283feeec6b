# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file. Out: the times of loading and running it on this machine. Requires only numpy.
"""Measure the load time and run time of a .pte file

Loading is measured with the file in the system's cache. The first run, which touches every page of the weights, and
the warm-up runs after it are reported separately.

examples:
  torchette bench net.pte
  torchette bench net.pte -n 200 --warm-up 20
  torchette bench net.pte --inputs photo.npy --json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from torchette.cli import DONE, UsageError, _method
from torchette.cli._console import print_json, print_table
from torchette.devtools.profile import milliseconds, quantiles
from torchette.runtime import Runtime

LOADS = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    _method.arguments(parser)
    parser.add_argument("-n", type=int, default=50, metavar="RUNS", help="measured runs (default: 50)")
    parser.add_argument("--warm-up", type=int, default=3, metavar="RUNS", help="warm-up runs (default: 3)")
    parser.add_argument("--json", action="store_true", help="print JSON, in seconds")


def run(options: argparse.Namespace) -> int:
    if options.n < 1 or options.warm_up < 0:
        raise UsageError(
            f"-n must be at least 1 and --warm-up at least 0, got {options.n} and {options.warm_up}"
        )
    chosen = _method.choose(options)
    loads = [seconds(lambda: _method.load(chosen)) for _ in range(LOADS)]
    method = _method.load(chosen)

    def execute() -> object:
        return method.execute(chosen.inputs)

    first = seconds(execute)
    for _ in range(options.warm_up):
        execute()
    runs = [seconds(execute) for _ in range(options.n)]
    phases = {"load": loads, "first run": [first], "run": runs}
    if options.json:
        print_json({name: {"count": len(times), **quantiles(times)} for name, times in phases.items()})
        return DONE
    rows = [
        [name, len(times), *map(milliseconds, quantiles(times).values())] for name, times in phases.items()
    ]
    threads = chosen.threads or Runtime.get().num_threads
    title = f"{chosen.path}, {chosen.info.name}, {threads} thread{'s' * (threads > 1)}"
    print_table(["", "count", "p10", "p50", "p90", "min"], rows, title=title)
    return DONE


def seconds(work: Callable[[], object]) -> float:
    """Returns the duration of one call in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
