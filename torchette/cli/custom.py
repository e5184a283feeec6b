# SPDX-License-Identifier: BSD-3-Clause
# In: C++ files with operators. Out: a library of them, for torch and for every runtime.
"""Operators and kernels of your own: compile them, register them

`yaml` turns lists of kernels in ExecuTorch's form into C++ that declares and registers them. `build` makes a shared library of C++ files with operators; torchette.load_library() registers them in torch, for eager and
export, and into the runtime.

examples:
  torchette custom build my_op.cpp                      libmy_op.so
  torchette custom build my_op.cpp more.cpp -o my.so    several files, another name
  torchette custom yaml functions.yaml -o generated     RegisterKernels.cpp and the headers with the kernels
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchette.cli import DONE
from torchette.cli._console import note
from torchette.progress import Progress


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True)
    build = actions.add_parser("build", help="compile operators into a shared library")
    build.add_argument("sources", metavar="FILE.cpp", type=Path, nargs="+")
    build.add_argument("-o", "--output", metavar="LIBRARY", type=Path, help="default: lib<first file>.so")
    build.add_argument("--compiler", help="a command (default: c++, or ziglang without one)")
    yaml = actions.add_parser("yaml", help="turn lists of kernels into C++")
    yaml.add_argument("lists", metavar="FILE.yaml", type=Path, nargs="+")
    yaml.add_argument("-o", "--output", metavar="FOLDER", type=Path, required=True)


def run(options: argparse.Namespace) -> int:
    if options.action == "yaml":
        from torchette.build import kernel_list

        written, left_out = kernel_list.write(options.lists, options.output)
        if left_out:
            note(f"left out, since they write to no argument: {', '.join(left_out)}")
        for path in written:
            print(path)
        return DONE
    from torchette.build import custom

    with Progress(interval=0) as progress:
        library = custom.build(options.sources, options.output, compiler=options.compiler, report=progress)
    print(library)
    note(f'in Python: torchette.load_library("{library}")')
    return DONE
