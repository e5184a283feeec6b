# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file. Out: the time of each operation. Requires only numpy.
"""Show the time of each operation of a .pte file

Each kernel call is a row, and so is each operator that a backend reports (XNNPACK reports integer microseconds). The
remaining time of a backend's call and of the instruction loop (Method::execute) are separate rows, so that the shares
sum to 100%. Times include reading the clock before and after each instruction. Warm-up runs are not in the table. The
column "at" is the index of the instruction, as in `torchette inspect`, and the backend's number of the part.

examples:
  torchette profile net.pte
  torchette profile net.pte -n 200 --top 10
  torchette profile net.pte --trace trace.json   # for chrome://tracing or ui.perfetto.dev
  torchette profile net.pte --etdump net.etdp     # for an Inspector of Torchette or ExecuTorch
  torchette profile net.pte --perfetto net.perfetto-trace   # smaller and quicker to open in ui.perfetto.dev
  torchette profile net.pte --csv times.csv
  torchette profile net.pte --inputs photo.npy --json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from torchette.cli import DONE, UsageError, _method
from torchette.cli._console import print_json, print_rows
from torchette.devtools import perfetto, profile
from torchette.devtools.inspect import describe
from torchette.format import etdump


def arguments(parser: argparse.ArgumentParser) -> None:
    _method.arguments(parser)
    parser.add_argument("-n", type=int, default=50, metavar="RUNS", help="measured runs (default: 50)")
    parser.add_argument("--warm-up", type=int, default=3, metavar="RUNS", help="warm-up runs (default: 3)")
    parser.add_argument(
        "--top", type=int, metavar="ROWS", help="number of rows, slowest first (default: all)"
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="also write every run as a Chrome trace")
    parser.add_argument("--etdump", type=Path, metavar="FILE", help="also write every run as an ETDump")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="also write every run for Perfetto")
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="also write the operations as CSV, in seconds"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, in seconds")


def run(options: argparse.Namespace) -> int:
    if options.n < 1 or options.warm_up < 0:
        raise UsageError(
            f"-n must be at least 1 and --warm-up at least 0, got {options.n} and {options.warm_up}"
        )
    chosen = _method.choose(options)
    method = _method.load(chosen, tracing=True)
    plan = {info.name: info for info in describe(chosen.path).methods}[method.metadata.plan_name]
    result = profile.profile(
        method,
        plan,
        chosen.inputs,
        options.n,
        warm_up=options.warm_up,
        name=str(chosen.path),
        threads=chosen.threads,
    )
    if options.trace:
        trace = profile.trace_events(plan, result.events)
        options.trace.write_text(json.dumps({"traceEvents": trace}))
    if options.etdump:
        options.etdump.write_bytes(etdump.dumps(profile.etdump_of(result.events)))
    if options.perfetto:
        options.perfetto.write_bytes(perfetto.trace(plan, result.events, name=str(chosen.path)))
    if options.csv:
        options.csv.write_text(result.data().to_csv(), encoding="utf-8")
    if options.json:
        print_json(result.rows())
        return DONE
    table = result.table()
    print_rows(table.columns, table.rows, options.top, title=table.title)
    return DONE
