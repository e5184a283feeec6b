# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file of any version. Out: the same program in the current form.
"""Convert a .pte file of an earlier version to the current form

Files of earlier versions run unchanged. Some of them load slower: ExecuTorch's first versions, for example, stored
weights inside the program, which requires memory and time to load. Results stay the same. A file in the current form is
unchanged.

examples:
  torchette migrate old.pte -o new.pte
  torchette migrate net.pte                 only list the outdated forms
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchette.cli import DONE
from torchette.cli._parser import output_argument
from torchette.devtools.migrate import migrate


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.pte", type=Path, help="a compiled model")
    output_argument(parser, "NEW.pte", "the file to write")


def run(options: argparse.Namespace) -> int:
    program, old = migrate(options.file, options.output)
    for form in old:
        print(f"{options.file}: {form}")
    if not old:
        print(f"{options.file} is in the current form")
    if options.output is not None:
        print(f"{options.output}: {program.nbytes:,} bytes")
    return DONE
