# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file and a target. Out: the exact bytes of every memory that its methods require, and each tensor's offset.
"""Show the exact memory that a .pte file requires on a device

The caller provides all memory of the runtime. With pools of the printed sizes, a method loads and runs; with one byte
less, it reports the missing memory. The command only reads the file; for temp memory it runs each kernel once on zeros.

examples:
  torchette memory model.pte                                 on this machine
  torchette memory model.pte --target cortex-m4              on a Cortex-M, with 32-bit pointers and small vectors
  torchette memory model.pte --tensors                       offset and lifetime of each tensor in planned memory
  torchette memory model.pte --svg memory.svg                a diagram of planned memory over time
  torchette memory model.pte --trace memory.json             the same for chrome://tracing and Perfetto
  torchette memory model.pte --json | jq '.[0].ram'
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchette.cli import DONE
from torchette.cli._console import print_json, print_table
from torchette.targets import PROCESSORS


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="MODEL.pte", help="a compiled model")
    parser.add_argument(
        "--target",
        default="native",
        help=f"native (default), a processor ({', '.join(PROCESSORS)}; also cortex-m4 and the like), or a machine of "
        "`torchette build --list`",
    )
    parser.add_argument("--tensors", action="store_true", help="list the tensors in planned memory")
    parser.add_argument(
        "--svg", metavar="FILE", type=Path, help="write a diagram of planned memory over time"
    )
    parser.add_argument(
        "--trace", metavar="FILE", type=Path, help="write planned memory over time as a Chrome trace"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, tensors included")


def run(options: argparse.Namespace) -> int:
    from torchette.devtools import arena_picture
    from torchette.devtools.device_memory import bills, tenants
    from torchette.devtools.inspect import describe
    from torchette.devtools.memory_trace import generate_memory_trace
    from torchette.format import pte

    file = pte.load_file(options.file)
    bill_of = {bill.method_name: bill for bill in bills(file, options.target)}
    methods = describe(file).methods
    living = {method.name: tenants(method) for method in methods}
    drawings = {
        method.name: [
            (f"planned {i}", [t for t in living[method.name] if t.memory_id == i], size)
            for i, size in enumerate(bill_of[method.name].planned, 1)
            if size
        ]
        for method in methods
    }
    for method in methods:
        if options.svg:
            title = f"{options.file}: {method.name}"
            diagram = arena_picture.svg(title, drawings[method.name], len(method.instructions))
            _path(options.svg, method.name, len(methods)).write_text(diagram)
        if options.trace:
            trace = _path(options.trace, method.name, len(methods))
            generate_memory_trace(options.file, trace, method_name=method.name)
    if options.json:
        print_json(
            [
                {**bill_of[name].to_dict(), "tensors": [tenant._asdict() for tenant in tensors]}
                for name, tensors in living.items()
            ]
        )
        return DONE
    for number, method in enumerate(methods):
        if number:
            print()
        bill = bill_of[method.name]
        table = bill.table()
        print_table(table.columns, table.rows, title=table.title)
        for name, tensors, size in drawings[method.name]:
            print(f"\n{name} over time")
            print(arena_picture.text(tensors, size, len(method.instructions)))
            if options.tensors:
                print()
                rows = [
                    (letter, f"%{t.value} {t.text}", t.nbytes, t.offset, f"{t.first} to {t.last}", t.maker)
                    for letter, t in zip(arena_picture.letters(tensors), tensors, strict=True)
                ]
                print_table(("", "tensor", "bytes", "offset", "lifetime", "written by"), rows)
    return DONE


def _path(path: Path, method: str, count: int) -> Path:
    """Returns the path for a method; with several methods, its name is appended."""
    return path if count == 1 else path.with_stem(f"{path.stem}-{method}")
