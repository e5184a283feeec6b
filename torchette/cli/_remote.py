# SPDX-License-Identifier: BSD-3-Clause
"""The options for a command that runs a program on a device: `--on`, `--runner`, `--copy` and `--timeout`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import torchette
from torchette.cli import UsageError


def arguments(parser: argparse.ArgumentParser, payload: str) -> None:
    """Adds the options; `payload` is the data that --copy sends over standard input."""
    parser.add_argument(
        "--on",
        metavar="COMMAND",
        default="",
        help="prefix of commands that run on the device (default: none)",
    )
    parser.add_argument(
        "--runner",
        metavar="PATH",
        help="path of executor_runner on the device (default: with --on, executor_runner)",
    )
    parser.add_argument("--copy", action="store_true", help=f"send {payload} over standard input")
    parser.add_argument(
        "--timeout", type=float, default=300, metavar="SECONDS", help="time limit of one run (300)"
    )


def command(options: argparse.Namespace) -> list[str]:
    """Returns the command without the options of the runner."""
    try:
        prefix = shlex.split(options.on)
    except ValueError as error:
        raise UsageError(f"--on {options.on}: {error}") from None
    return [*prefix, options.runner or ("executor_runner" if prefix else _own_runner())]


def _own_runner() -> str:
    """Returns the runner of the installed package, or of the checkout."""
    package = Path(torchette.__file__).parent
    for program in (
        package / "bin" / "executor_runner",
        package.parent / "build" / "dev" / "executor_runner",
    ):
        if program.exists():
            return str(program)
    raise UsageError(
        "this installation has no executor_runner; pass its path with --runner, or build it with ./dev setup"
    )
