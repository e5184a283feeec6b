# SPDX-License-Identifier: BSD-3-Clause
# Selects the format of a .pt2 file: torch's format, or ExecuTorch's format if torch cannot store parts of the program.
"""`save` and `load` of ExportedPrograms of any dialect, with debug handles and delegates."""

from __future__ import annotations

import os
import zipfile
from typing import IO, Any

import torch
from torch.export import ExportedProgram

from torchette.errors import FormatError, TorchetteError
from torchette.exir.delegation.delegate import is_delegate_call
from torchette.exir.dialects._ops import EdgeOpOverload
from torchette.exir.graph import calls
from torchette.exir.serde import serialize as serde

_File = str | os.PathLike[str] | IO[bytes]


def save(ep: ExportedProgram, f: _File, *, extra_files: dict[str, Any] | None = None, **options: Any) -> None:
    """Writes a program to a .pt2 file.

    Args:
        ep: a program as torch.export captured it, or in the Edge dialect, with or without delegates. The file of a
            captured program without debug handles is the file that `torch.export.save` writes.
        f: a path or a binary file.
        extra_files: name -> text that is stored next to the program.
        options: those of `torch.export.save`, for a captured program only.

    Raises:
        UnsupportedError: the program has a node that the file format cannot store.

    Example:
        >>> edge = torchette.exir.to_edge(torch.export.export(model, example_inputs))
        >>> torchette.exir.save(edge.exported_program(), "edge.pt2")
    """
    if any(map(_needs_our_form, calls(ep))):
        serde.save(ep, f, extra_files=extra_files)
    else:
        torch.export.save(ep, f, extra_files=extra_files, **options)


def load(f: _File, *, extra_files: dict[str, Any] | None = None, **options: Any) -> ExportedProgram:
    """Returns the program of a .pt2 file that `save` or `torch.export.save` wrote.

    Args:
        f: a path or a binary file.
        extra_files: receives the texts that are stored next to the program.
        options: those of `torch.export.load`.

    Raises:
        FormatError: the file is damaged, or an operator in it is not registered in this process.
        FileNotFoundError: the file does not exist.

    Example:
        >>> program = torchette.exir.load("edge.pt2")
    """
    try:
        if _has_our_form(f):
            return serde.load(f, extra_files=extra_files)
        return torch.export.load(f, extra_files=extra_files, **options)
    except FileNotFoundError:
        raise
    except Exception as error:  # torch raises many types of errors
        text = error.message if isinstance(error, TorchetteError) else str(error)
        reason = text.strip().splitlines() or [type(error).__name__]
        name = f if isinstance(f, (str, os.PathLike)) else getattr(f, "name", "the file")
        raise FormatError(
            f"{name} is not an exported program that this torch can read: {reason[-1][:300]}",
            hints=[
                "write it again with torchette.exir.save or torch.export.save",
                "import the library that registers its operators first",
            ],
        ) from error


def _needs_our_form(node: torch.fx.Node) -> bool:
    """Returns whether torch's file format cannot store all data of a call."""
    target = node.target
    return isinstance(target, EdgeOpOverload) or is_delegate_call(node) or bool(node.meta.get("debug_handle"))


def _has_our_form(f: _File) -> bool:
    """Returns whether a file is an archive of the version that `serde.save` writes. Keeps the position of a file
    object."""
    start = None if isinstance(f, (str, os.PathLike)) else f.tell()
    try:
        with zipfile.ZipFile(f) as archive:
            return archive.read("version") == ".".join(map(str, serde.VERSION)).encode()
    except (KeyError, zipfile.BadZipFile):
        return False
    finally:
        if start is not None:
            f.seek(start)  # type: ignore[union-attr]
