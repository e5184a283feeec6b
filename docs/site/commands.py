# SPDX-License-Identifier: BSD-3-Clause
# Writes the help of every command of the command line as a page.
"""python docs/site/commands.py > build/docs/commands.md"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from torchette import cli


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yields a parser and those of its commands, each once."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                yield from parsers(child)


def page() -> str:
    """Returns the page: a section for each command."""
    os.environ["COLUMNS"] = "110"
    sections = [f"## {each.prog}\n\n```\n{each.format_help()}```\n" for each in parsers(cli._parser())]
    return "\n".join(
        ["# Commands\n\nThe output of `torchette COMMAND --help` for every command.\n", *sections]
    )


if __name__ == "__main__":
    print(page(), end="")
