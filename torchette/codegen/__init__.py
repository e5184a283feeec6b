# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file. Out: a folder of C++ that computes the same results without a runtime: weights, static memory, a
# function for each method that calls the kernels in sequence, and the sources of these kernels.
"""Converts a .pte file to C++ without an interpreter. `codegen` writes the folder.

* `flow`: converts jumps to branches and loops
* `methods`: translates one method to C++
* `unit`: the files
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Container
from pathlib import Path

from torchette.build import selection
from torchette.codegen.unit import about_line, unit
from torchette.devtools.embed import identifier
from torchette.errors import InputError
from torchette.format import pte
from torchette.runtime import Runtime

__all__ = ["codegen"]


def codegen(
    source: str | Path, folder: str | Path, *, name: str | None = None, temp: int | None = None
) -> list[Path]:
    """Writes a program as C++.

    Args:
        source: a .pte file.
        folder: created if it does not exist. Nothing is written if the program is rejected. Files that an earlier call wrote
            under the same name and that this program does not need are removed.
        name: the name of the files, and the prefix of every symbol; by default the name of the .pte file.
        temp: size of the kernels' scratch memory in bytes; by default their requirement at the upper bounds of all
            sizes.

    Returns:
        The paths of the written files.

    Raises:
        FormatError, ModelNotFoundError, RuntimeLoadError: the program does not exist or is damaged.
        UnsupportedError: the program needs a backend, a custom kernel, or sizes that depend on data.
        InputError: the scratch memory depends on data, and `temp` is not given.

    Example:
        >>> codegen("net.pte", "generated")
    """
    source, folder = Path(source), Path(folder)
    if temp is not None and temp < 0:
        raise InputError(f"temp must not be negative, got {temp} bytes")
    file = pte.load_file(source)
    Runtime.get().load_program(source)  # checks every value and instruction
    dtypes = selection.Selection(None, selection.of_file(source).dtypes)
    unit_name = identifier(name or source.stem)
    texts = unit(file, unit_name, temp, dtypes.header())
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".codegen-") as made:
        for path, text in texts.items():
            (Path(made) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(made) / path).write_text(text, encoding="utf-8")
        for part in sorted(Path(made).iterdir()):
            if (folder / part.name).is_dir():
                shutil.rmtree(folder / part.name)
            part.replace(folder / part.name)
    _remove_stale(folder, unit_name, texts)
    return sorted(folder / path for path in texts)


def _remove_stale(folder: Path, name: str, written: Container[str]) -> None:
    """Removes the generated C++ files of an earlier program of the same name, which would no longer compile."""
    for path in folder.glob(f"{name}_*.cpp"):
        if path.name not in written:
            with path.open(encoding="utf-8", errors="replace") as text:
                if text.readline() == f"// {about_line(name)}\n":
                    path.unlink()
