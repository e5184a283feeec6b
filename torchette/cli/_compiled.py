# SPDX-License-Identifier: BSD-3-Clause
# In: the user's path of a language model. Out: a program; a folder or a GGUF file is compiled once and cached.
"""`program_of`: the .pte file of a language model."""

from __future__ import annotations

import glob
import hashlib
from pathlib import Path

import torchette
from torchette.cache import cache_folder
from torchette.cli._console import note
from torchette.errors import TorchetteError
from torchette.files import missing_file
from torchette.progress import Progress


def program_of(model: Path, tokenizer: Path | None = None) -> Path:
    """Returns the path of a program. For a folder or a GGUF file, returns the path of its program in the cache.

    A program is compiled with the default options of `torchette llm compile` if the cache does not contain it, or if
    the size or time of a file of the model, or the version of Torchette, has changed.

    Args:
        model: a program, a folder or a GGUF file.
        tokenizer: replaces the tokenizer of the model.

    Raises:
        TorchetteError: as `torchette.llm.export`; the hints contain the command that compiles the model.
    """
    if not model.is_dir() and model.suffix.lower() != ".gguf":
        return model
    if not model.exists():
        raise missing_file(model)
    files = sorted(one for one in (model.rglob("*") if model.is_dir() else [model]) if one.is_file())
    files += [] if tokenizer is None else [tokenizer]
    state = [
        torchette.__version__,
        *((str(one), one.stat().st_size, one.stat().st_mtime_ns) for one in files),
    ]
    prefix = f"{_name(model)}-{_hash(model.resolve())}"
    path = cache_folder() / "llm" / f"{prefix}-{_hash(state)}.pte"
    if not path.is_file():
        _compile(model, tokenizer, path)
        for old in path.parent.glob(f"{glob.escape(prefix)}-*.pte"):
            if old != path:
                old.unlink(missing_ok=True)
    return path


def _name(model: Path) -> str:
    """Returns the name of a folder, or of a file without its suffix."""
    return model.resolve().name if model.is_dir() else model.stem


def _hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _compile(model: Path, tokenizer: Path | None, output: Path) -> None:
    from torchette import llm

    command = f"torchette llm compile {model} -o {_name(model)}.pte"
    note(f"compiling {model} once, to {output}; for a smaller and faster model: {command} --quantize 8da4w")
    try:
        with Progress() as progress:
            program = llm.export(model, tokenizer=tokenizer, progress=progress)
        output.parent.mkdir(parents=True, exist_ok=True)
        program.save(output)
    except TorchetteError as error:
        error.hints = (
            *error.hints,
            f"`{command}` compiles the model, with further options (see --help)",
        )
        raise
