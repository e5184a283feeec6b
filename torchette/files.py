# SPDX-License-Identifier: BSD-3-Clause
# Writes files atomically, and creates the errors for unusable files.
"""`replacing`, `check_target`, `missing_file`, `missing_folder`, `file_error`, `hints_for`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from torchette.errors import FormatError, ModelNotFoundError, TorchetteError, did_you_mean

# Remedies for files that are passed instead of a .pte file, by suffix.
_OTHER_KINDS = {
    ".py": "compile the model first: `torchette compile {path}:NAME -o {stem}.pte`",
    ".pt2": "compile the exported program first: `torchette compile {path} -o {stem}.pte`",
    ".pt": "a file of torch.save contains no program: load it into its module, and call torchette.compile",
    ".gguf": "compile the language model first: `torchette llm compile {path} -o {stem}.pte`",
    ".bpte": "`torchette validate {path}` runs the cases of a bundled program",
    ".ptd": "a data file contains only weights: pass the .pte file, and this file as its data file",
    ".etdp": "`torchette inspector --etdump_path {path}` shows an ETDump",
}
_OTHER_KINDS[".pth"] = _OTHER_KINDS[".pt"]


def hints_for(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Returns remedies for a file or folder that is not a .pte file; empty if its name and contents are unknown."""
    name = Path(path)
    is_checkpoint = (name / "config.json").is_file()  # a Hugging Face checkpoint
    hint = _OTHER_KINDS[".gguf"] if is_checkpoint else _OTHER_KINDS.get(name.suffix)
    return (hint.format(path=name, stem=name.stem),) if hint else ()


def missing_file(path: str | os.PathLike[str], hints: Sequence[str] = ()) -> ModelNotFoundError:
    """Returns the error for a file that does not exist. It suggests a file in the same folder with a similar name."""
    file = Path(path)
    if not file.parent.is_dir():
        return missing_folder(file.parent, hints)
    siblings = [one.name for one in file.parent.glob(f"*{file.suffix}")]
    return ModelNotFoundError(f"there is no file {file}{did_you_mean(file.name, siblings)}", hints=hints)


def missing_folder(path: str | os.PathLike[str], hints: Sequence[str] = ()) -> ModelNotFoundError:
    """Returns the error for a folder that does not exist."""
    return ModelNotFoundError(f"there is no folder {os.fspath(path)}", hints=hints, code="no-such-folder")


def file_error(error: OSError, hints: Sequence[str] = ()) -> TorchetteError:
    """Converts an operating system error, such as a missing file, to an error of Torchette."""
    name = error.filename
    if isinstance(error, FileNotFoundError) and name:
        return missing_file(name, hints)
    if isinstance(error, IsADirectoryError):
        return FormatError(f"{name} is a folder, not a file", hints=[*hints, *hints_for(name)])
    text = error.strerror or str(error)
    return TorchetteError(f"{name}: {text}" if name else text, hints=hints, code="system-error")


def check_target(path: str | os.PathLike[str]) -> None:
    """Checks that a file can be written to a path, before long work starts.

    Raises:
        ModelNotFoundError: code "no-such-folder": the folder does not exist.
        FormatError: if `path` is a folder.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise missing_folder(target.parent, [f"mkdir -p {target.parent}"])
    if target.is_dir():
        raise FormatError(f"{target} is a folder, not a file")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a temporary file that replaces `path` atomically when the block ends without an error.

    Yields:
        The binary file.

    Raises:
        ModelNotFoundError, FormatError: see `check_target`.
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
            os.chmod(file.name, 0o666 & ~umask)  # the permissions of a file that open() creates
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise
