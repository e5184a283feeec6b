# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file of any release. Out: the same program in the form that this release writes.
"""Bring a .pte file of an earlier release into the newest form

Files of earlier releases run as they are. Those of ExecuTorch's first releases, for one, have weights inside the program,
which takes memory and time to load. Results stay the same. A file without an older form is left as it is.

examples:
  torchette migrate old.pte -o new.pte
  torchette migrate net.pte                 only say what is of an older form
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
        print(f"{options.file} is in the newest form")
    if options.output is not None:
        print(f"{options.output}: {program.nbytes:,} bytes")
    return DONE
