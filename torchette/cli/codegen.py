# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file. Out: C++ that computes the same results without a runtime, and the memory that it requires.
"""Convert a .pte file to C++ that needs no runtime

Writes NAME.h with a C function for each method, and sources that call the kernels in sequence: weights as constant
data, static memory of the exact size, control flow as branches and loops, and only the kernels that the model calls.
Any C++17 compiler can compile the folder. See docs/codegen.md.

examples:
  torchette codegen net.pte -o generated && c++ -std=c++17 -Os -c generated/*.cpp
  torchette codegen net.pte -o generated --name wakeword          writes wakeword.h with wakeword_forward(...)
  torchette codegen net.pte -o generated --temp 4096              bytes of the kernels' scratch memory
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchette.cli import DONE


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="MODEL.pte", type=Path, help="a compiled model")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="the folder to write")
    parser.add_argument("--name", help="prefix of all names (default: the name of the file)")
    parser.add_argument(
        "--temp",
        type=int,
        metavar="BYTES",
        help="scratch memory (default: the requirement of the kernels at the maximum sizes)",
    )


def run(options: argparse.Namespace) -> int:
    from torchette.codegen import codegen

    for path in codegen(options.file, options.output, name=options.name, temp=options.temp):
        if path.parent == options.output:
            print(path)
    return DONE
