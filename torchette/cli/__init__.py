# SPDX-License-Identifier: BSD-3-Clause
# In: a command line. Out: an exit code, see docs/command-line.md.
# Every module in this folder without a leading underscore is a verb: its docstring is its help, `arguments(parser)`
# declares its options or commands (`_parser.command`), and `run(options)` does the work and returns the exit code.
"""Compile PyTorch models to .pte files, inspect, run and profile them

examples:
  torchette compile model.py:Net --inputs 1x3x224x224 -o net.pte
  torchette run net.pte
  torchette run --help                        the options of a command, with examples
  torchette doctor                            installed and missing components
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torchette
from torchette.cli._parser import UNUSABLE, Parser, command, error_text
from torchette.errors import CompileError, TorchetteError, UsageError
from torchette.files import check_target, file_error

__all__ = ["CHECK_FAILED", "DONE", "UNUSABLE", "UsageError", "executor_runner", "main", "verbs"]

DONE, CHECK_FAILED = 0, 1


class _CMakePrefix(argparse.Action):
    """Prints the value for CMAKE_PREFIX_PATH: the folder of the installed package."""

    def __init__(self, **more: Any) -> None:
        super().__init__(nargs=0, **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        prefix = Path(torchette.__file__).parent
        if not (prefix / "lib" / "cmake" / "torchette").exists():
            parser.error(f"{prefix} is a checkout: cmake --install build/dev --prefix DIR, and use DIR")
        print(prefix)
        parser.exit(DONE)


def verbs() -> list[str]:
    """Returns the sorted names of the verbs: the modules of this folder, with hyphens."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name.replace("_", "-") for name in names if not name.startswith("_"))


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(prog="torchette", description=__doc__)
    parser.add_argument("--version", action="version", version=f"torchette {torchette.__version__}")
    parser.add_argument("--cmake-prefix", action=_CMakePrefix, help="print where CMake finds the C++ runtime")
    commands = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    for name in verbs():
        module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
        aliases = getattr(module, "ALIASES", ())
        run = getattr(module, "run", None)
        module.arguments(command(commands, name, module.__doc__ or "", run, aliases))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, by default that of the process, and returns its exit code."""
    options = _parser().parse_args(argv)
    try:
        with _plain_warnings(options.prog):
            if getattr(options, "writes_file", False) and options.output is not None:
                check_target(options.output)
            result: int = options.run(options)
        sys.stdout.flush()
        return result
    except BrokenPipeError:
        # The reader, such as `head`, closed the pipe. Python's flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (TorchetteError, OSError) as error:
        if _wants_traceback():
            raise
        ours = error if isinstance(error, TorchetteError) else file_error(error)
        print(error_text(options.prog, ours), file=sys.stderr)
        return CHECK_FAILED if isinstance(error, CompileError) else UNUSABLE
    except KeyboardInterrupt:
        return 130


def executor_runner() -> NoReturn:
    """Replaces the process with executor_runner of the installed package, with the same arguments."""
    program = Path(torchette.__file__).parent / "bin" / "executor_runner"
    if not program.exists():
        sys.exit(
            f"executor_runner: {program} does not exist; ./dev setup builds it as build/dev/executor_runner"
        )
    os.execv(program, ["executor_runner", *sys.argv[1:]])


@contextmanager
def _plain_warnings(prog: str) -> Iterator[None]:
    """Prints warnings without their source line, unless the user requested tracebacks."""
    original = warnings.formatwarning

    def text(message: Warning | str, category: type[Warning], *_: object, **__: object) -> str:
        code = getattr(category, "code", "")
        return f"{prog}: warning: {f'[{code}] ' if code else ''}{message}\n"

    if not _wants_traceback():
        warnings.formatwarning = text
    try:
        yield
    finally:
        warnings.formatwarning = original


def _wants_traceback() -> bool:
    return bool(os.environ.get("TORCHETTE_TRACEBACK"))
