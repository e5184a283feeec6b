# SPDX-License-Identifier: BSD-3-Clause
# In: the options shared by the verbs of language models. Out: a session, and checked generation options.
"""Sessions and generation options of language models."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from torchette.cli import UsageError, _method
from torchette.cli._compiled import program_of
from torchette.errors import InputError
from torchette.llm.options import OPTIONS, Option, checked


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the model and the options for loading it."""
    parser.add_argument(
        "file",
        metavar="MODEL",
        type=Path,
        help="a compiled language model; a folder or GGUF file is compiled once and cached",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        type=Path,
        help="a tokenizer.json, SentencePiece or tiktoken file, instead of the tokenizer of the model",
    )
    parser.add_argument(
        "--data-file",
        metavar="FILE.ptd",
        action="append",
        default=[],
        help="weights of the file that are stored separately; may be repeated",
    )
    _method.threads_argument(parser)


def draft_argument(parser: argparse.ArgumentParser) -> None:
    """Declares a draft model for speculative decoding."""
    parser.add_argument(
        "--draft",
        metavar="SMALL.pte",
        type=Path,
        help="a small model with the same vocabulary that proposes tokens; the answers do not change",
    )


def option_arguments(parser: argparse.ArgumentParser, *groups: str) -> None:
    """Declares the generation options of these groups in engine/options.def. `given_options` reads them."""
    for option in OPTIONS:
        if option.group in groups:
            names = [f"--{name.replace('_', '-')}" for name in option.spellings]
            also = f" (also {names[1]})" if names[1:] else ""
            values = {"dest": option.name, "default": None, **_values(option)}
            parser.add_argument(names[0], help=f"{option.description}{also}".replace("%", "%%"), **values)
            if names[1:]:
                parser.add_argument(*names[1:], help=argparse.SUPPRESS, **values)


def _values(option: Option) -> dict[str, Any]:
    """Returns the arguments of `add_argument` for the values of an option."""
    if option.type == "Flag":
        return {"action": argparse.BooleanOptionalAction}
    if option.type == "Texts":
        return {"action": "append", "metavar": "TEXT"}
    if option.type == "Biases":
        return {"action": "append", "metavar": "TOKEN=X", "type": _bias}
    if option.type in ("Text", "Schema"):
        return {"metavar": "FILE", "type": Path}

    def value(text: str) -> Any:
        try:
            return option.checked(float(text) if option.type == "Number" else int(text))
        except (InputError, ValueError):
            raise argparse.ArgumentTypeError(f"must be {option.accepted_values}, got {text!r}") from None

    return {"metavar": "X" if option.type == "Number" else "N", "type": value}


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be TOKEN=X, such as 17=-2.5, got {text!r}") from None


def given_options(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the generation options that the user set, checked by `torchette.llm.options.checked`.

    Raises:
        UsageError: the file of a schema is not JSON, or a text file is not UTF-8.
    """
    values: dict[str, Any] = {}
    for option in OPTIONS:
        value = getattr(options, option.name, None)
        if value is None:
            continue
        if option.type == "Biases":
            value = dict(value)
        elif option.type == "Text":
            try:
                value = value.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise UsageError(f"{value} is not UTF-8 text: {error}") from None
        elif option.type == "Schema":
            try:
                value = json.loads(value.read_bytes())
            except ValueError as error:
                raise UsageError(f"{options.schema} is not JSON: {error}") from None
        values[option.name] = value
    return checked(values)


def session(options: argparse.Namespace, adapter: str | Path | None = None) -> Any:
    """Returns a session of the model. Raises as `torchette.llm.Session`."""
    from torchette.llm.session import Session

    return Session(
        program_of(options.file, options.tokenizer),
        tokenizer=options.tokenizer,
        data_files=options.data_file,
        adapter=adapter,
        threads=options.threads,
    )
