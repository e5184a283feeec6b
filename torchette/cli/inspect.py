# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file. Out: its content, as tables or as JSON.
"""Show the content of a .pte file: methods, instructions, tensors, memory

Reads files of Torchette and of ExecuTorch, without torch. In the tables %5 is value 5 of a method, and @1+64 is
byte 64 of planned buffer 1.

examples:
  torchette inspect model.pte
  torchette inspect model.pte --brief            operators counted instead of listed
  torchette inspect model.pte --json | jq '.methods[0].inputs'
  torchette inspect model.pte --csv instructions  one row per instruction, for a spreadsheet
  torchette inspect --schema                     the JSON Schema of the output of --json
"""

from __future__ import annotations

import argparse

from torchette.cli import DONE, UsageError
from torchette.cli._console import print_json, print_table


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", help="a .pte file")
    parser.add_argument("--brief", action="store_true", help="omit instructions and constants")
    parser.add_argument(
        "--csv", choices=("instructions", "values", "constants"), help="print a row for each of these as CSV"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema that --json follows")


def run(options: argparse.Namespace) -> int:
    from torchette.devtools.inspect import describe, json_schema

    if options.schema:
        print_json(json_schema())
        return DONE
    if options.file is None:
        raise UsageError("no file; pass a .pte file")
    description = describe(options.file)
    if options.csv:
        print(description.data(options.csv).to_csv(), end="")
        return DONE
    if options.json:
        print(description.to_json(indent=2))
        return DONE
    for number, table in enumerate(description.tables(brief=options.brief)):
        if number:
            print()
        print_table(table.columns, table.rows, title=table.title)
    return DONE
