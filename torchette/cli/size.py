# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte or .ptd file. Out: the purpose of its bytes. Requires only numpy.
"""Show the purpose of each byte of a .pte file

Reads files of Torchette and of ExecuTorch, and data files (.ptd). The sizes sum to the size of the file. A weight
without a name in the file belongs to the operator and the model line that first use it. Bytes without the property are
summed in parentheses, such as "(instructions)".

examples:
  torchette size net.pte                       weights, instructions, delegates, padding ...
  torchette size net.pte --by tensor --top 10
  torchette size net.pte --by module           or dtype, operator, delegate
  torchette size net.pte --by tensor --csv tensors.csv
  torchette size net.pte --json | jq .by_dtype
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchette.cli import DONE
from torchette.cli._console import print_json, print_table
from torchette.devtools import size


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="MODEL.pte", type=Path, help="a compiled model, or a data file (.ptd)"
    )
    parser.add_argument(
        "--by",
        choices=size.PROPERTIES,
        default="part",
        help="property by which the sizes are summed (default: part)",
    )
    parser.add_argument(
        "--top", type=int, metavar="ROWS", help="number of rows, largest first (default: all)"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the table as CSV")
    parser.add_argument("--json", action="store_true", help="print JSON: all sums, and each piece")


def run(options: argparse.Namespace) -> int:
    sizes = size.sizes(options.file)
    if options.csv:
        options.csv.write_text(sizes.table(options.by).to_csv(), encoding="utf-8")
    if options.json:
        print_json(sizes.to_dict())
        return DONE
    table = sizes.table(options.by, options.top)
    print_table(table.columns, table.rows, title=f"{options.file}: {table.title}")
    return DONE
