# SPDX-License-Identifier: BSD-3-Clause
# In: C++ files with operators. Out: a library of them, for torch and for every runtime.
"""Operators of your own: compile them

`build` makes a shared library of C++ files with operators; torchette.load_library() puts them into torch, for eager and
export, and into the runtime.

examples:
  torchette custom build my_op.cpp                      libmy_op.so
  torchette custom build my_op.cpp more.cpp -o my.so    several files, another name
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchette.cli import DONE
from torchette.cli._console import note, working


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True)
    build = actions.add_parser("build", help="compile operators into a shared library")
    build.add_argument("sources", metavar="FILE.cpp", type=Path, nargs="+")
    build.add_argument("-o", "--output", metavar="LIBRARY", type=Path, help="default: lib<first file>.so")
    build.add_argument("--compiler", help="a command; default: c++, or ziglang where there is none")


def run(options: argparse.Namespace) -> int:
    from torchette.build import custom

    with working(f"compile {', '.join(source.name for source in options.sources)}"):
        library = custom.build(options.sources, options.output, compiler=options.compiler)
    print(library)
    note(f'in Python: torchette.load_library("{library}")')
    return DONE
