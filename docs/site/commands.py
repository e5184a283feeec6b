# SPDX-License-Identifier: BSD-3-Clause
# Writes the help of every command of the command line as a page.
"""python docs/site/commands.py > build/docs/commands.md"""

from __future__ import annotations

import os

from torchette import cli
from torchette.cli._parser import parsers


def page() -> str:
    """Returns the page: a section for each command."""
    os.environ["COLUMNS"] = "110"
    sections = [f"## {each.prog}\n\n```\n{each.format_help()}```\n" for each in parsers(cli._parser())]
    return "\n".join(
        ["# Commands\n\nThe output of `torchette COMMAND --help` for every command.\n", *sections]
    )


if __name__ == "__main__":
    print(page(), end="")
