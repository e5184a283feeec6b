# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file. Out: C++ that computes the same without a runtime, and the memory that it needs.
"""Turn a .pte file into C++ that needs no runtime

Writes NAME.h with a C function for each method, and sources that call the kernels one after the other: weights as
constant data, static memory of exactly the bytes needed, control flow as branches and loops, and only the kernels
that the model calls. Any C++17 compiler compiles the folder unchanged. docs/codegen.md has more.

examples:
  torchette codegen net.pte -o generated && c++ -std=c++17 -Os -c generated/*.cpp
  torchette codegen net.pte -o generated --name wakeword          wakeword.h with wakeword_forward(...)
  torchette codegen net.pte -o generated --temp 4096              bytes of the kernels' scratch memory
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchette.cli import DONE


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="MODEL.pte", type=Path, help="a compiled model")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="the folder to write")
    parser.add_argument("--name", help="first part of all names (default: the file's)")
    parser.add_argument(
        "--temp",
        type=int,
        metavar="BYTES",
        help="scratch memory (default: as much as the kernels take at the upper bounds of all sizes)",
    )


def run(options: argparse.Namespace) -> int:
    from torchette.codegen import codegen

    for path in codegen(options.file, options.output, name=options.name, temp=options.temp):
        if path.parent == options.output:
            print(path)
    return DONE
