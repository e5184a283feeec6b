# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file, the name of a method and the user's text for its inputs. Out: the loaded method and its inputs.
"""Loads methods of compiled models, with inputs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchette.cli import UsageError
from torchette.cli import _inputs as inputs
from torchette.cli._console import note
from torchette.devtools.inspect import MethodInfo, describe
from torchette.devtools.random_inputs import input_texts, random_inputs
from torchette.errors import did_you_mean
from torchette.units import wrong_count


class Chosen(NamedTuple):
    """A method of a file, its description, and a value for each of its inputs."""

    path: Path
    info: MethodInfo
    inputs: list[Any]
    threads: int | None  # None: the default of the runtime


def threads_argument(parser: argparse.ArgumentParser) -> None:
    """Declares the number of threads for `Program.load_method`."""
    parser.add_argument(
        "--threads", metavar="N", type=int, help="threads that run a method (default: the physical cores)"
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options for the method and its inputs."""
    parser.add_argument("file", metavar="MODEL.pte", type=Path, help="a compiled model")
    parser.add_argument(
        "--method", default=None, help="the method to call (default: forward, or the only one)"
    )
    parser.add_argument("--inputs", action="append", metavar="INPUT", help=inputs.HELP)
    parser.add_argument("--seed", type=int, default=0, help="seed of generated inputs (default: 0)")
    threads_argument(parser)


def choose(options: argparse.Namespace, example: Sequence[Any] | None = None) -> Chosen:
    """Returns the method and the inputs that the options select; without --inputs those of `example`, or random ones.

    Raises:
        UsageError: there is no such method, or the number of inputs is wrong.
        FormatError: the file is not a program.
    """
    info = named(describe(options.file).methods, options)
    if options.inputs is None and example is None:
        values = random_inputs(info, options.seed)
        if values:
            note_random(options.file, input_texts(info, values))
        return Chosen(options.file, info, values, options.threads)
    input_values = list(example or ())
    if options.inputs is not None:
        input_values = inputs.from_texts(options.inputs, seed=options.seed)
    if len(input_values) != len(info.inputs):
        expected = [f"{port.name}: {port.text}" for port in info.inputs]
        raise UsageError(wrong_count(f"method {info.name!r}", expected, len(input_values)))
    return Chosen(options.file, info, input_values, options.threads)


def named(methods: list[MethodInfo], options: argparse.Namespace) -> MethodInfo:
    """Returns the method that the options name. Raises UsageError if there is no such method."""
    known = {method.name: method for method in methods}
    name = options.method or (next(iter(known)) if len(known) == 1 else "forward")
    if name not in known:
        names = ", ".join(sorted(known))
        raise UsageError(f"{options.file} has no method {name!r}; it has {names}{did_you_mean(name, known)}")
    return known[name]


def load(chosen: Chosen, *, tracing: bool = False, aten: bool = False) -> Any:
    """Loads a method, optionally with tracing, or in ATen mode.

    Raises:
        NativeModuleError: the runtime is not built.
        MissingPackageError, BuildError: ATen mode cannot be compiled on this machine.
        RuntimeLoadError: the runtime cannot load the file.
    """
    from torchette.runtime import Runtime

    program = Runtime.get(aten).load_program(chosen.path)
    return program.load_method(chosen.info.name, threads=chosen.threads, tracing=tracing)


def note_random(path: Path | None, inputs: Iterable[str]) -> None:
    """Prints that inputs are random, with their names and types."""
    note(f"random inputs with the shapes in {path}: {', '.join(inputs)}; use --inputs to set them")
