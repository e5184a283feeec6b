# SPDX-License-Identifier: BSD-3-Clause
# In: a command line. Out: an exit code: 0 done, 1 a check failed, 2 wrong usage or a file that cannot be used.
# Every module of this folder without a leading underscore is a verb: its docstring is its help, `arguments(parser)`
# declares its options, `run(options)` does the work and returns the exit code.
"""Command line of Torchette: compile PyTorch models to .pte files, look into them, run and time them."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torchette
from torchette.errors import CompileError, TorchetteError

DONE, CHECK_FAILED, UNUSABLE = 0, 1, 2


class UsageError(Exception):
    """The command line asks for something impossible; the text is one line."""


class Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(UNUSABLE, f"{self.prog}: {message} (see {self.prog} --help)\n")


class _CMakePrefix(argparse.Action):
    """Prints what CMAKE_PREFIX_PATH needs: the package's installed folder."""

    def __init__(self, **more: Any) -> None:
        super().__init__(nargs=0, **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        prefix = Path(torchette.__file__).parent
        if not (prefix / "lib" / "cmake" / "torchette").exists():
            parser.error(f"{prefix} is a checkout: cmake --install build/dev --prefix DIR, and use DIR")
        print(prefix)
        parser.exit(DONE)


def verbs() -> list[str]:
    """Names of the verbs, sorted: the modules of this folder, with hyphens."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name.replace("_", "-") for name in names if not name.startswith("_"))


def _parser() -> Parser:
    parser = Parser(prog="torchette", description=__doc__)
    parser.add_argument("--version", action="version", version=f"torchette {torchette.__version__}")
    parser.add_argument("--cmake-prefix", action=_CMakePrefix, help="print where CMake finds the C++ runtime")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for name in verbs():
        module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
        text = (module.__doc__ or "").strip()
        verb = subparsers.add_parser(
            name,
            aliases=getattr(module, "ALIASES", ()),
            help=text.splitlines()[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.arguments(verb)
        verb.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (by default the process's own) and returns its exit code."""
    options = _parser().parse_args(argv)
    try:
        status = options.run(options)
        sys.stdout.flush()
        result: int = status
        return result
    except BrokenPipeError:
        # The reader, such as `head`, closed the pipe. Python's own flush at exit must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (UsageError, TorchetteError, OSError) as error:
        if os.environ.get("TORCHETTE_TRACEBACK"):
            raise
        print(f"torchette {options.verb}: {_text(error)}", file=sys.stderr)
        return CHECK_FAILED if isinstance(error, CompileError) else UNUSABLE
    except KeyboardInterrupt:
        return 130


def executor_runner() -> NoReturn:
    """Becomes the program executor_runner of the installed package, with the process's own arguments."""
    program = Path(torchette.__file__).parent / "bin" / "executor_runner"
    if not program.exists():
        sys.exit(f"executor_runner: {program} is missing: ./dev setup builds it as build/dev/executor_runner")
    os.execv(program, ["executor_runner", *sys.argv[1:]])


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, TorchetteError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)
