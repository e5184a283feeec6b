# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file, a method's name and what the user wrote for its inputs. Out: the loaded method and its inputs.
"""Methods of compiled models, ready to call."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchette.cli import UsageError
from torchette.cli import _inputs as inputs
from torchette.devtools.inspect import MethodInfo, ValueInfo, describe

# Numbers for inputs that are no tensors, if the user gives none.
PLAIN = {"int": 1, "double": 1.0, "bool": True, "null": None}


class Chosen(NamedTuple):
    """A method of a file, its signature in the file, and a value for each of its inputs."""

    path: Path
    info: MethodInfo
    inputs: list[Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options for the method and its inputs."""
    parser.add_argument("file", metavar="MODEL.pte", type=Path, help="a compiled model")
    parser.add_argument(
        "--method", default=None, help="the method to call (default: forward, or the only one)"
    )
    parser.add_argument("--inputs", action="append", metavar="INPUT", help=inputs.HELP)
    parser.add_argument("--seed", type=int, default=0, help="seed of generated inputs (default: 0)")


def choose(options: argparse.Namespace) -> Chosen:
    """The method and the inputs that the options name; other inputs are generated.

    Raises:
        UsageError: there is no such method, or not one input for each that it takes.
        FormatError: the file is no program.
    """
    info = named(describe(options.file).methods, options)
    if options.inputs is None:
        return Chosen(options.file, info, _made_up(info, options.seed))
    given = inputs.from_texts(options.inputs, seed=options.seed)
    if len(given) != len(info.inputs):
        wanted = ", ".join(f"{port.name} {port.text}" for port in info.inputs)
        raise UsageError(f"{info.name} takes {len(info.inputs)} inputs ({wanted}), {len(given)} are given")
    return Chosen(options.file, info, list(given))


def named(methods: list[MethodInfo], options: argparse.Namespace) -> MethodInfo:
    """The method that the options name. UsageError: there is none."""
    known = {method.name: method for method in methods}
    name = options.method or (next(iter(known)) if len(known) == 1 else "forward")
    if name not in known:
        raise UsageError(f"{options.file} has no method {name!r}; it has {', '.join(sorted(known))}")
    return known[name]


def load(chosen: Chosen, *, tracing: bool = False, aten: bool = False) -> Any:
    """The method, loaded by the runtime, perhaps to tell where its time goes, or on torch's kernels.

    Raises:
        NativeModuleError: the runtime is not built.
        MissingPackageError, BuildError: ATen mode cannot be compiled here.
        RuntimeLoadError: the runtime refuses the file.
    """
    from torchette.runtime import Runtime

    return Runtime.get(aten).load_program(chosen.path).load_method(chosen.info.name, tracing=tracing)


def _made_up(info: MethodInfo, seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [_value(info.values[port.index], port.name, random) for port in info.inputs]


def _value(value: ValueInfo, name: str, random: np.random.Generator) -> Any:
    if value.tensor is None:
        if value.kind not in PLAIN:
            raise UsageError(f"cannot make up input {name}, a {value.kind}")
        return PLAIN[value.kind]
    try:
        return inputs.made_up(value.tensor.sizes, value.tensor.dtype, random)
    except TypeError:
        raise UsageError(f"numpy has no {value.tensor.dtype}, which input {name} is of; use torch") from None
