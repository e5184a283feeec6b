# SPDX-License-Identifier: BSD-3-Clause
"""How a command names the device that a program runs on: the options `--on`, `--runner`, `--copy` and `--timeout`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import torchette
from torchette.cli import UsageError


def arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the options; `what` goes over the standard input with --copy."""
    parser.add_argument(
        "--on", metavar="COMMAND", default="", help="what runs a program there (default: nothing)"
    )
    parser.add_argument(
        "--runner", metavar="PATH", help="executor_runner there (default: with --on its name alone)"
    )
    parser.add_argument("--copy", action="store_true", help=f"send {what} over the standard input")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS", help="for one run (300)")


def command(options: argparse.Namespace) -> list[str]:
    """The words in front of the runner's options."""
    try:
        prefix = shlex.split(options.on)
    except ValueError as error:
        raise UsageError(f"--on {options.on}: {error}") from None
    return [*prefix, options.runner or ("executor_runner" if prefix else _own_runner())]


def _own_runner() -> str:
    """That of the installed package, or of the checkout."""
    package = Path(torchette.__file__).parent
    for program in (
        package / "bin" / "executor_runner",
        package.parent / "build" / "dev" / "executor_runner",
    ):
        if program.exists():
            return str(program)
    raise UsageError(
        "this installation has no executor_runner; --runner says where one is, ./dev setup builds it"
    )
