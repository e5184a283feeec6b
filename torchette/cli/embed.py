# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file. Out: C sources with the program and static pools of the exact sizes.
"""Convert a .pte file to C sources with static pools of the exact sizes

The program is in constant memory and its weights are read in place; nothing is allocated. Writes NAME.h and NAME.c,
which are C99 and C++17, and NAME.hpp, which defines the runtime's allocators over the pools.

examples:
  torchette embed net.pte -o generated --target cortex-m4
  torchette embed net.pte -o generated --section program=.qspi --section planned_1=.dtcm
  torchette embed net.pte -o generated --temp least          less scratch memory, slower kernels
  torchette embed large.pte -o generated --incbin            the assembler reads the file: faster for many megabytes
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchette.cli import DONE, UsageError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="MODEL.pte", type=Path, help="a compiled model")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="the folder to write")
    parser.add_argument("--name", help="prefix of all names (default: the name of the file)")
    parser.add_argument("--target", default="native", help="as for torchette memory (default: native)")
    parser.add_argument(
        "--temp", default="most", metavar="BYTES", help="bytes of the temp pool, or most (default) or least"
    )
    parser.add_argument(
        "--dynamic",
        type=int,
        metavar="BYTES",
        help="bytes of the pool for tensors with sizes known only at run time (default: their maximum)",
    )
    parser.add_argument(
        "--section",
        action="append",
        default=[],
        metavar="POOL=SECTION",
        help="linker section of program, method, temp, dynamic, planned_1, ...",
    )
    parser.add_argument(
        "--incbin", action="store_true", help="let the assembler read the program from a file"
    )


def run(options: argparse.Namespace) -> int:
    from torchette.devtools.embed import embed

    if not options.temp.isdigit() and options.temp not in ("most", "least"):
        raise UsageError(f"--temp must be a number of bytes, most or least, got {options.temp!r}")
    sections = dict(text.partition("=")[::2] for text in options.section)
    if not all(sections.values()):
        raise UsageError("--section must be POOL=SECTION, such as planned_1=.dtcm")
    for path in embed(
        options.file,
        options.output,
        name=options.name,
        target=options.target,
        temp=int(options.temp) if options.temp.isdigit() else options.temp,
        dynamic=options.dynamic,
        sections=sections,
        incbin=options.incbin,
    ):
        print(path)
    return DONE
