# SPDX-License-Identifier: BSD-3-Clause
# In: C++ files with operators. Out: a library for torch and for every runtime.
"""Custom operators and kernels: compile them, register them

`build` compiles C++ files with operators to a shared library. `yaml` converts ExecuTorch's kernel lists to C++ that
declares and registers the kernels.

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
from torchette.cli._parser import command, output_argument
from torchette.progress import Progress

_BUILD = """Compile operators into a shared library

torchette.load_library() registers the operators in torch, for eager and export, and in the runtime.

examples:
  torchette custom build my_op.cpp                      libmy_op.so
  torchette custom build my_op.cpp more.cpp -o my.so    several files, another name
"""
_YAML = """Convert ExecuTorch's kernel lists to C++

The C++ declares the kernels and registers them. A build compiles it together with the kernels.

examples:
  torchette custom yaml functions.yaml -o generated     RegisterKernels.cpp and the headers with the kernels
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="COMMAND", required=True)
    build = command(actions, "build", _BUILD, _build)
    build.add_argument("sources", metavar="FILE.cpp", type=Path, nargs="+", help="sources with operators")
    output_argument(build, "LIBRARY", "default: lib<first file>.so")
    build.add_argument("--compiler", help="compiler command (default: c++, or else ziglang)")
    yaml = command(actions, "yaml", _YAML, _yaml)
    yaml.add_argument("lists", metavar="FILE.yaml", type=Path, nargs="+", help="lists of kernels")
    yaml.add_argument(
        "-o", "--output", metavar="FOLDER", type=Path, required=True, help="the folder to write"
    )


def _yaml(options: argparse.Namespace) -> int:
    from torchette.build import kernel_list

    written, left_out = kernel_list.write(options.lists, options.output)
    if left_out:
        note(f"omitted, because they write to no argument: {', '.join(left_out)}")
    for path in written:
        print(path)
    return DONE


def _build(options: argparse.Namespace) -> int:
    from torchette.build import custom

    with Progress(interval=0) as progress:
        library = custom.build(options.sources, options.output, compiler=options.compiler, report=progress)
    print(library)
    note(f'in Python: torchette.load_library("{library}")')
    return DONE
