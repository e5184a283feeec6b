# SPDX-License-Identifier: BSD-3-Clause
# In: names of examples. Runs examples/__main__.py, which is packed with the sources.
"""Run the examples

Each example trains or loads its model, compiles and runs it, and prints the results. An example with missing tools is
skipped with the reason; the exit code is 1 if an example fails.

examples:
  torchette examples list
  torchette examples run digits
  torchette examples run --all --folder /tmp/examples
"""

from __future__ import annotations

import argparse
import runpy

from torchette.build.sources import ROOT


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "rest",
        nargs=argparse.REMAINDER,
        metavar="list | run [NAME ...] [--all] [--folder DIR]",
        help="list the examples, or run the named ones; --folder: folder for their files",
    )


def run(options: argparse.Namespace) -> int:
    result: int = runpy.run_path(str(ROOT / "examples" / "__main__.py"))["main"](options.rest)
    return result
