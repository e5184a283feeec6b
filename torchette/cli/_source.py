# SPDX-License-Identifier: BSD-3-Clause
# In: the user's name for a model: an attribute of a .py file, an importable name, or a saved .pt2. Out: the module or
# exported program, and its example inputs. Requires torch.
"""Finds the model that the user names."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
import traceback
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from torchette.cli import UsageError
from torchette.cli._inputs import from_texts
from torchette.errors import did_you_mean
from torchette.files import missing_file
from torchette.packages import require

HELP = (
    "a model: FILE.py:NAME or MODULE:NAME, where NAME is a module, a class without arguments or a function that "
    "returns a module (or a pair of module and example inputs); or an exported program, FILE.pt2"
)


class Source(NamedTuple):
    """A model, and the positional example inputs that its author provides."""

    model: Any  # torch.nn.Module or torch.export.ExportedProgram
    inputs: tuple[Any, ...] | None


def require_torch() -> Any:
    """Returns torch. Raises MissingPackageError if it is not installed."""
    return require("torch", "compiling")


def load(text: str) -> Source:
    """Loads the model with the user's name for it.

    Raises:
        ModelNotFoundError: the file does not exist.
        UsageError: there is no such name, it is not a model, or the user's code raised an exception. The message is one
            line with the user's file and line number.
    """
    torch = require_torch()
    if text.endswith(".pt2"):
        return Source(_exported(Path(text)), None)
    place, colon, name = text.rpartition(":")
    if text.endswith(".py"):
        raise UsageError(f"{text} does not name a model; use {_models_of(text)}")
    if not colon or not place or not name:
        hints = [f"`torchette run {text}` runs a compiled model"] if text.endswith(".pte") else []
        raise UsageError(f"{text!r} is not {HELP}", hints=hints)
    module = _module(place)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise UsageError(
                f"{place} has no {name!r}; it defines {_names_of(module)}{did_you_mean(part, vars(value))}"
            )
        value = getattr(value, part)
    inputs = None
    if not isinstance(value, torch.nn.Module):
        if not callable(value):
            raise UsageError(f"{text} is a {type(value).__name__}, not {HELP}")
        made_here = isinstance(value, type)
        value = _call(value, text)
        if isinstance(value, tuple) and len(value) == 2:
            value, inputs = value
        if not isinstance(value, torch.nn.Module):
            raise UsageError(f"{text}() returned {type(value).__name__}, expected a torch.nn.Module")
        if made_here:  # the caller has no other opportunity to call eval()
            value.eval()
    if inputs is None:
        inputs = getattr(value, "example_inputs", getattr(module, "example_inputs", None))
        if callable(inputs):
            inputs = _call(inputs, f"{text}.example_inputs")
    return Source(value, inputs if inputs is None or isinstance(inputs, tuple) else _as_tuple(inputs))


def exported(text: str, inputs: Sequence[str] | None, *, seed: int = 0) -> Any:
    """Returns the exported program of the named model.

    A saved program is returned unchanged. A module is captured like the compiler does, on the inputs that the user
    passed or its author provides.

    Raises:
        ExportError: torch.export cannot capture the module.
    """
    torch = require_torch()
    model, _ = model_source = load(text)
    if not isinstance(model, torch.nn.Module):
        return model
    from torchette.capture import capture

    return capture(model, tensors(model_source, inputs, seed=seed), None, None, "forward", train_mode=True)


def tensors(source: Source, texts: Sequence[str] | None, *, seed: int = 0) -> tuple[Any, ...]:
    """Returns the positional inputs for compiling: those that the user passed, or else those of the model.

    Raises:
        UsageError: the user passed none, and the model has none.
    """
    torch = require_torch()
    if texts:
        return tuple(torch.as_tensor(array) for array in from_texts(texts, seed=seed))
    if source.inputs is None and not isinstance(source.model, torch.nn.Module):
        args, kwargs = source.model.example_inputs or ((), {})
        return () if kwargs else tuple(args)
    if source.inputs is None:
        raise UsageError(
            "the inputs of the model are not known; pass each one (--inputs 1x3x224x224), or define an attribute "
            "example_inputs of the model"
        )
    return source.inputs


def _as_tuple(inputs: object) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, list) else (inputs,)


def _exported(path: Path) -> Any:
    """Loads a saved program. Raises FormatError if it is damaged, or requires operators that are not installed."""
    if not path.exists():
        raise missing_file(path)
    from torchette.exir import load as load_program

    with contextlib.suppress(zipfile.BadZipFile):  # `load_program` raises FormatError for it
        _declare_operators(path)
    return load_program(path)


# Module that declares the operators of a namespace, if it is installed.
_LIBRARIES = {
    "quantized_decomposed": "torch.ao.quantization.fx._decomposed",
    "torchao": "torchao",
    "torchvision": "torchvision",
    "llama": "torchette.llm.exporting.custom_ops",
    "dim_order_ops": "torchette.exir.ops",
}


# Members of a saved program that refer to operators, and the namespace in such a reference, in torch's and ExecuTorch's
# form.
_PROGRAMS = re.compile(r"models/.*\.json$|^serialized_exported_program\.json$")
_NAMESPACES = re.compile(rb"(?:torch|dialects\.edge)\.ops\.(\w+)\.")


def _declare_operators(path: Path) -> None:
    """Imports the modules that declare the operators of a saved program; otherwise torch cannot read it."""
    with zipfile.ZipFile(path) as archive:
        texts = [archive.read(name) for name in archive.namelist() if _PROGRAMS.search(name)]
    for name in sorted(set(_NAMESPACES.findall(b"".join(texts)))):
        with contextlib.suppress(ImportError):
            importlib.import_module(_LIBRARIES.get(name.decode(), "torch"))


def _module(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix == ".py":
        if not path.exists():
            raise missing_file(path)
        spec = importlib.util.spec_from_file_location(f"_source_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.parent.resolve()))
        sys.modules[module.__name__] = module
        _guarded(place, spec.loader.exec_module, module)
        return module
    sys.path.insert(0, str(Path.cwd()))
    result: ModuleType = _guarded(place, importlib.import_module, place)
    return result


def _call(function: Callable[..., Any], text: str) -> Any:
    return _guarded(text, function)


def _guarded(text: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Calls the user's code. Converts an exception to a UsageError of one line that names the source line."""
    try:
        return function(*arguments)
    except Exception as error:
        ours = Path(__file__).parent
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")
        ]
        theirs = [frame for frame in frames if ours not in Path(frame.filename).parents]
        place = f" at {theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""
        raise UsageError(
            f"{text} cannot be used{place}: {type(error).__name__}: {_one_line(error)}"
        ) from error


def _models_of(place: str) -> str:
    """Returns the names of the models that a file defines, in the form that the command line accepts."""
    torch, module = require_torch(), _module(place)
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, torch.nn.Module)
        or (
            isinstance(value, type)
            and issubclass(value, torch.nn.Module)
            and value.__module__ == module.__name__
        )
    ]
    return ", ".join(f"{place}:{name}" for name in names[:12]) or f"{place}:NAME"


def _names_of(module: ModuleType) -> str:
    names = [name for name in vars(module) if not name.startswith("_")]
    return ", ".join(names[:12]) or "nothing"


def _one_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
