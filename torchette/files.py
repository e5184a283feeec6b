# SPDX-License-Identifier: BSD-3-Clause
# Writes files at once and whole, and makes the errors for files that cannot be used.
"""`replacing`, `check_target`, `missing_file`, `missing_folder`, `file_error`, `hints_for`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from torchette.errors import FormatError, ModelNotFoundError, TorchetteError, did_you_mean

# What to do with files that are given in place of a .pte file, by suffix.
_OTHER_KINDS = {
    ".py": "compile the model first: `torchette compile {path}:NAME -o {stem}.pte`",
    ".pt2": "compile the exported program first: `torchette compile {path} -o {stem}.pte`",
    ".pt": "a file of torch.save has no program: load it into its module, and call torchette.compile",
    ".gguf": "compile the language model first: `torchette llm compile {path} -o {stem}.pte`",
    ".bpte": "`torchette validate {path}` runs the cases of a bundled program",
    ".ptd": "a data file has weights only: name the .pte file, and this file as its data file",
    ".etdp": "`torchette inspector --etdump_path {path}` shows an ETDump",
}
_OTHER_KINDS[".pth"] = _OTHER_KINDS[".pt"]


def hints_for(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """What to do with a file or a folder that is not a .pte file; empty if its name and contents do not tell."""
    name = Path(path)
    is_checkpoint = (name / "config.json").is_file()  # a folder of Hugging Face
    found = _OTHER_KINDS[".gguf"] if is_checkpoint else _OTHER_KINDS.get(name.suffix)
    return (found.format(path=name, stem=name.stem),) if found else ()


def missing_file(path: str | os.PathLike[str], hints: Sequence[str] = ()) -> ModelNotFoundError:
    """The error for a file that does not exist. It names a file of the same folder with a similar name."""
    file = Path(path)
    if not file.parent.is_dir():
        return missing_folder(file.parent, hints)
    others = [one.name for one in file.parent.glob(f"*{file.suffix}")]
    return ModelNotFoundError(f"there is no file {file}{did_you_mean(file.name, others)}", hints=hints)


def missing_folder(path: str | os.PathLike[str], hints: Sequence[str] = ()) -> ModelNotFoundError:
    """The error for a folder that does not exist."""
    return ModelNotFoundError(f"there is no folder {os.fspath(path)}", hints=hints, code="no-such-folder")


def file_error(error: OSError, hints: Sequence[str] = ()) -> TorchetteError:
    """The error of Torchette for an error of the operating system, such as a file that does not exist."""
    name = error.filename
    if isinstance(error, FileNotFoundError) and name:
        return missing_file(name, hints)
    if isinstance(error, IsADirectoryError):
        return FormatError(f"{name} is a folder, not a file", hints=[*hints, *hints_for(name)])
    text = error.strerror or str(error)
    return TorchetteError(f"{name}: {text}" if name else text, hints=hints, code="system-error")


def check_target(path: str | os.PathLike[str]) -> None:
    """Checks, before long work, that a file can be written to a path.

    Raises:
        ModelNotFoundError: code "no-such-folder": the folder does not exist.
        FormatError: `path` is a folder.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise missing_folder(target.parent, [f"mkdir -p {target.parent}"])
    if target.is_dir():
        raise FormatError(f"{target} is a folder, not a file")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` at once and whole when the block ends, or not at all.

    Raises:
        ModelNotFoundError, FormatError: as `check_target`.
    """
    target = Path(path)
    check_target(target)
    with tempfile.NamedTemporaryFile(
        dir=target.parent, prefix=target.name, suffix=".part", delete=False
    ) as file:
        try:
            yield file  # type: ignore[misc]
            file.flush()
            os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(file.name, 0o666 & ~umask)  # as open() would have made it
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise
