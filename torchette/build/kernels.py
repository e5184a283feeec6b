# SPDX-License-Identifier: BSD-3-Clause
# In: the sources of the kernel library. Out: the typed function and file of each operator, its family, and the files
# that it needs. Only this module reads these sources.
"""The kernel library as C++ sources."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from torchette.build.sources import PACKAGE, ROOT

KERNELS = PACKAGE / "kernels"

# Sources that every kernel is linked with.
RUNTIME = ("torchette/runtime/kernel.cpp", "torchette/runtime/memory.cpp", "torchette/runtime/tensor.cpp")


class Family(NamedTuple):
    """A family of kernels: its name, which is that of its source, and the operators that the source registers.

    Attributes:
        name: name of the source without its suffix.
        operators: full names of the operators.
        levels: number of instruction set levels for which it is compiled, starting with the lowest; wider vectors would
            not make it faster. None for all.
    """

    name: str
    operators: tuple[str, ...]
    levels: int | None


class Function(NamedTuple):
    """The typed function of an operator."""

    source: str  # path below torchette/kernels, such as matmul.cpp
    name: str  # such as mm_out


@functools.cache
def sources() -> tuple[str, ...]:
    """Returns the sources of the kernel library, as paths below torchette/kernels."""
    return tuple(sorted(path.relative_to(KERNELS).as_posix() for path in KERNELS.rglob("*.cpp")))


@functools.cache
def library() -> dict[str, Function]:
    """Returns the typed functions of all operators by full name, such as ``aten::mm.out``.

    They are read from the tables at the end of the sources, and from the .def files and NAME_entries.h that these
    include.
    """
    functions = {}
    for source in sources():
        text = (KERNELS / source).read_text(encoding="utf-8")
        entries = re.findall(
            r'TORCHETTE_KERNEL\("([^"]+)",\s*(\w+(?:<[^>]*>)?|\([^()]*\))\)', re.sub(r"//.*", "", text)
        )
        tables = sorted(set(re.findall(r'#include "torchette/kernels/(\w+\.def)"', text)))
        headers = re.findall(r'#include "torchette/kernels/(\w+_entries\.h)"', text)
        macros = _entry_macros(text + "".join((KERNELS / name).read_text("utf-8") for name in headers))
        for table in tables:
            lines = (KERNELS / table).read_text("utf-8")
            for kind, operator in re.findall(r"^(\w+)\((\w+),", lines, re.M):
                for overload, suffix in macros.get(kind, ()):
                    entries.append((f"aten::{operator}{overload}", f"{operator}{suffix}"))
        for operator, function in entries:
            functions[operator] = Function(source, function)
    return functions


@functools.cache
def families() -> dict[str, Family]:
    """Returns the families of the kernel library by the name of their source."""
    operators: dict[str, list[str]] = {}
    for operator, function in library().items():
        operators.setdefault(function.source, []).append(operator)
    result = {}
    for source in sources():
        text = (KERNELS / source).read_text(encoding="utf-8")
        if registered := re.search(r"^TORCHETTE_(?:KERNELS(_ONCE|_NARROW)?|FAMILY)\(", text, re.M):
            levels = {"_ONCE": 1, "_NARROW": 2}.get(registered[1])
            result[source] = Family(Path(source).stem, tuple(operators.get(source, ())), levels)
    return result


def family_of(source: Path) -> Family | None:
    """Returns the family that a source registers, if any."""
    return families().get(source.relative_to(KERNELS).as_posix())


def _entry_macros(text: str) -> dict[str, list[tuple[str, str]]]:
    """Returns the macros that expand a .def file to table entries, with suffixes of operators and functions."""
    macros: dict[str, list[tuple[str, str]]] = {}
    for name, body in re.findall(r"^#define (\w+)(?:\(name, expression\))?((?:.*\\\n)*.*)", text, re.M):
        entries = re.findall(r'TORCHETTE_KERNEL\("aten::" #name "([.\w]+)",\s*name##(\w+)\)', body)
        if entries or body.strip() in macros:
            macros[name] = entries or macros[body.strip()]
    return macros


def closure(files: Iterable[str]) -> list[str]:
    """Returns the sorted files with all files that they include, and the sources of included headers of kernels.

    Headers that are generated from a schema are returned, but not read.

    Args:
        files: paths from the root, such as ``torchette/kernels/matmul.cpp``.
    """
    known: set[str] = set()
    ahead = list(files)
    while ahead:
        file = ahead.pop()
        if file in known:
            continue
        known.add(file)
        if file.startswith("torchette/schema/"):
            continue
        ahead += included(file)
        source = str(Path(file).with_suffix(".cpp"))
        if file.startswith("torchette/kernels/") and file.endswith(".h") and (ROOT / source).exists():
            ahead.append(source)
    return sorted(known)


def uses_scratch(operator: str) -> bool:
    """Whether the kernel of an operator, or a file that it includes, can request scratch memory."""
    files = closure([f"torchette/kernels/{library()[operator].source}"])
    ours = (ROOT / file for file in files if file.startswith("torchette/kernels/"))
    return any("allocate_temp(" in file.read_text(encoding="utf-8") for file in ours)


def included(file: str) -> list[str]:
    """Returns the files of this project that a file includes."""
    return re.findall(r'^#\s*include "(torchette/[^"]+)"', (ROOT / file).read_text(encoding="utf-8"), re.M)
