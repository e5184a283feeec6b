# SPDX-License-Identifier: BSD-3-Clause
# In: two .pte files. Out: their differences. Requires only numpy.
"""Compare two .pte files: methods, instructions, weights, memory, sizes

Instructions are aligned by their operators, and the weights of aligned instructions are compared, so weights need no
names. The exit code is 0 if the files are equal, 1 if not.

examples:
  torchette pte-diff before.pte after.pte
  torchette pte-diff before.pte after.pte --top 5     the first five differences of each kind
  torchette pte-diff before.pte after.pte --json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchette.cli import CHECK_FAILED, DONE
from torchette.cli._console import print_json, print_rows
from torchette.devtools.pte_diff import compare


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A.pte", type=Path, help="a compiled model")
    parser.add_argument("b", metavar="B.pte", type=Path, help="another compiled model")
    parser.add_argument(
        "--top", type=int, metavar="ROWS", help="number of differences of each kind (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    difference = compare(options.a, options.b)
    if options.json:
        print_json(difference.to_dict())
    elif difference.equal:
        print(f"{options.a} and {options.b} are equal")
    else:
        for number, table in enumerate(difference.tables()):
            if number:
                print()
            print_rows(table.columns, table.rows, options.top, title=table.title)
    return DONE if difference.equal else CHECK_FAILED
