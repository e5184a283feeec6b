# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file. Out: the time of each operation. Needs only numpy.
"""Show the time of each operation of a .pte file

Each kernel call is a row, and so is each operator that a backend reports: XNNPACK does, in whole microseconds.
The rest of a backend's call and of the loop over the instructions (the row Method::execute) are rows too, so that
the shares sum to the whole. Reading the clock before and after each instruction is part of it. The warm-up runs are
not in the table. The column "at" has the instruction as `torchette inspect` numbers it, and the backend's number of the part.

examples:
  torchette profile net.pte
  torchette profile net.pte -n 200 --top 10
  torchette profile net.pte --trace trace.json   # for chrome://tracing or ui.perfetto.dev
  torchette profile net.pte --etdump net.etdp     # for an Inspector, ours or ExecuTorch's
  torchette profile net.pte --inputs photo.npy --json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from torchette.cli import DONE, UsageError, _method
from torchette.cli._console import milliseconds, print_json, print_table
from torchette.cli.bench import quantiles
from torchette.devtools import profile
from torchette.devtools.inspect import describe
from torchette.format import etdump


def arguments(parser: argparse.ArgumentParser) -> None:
    _method.arguments(parser)
    parser.add_argument("-n", type=int, default=50, metavar="RUNS", help="measured runs (default: 50)")
    parser.add_argument("--warm-up", type=int, default=3, metavar="RUNS", help="warm-up runs (default: 3)")
    parser.add_argument("--top", type=int, metavar="ROWS", help="only the first rows (default: all)")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="also write every run as a Chrome trace")
    parser.add_argument("--etdump", type=Path, metavar="FILE", help="also write every run as an ETDump")
    parser.add_argument("--json", action="store_true", help="print JSON, in seconds")


def run(options: argparse.Namespace) -> int:
    if options.n < 1 or options.warm_up < 0:
        raise UsageError("there must be at least one measured run, and no negative number of warm-up runs")
    chosen = _method.choose(options)
    method = _method.load(chosen, tracing=True)
    plan = {info.name: info for info in describe(chosen.path).methods}[method.metadata.plan_name]
    for _ in range(options.warm_up):
        method.execute(chosen.inputs)
    before = method.take_events()
    for _ in range(options.n):
        method.execute(chosen.inputs)
    events = method.take_events()
    if options.trace:
        trace = profile.trace_events(plan, [*before, *events])
        options.trace.write_text(json.dumps({"traceEvents": trace}))
    if options.etdump:
        options.etdump.write_bytes(etdump.dumps(profile.etdump_of([*before, *events])))
    rows = [
        {
            "name": it.name,
            "instruction": it.instruction,
            "part": it.part,
            "source": it.source,
            "calls": it.calls / options.n,
            **quantiles(it.times),
        }
        for it in profile.operations(plan, events)
    ]
    total = sum(row["p50"] for row in rows)
    rows.sort(key=lambda row: -row["p50"])
    for row in rows:
        row["share"] = row["p50"] / total if total else 0.0
    if options.json:
        print_json(rows)
        return DONE
    print_table(
        ["share", "p50", "p10", "p90", "calls", "at", "operation", "source"],
        [
            [
                f"{row['share']:6.1%}",
                *(milliseconds(row[name]) for name in ("p50", "p10", "p90")),
                f"{row['calls']:g}",
                "" if row["instruction"] is None else _place(row["instruction"], row["part"]),
                row["name"],
                row["source"],
            ]
            for row in rows[: options.top]
        ],
        title=f"{chosen.path}, {plan.name}: {milliseconds(total)} in {len(rows)} operations, {options.n} runs",
    )
    return DONE


def _place(instruction: int, part: int | None) -> str:
    return str(instruction) if part is None else f"{instruction}:{part}"
