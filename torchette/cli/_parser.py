# SPDX-License-Identifier: BSD-3-Clause
# The parsers of the command line. Help fits the terminal; errors name the argument and the help page.
"""`Parser`, `command`, `output_argument` and `error_text`."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from torchette.errors import TorchetteError, UsageError, did_you_mean, unknown_name

UNUSABLE = 2


def error_text(prog: str, error: TorchetteError) -> str:
    """Returns an error as the command line prints it: the command, the code, the text, and the page about it."""
    page = f"{prog} --help" if isinstance(error, UsageError) else error.page
    return f"{prog}: [{error.code}] {error}\nsee {page}"


def complete(action: argparse.Action, words: Sequence[str]) -> None:
    """Sets the words that a shell completes for an argument without `choices`."""
    action.completions = words  # type: ignore[attr-defined]


def output_argument(parser: argparse.ArgumentParser, metavar: str, text: str, required: bool = False) -> None:
    """Adds -o, --output: a file to write. Its folder is checked before the command runs."""
    parser.add_argument("-o", "--output", metavar=metavar, type=Path, required=required, help=text)
    parser.set_defaults(writes_file=True)


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs at the width of the terminal. Examples and other indented blocks are not changed."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = []
        for block in re.split(r"\n\s*\n", text.strip()):
            if re.search(r"^\s", block, re.M):
                blocks.append(textwrap.indent(block, indent))
            else:
                blocks.append(
                    textwrap.fill(
                        " ".join(block.split()),
                        width,
                        initial_indent=indent,
                        subsequent_indent=indent,
                        break_long_words=False,
                        break_on_hyphens=False,
                    )
                )
        return "\n\n".join(blocks)


class Parser(argparse.ArgumentParser):
    """An argument parser that suggests the nearest name in errors, and prints its help without a command."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(prog, description=description, formatter_class=HelpFormatter, allow_abbrev=False)

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: object = None) -> Any:
        args = list(sys.argv[1:] if args is None else args)
        if not args and self._subparsers is not None:
            self.print_help()
            self.exit()
        parsed, extras = super().parse_known_args(args, namespace)
        if extras:  # checked here so that the error refers to the help of this command
            self.error(self._unexpected(extras))
        return parsed, extras

    def _unexpected(self, extras: Sequence[str]) -> str:
        option = next((one.partition("=")[0] for one in extras if one.startswith("-")), None)
        if option is None:
            return f"unexpected argument {extras[0]}"
        return f"unknown option {option}{did_you_mean(option, self._option_string_actions)}"

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            self.error(unknown_name("command", value, action.choices))
        name = action.option_strings[-1] if action.option_strings else action.metavar or action.dest
        choices = ", ".join(map(str, action.choices))
        self.error(f"{name}: invalid choice {value!r}{did_you_mean(value, action.choices)} ({choices})")

    def error(self, message: str) -> NoReturn:
        self.exit(UNUSABLE, f"{error_text(self.prog, UsageError(message))}\n")


def command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int] | None,
    aliases: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """Adds a command.

    Args:
        commands: result of `add_subparsers`.
        name: name of the command.
        text: help of the command: a one-line summary, a description, and "examples:" with indented commands.
        run: function that runs the command and returns the exit code; None if the command has subcommands.
        aliases: other names of the command.

    Returns:
        The parser of the command.
    """
    parser = commands.add_parser(
        name, aliases=aliases, help=text.strip().splitlines()[0], description=text.strip()
    )
    parser.set_defaults(run=run, prog=parser.prog)
    return parser


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yields a parser and those of its commands, each once."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                yield from parsers(child)
