# SPDX-License-Identifier: BSD-3-Clause
# In: pyproject.toml, the metadata of the packages that are installed, the includes and the licence lines of the tree. Out: a
# table of the packages and of the C++ libraries with their licences, and exit status 1 if one of them is not allowed.
"""Print the dependencies of Torchette with their licences, and check the licences.

A row is one package or library: its use, its licence, and whether the licence is allowed. Exit status: 0 if
everything is allowed, 1 if not, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
OURS = "BSD-3-Clause"
RUNTIME = {"numpy"}  # the packages that the wheel may require
DEVELOPMENT = {"dev"}  # extras of tools of this checkout, which are not distributed

# Terms that ask for no more than to keep a notice.
PERMISSIVE = {
    "0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "MIT",
    "MIT-CMU", "PSF-2.0", "Zlib",
}  # fmt: skip
# Terms that hold for the package's own files. Users install the package unchanged, next to Torchette.
SEPARATE = {"MPL-2.0"}
# Older metadata states a licence in words: in the field License, or as a classifier.
WORDS = {
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
# Words of the text of a licence, for packages without a licence in their metadata.
TEXTS = {
    "Apache-2.0": "Apache License Version 2.0",
    "BSD-3-Clause": "Neither the name of",
    "BSD-2-Clause": "Redistribution and use in source and binary forms",
    "MIT": "Permission is hereby granted, free of charge",
}


class Library(NamedTuple):
    """A C++ library that a build may use."""

    name: str
    licence: str
    headers: str  # a regular expression of the names in #include lines
    used_by: str


LIBRARIES = (
    Library("nanobind", "BSD-3-Clause", r"nanobind/.*", "the Python module: linked into the wheel"),
    Library("robin-map", "MIT", r"tsl/robin_.*", "nanobind: linked into the wheel"),
    Library("CPython", "PSF-2.0", r"Python\.h", "the Python module: headers"),
    Library("XNNPACK", "BSD-3-Clause", r"xnnpack\.h|xnnpack/.*|src/xnnpack/.*", "the XNNPACK backend, built in a checkout"),
    Library("fxdiv", "MIT", r"fxdiv\.h", "XNNPACK"),
    Library("fp16", "MIT", r"fp16(/.*)?\.h", "XNNPACK"),
    Library("pthreadpool", "BSD-2-Clause", r"pthreadpool\.h", "XNNPACK"),
    Library("cpuinfo", "BSD-2-Clause", r"cpuinfo\.h", "XNNPACK"),
    Library("Vulkan-Headers", "Apache-2.0 OR MIT", r"vulkan/.*", "the Vulkan backend, built in a checkout: headers"),
    Library("PyTorch", "BSD-3-Clause", r"(ATen|c10|torch)/.*", "ATen mode, built in a checkout"),
    Library("OpenJDK", "GPL-2.0-only WITH Classpath-exception-2.0", r"jni\.h", "the Java binding, built in a checkout: headers"),
)  # fmt: skip
# The header of an interface, under terms that except programs that include it.
EXCEPTIONS = {"Classpath-exception-2.0"}
_INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)

# Headers of C++, C, the compilers and the operating systems.
SYSTEM = re.compile(
    r"[a-z_]+|sys/\w+\.h"
    r"|(dlfcn|fcntl|io|math|pthread|sched|stdarg|stdbool|stddef|stdint|stdio|stdlib|string|unistd|windows)\.h"
    r"|(arm_mve|arm_neon|cpuid|emmintrin|immintrin|riscv_vector|wasm_simd128|x86intrin)\.h"
)

# Files that hold data or text, or that change another project's code and are under its licence.
WITHOUT_LINE = re.compile(
    r"(?!.*CMakeLists).*\.(abi|b?pte|ipynb|json|md|patch|png|ptd|txt|typed|xz)"
    r"|(.*/)?(README\.in|LICENSE|\.gitignore|\.clang-format)"
)
_LINE = re.compile(r"SPDX-License-Identifier: (\S+)")


class Row(NamedTuple):
    """A row of the table: one package or library."""

    name: str
    version: str
    used_by: str
    licence: str
    problem: str  # empty if it is allowed


def is_allowed(expression: str, allowed: set[str]) -> bool:
    """Whether an SPDX licence expression can be satisfied with the allowed licences alone."""

    def value(match: re.Match[str]) -> str:
        word = match[0]
        if word in ("AND", "OR"):
            return word.lower()
        licence, _, exception = word.partition(" WITH ")
        return str(licence in allowed or exception in EXCEPTIONS)

    text = re.sub(r"[\w.+-]+ WITH [\w.+-]+|[\w.+-]+", value, expression)
    if not re.fullmatch(r"[()\s]*(True|False)([()\s]*(and|or)[()\s]*(True|False))*[()\s]*", text):
        return False
    try:
        return bool(eval(text))  # True, False, and, or and parentheses; Python has the precedence of SPDX
    except SyntaxError:
        return False


def licence_of(package: importlib.metadata.Distribution) -> str:
    """The licence that the package's metadata or licence file states, as an SPDX expression if possible; else empty."""
    data = package.metadata
    field = data.get("License") or ""
    classifiers = [
        text.rpartition(" :: ")[2]
        for text in data.get_all("Classifier") or []
        if text.startswith("License :: ")
    ]
    stated = data.get("License-Expression") or (field if "\n" not in field.strip() else "")
    stated = stated.strip() or " AND ".join(WORDS.get(text, text) for text in classifiers)
    return WORDS.get(stated, stated) or _licence_of_text(package)


def _licence_of_text(package: importlib.metadata.Distribution) -> str:
    for file in package.files or []:
        if re.search(r"(LICEN[CS]E|COPYING)[^/]*$", str(file)) and "dist-info" in str(file):
            text = " ".join(file.read_text(encoding="utf-8").split())
            return next((name for name, words in TEXTS.items() if words in text), "")
    return ""


def requirements(project: Path) -> dict[str, list[str]]:
    """Returns the requirements in pyproject.toml: those of the wheel under "", and those of each extra."""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    return {"": table.get("dependencies", []), **table.get("optional-dependencies", {})}


def packages(project: Path) -> list[Row]:
    """Returns a row for each package that the wheel or an extra installs, including indirect dependencies."""
    rows: dict[str, Row] = {}
    listed = requirements(project)
    for extra in sorted(listed, key=DEVELOPMENT.__contains__):
        for text in listed[extra]:
            requirement = Requirement(text)
            if canonicalize_name(requirement.name) != "torchette":  # an extra that includes another
                _add(rows, requirement, extra, f"extra {extra}" if extra else "the wheel")
    return list(rows.values())


def _add(rows: dict[str, Row], requirement: Requirement, extra: str, used_by: str) -> None:
    name = canonicalize_name(requirement.name)
    if name in rows:
        return
    try:
        package = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        rows[name] = Row(name, "-", used_by, "-", "is not installed: ./dev setup")
        return
    licence = licence_of(package)
    problem = ""
    if not licence:
        problem = "states no licence"
    elif extra not in DEVELOPMENT and not is_allowed(licence, PERMISSIVE | (SEPARATE if extra else set())):
        problem = f"the licence {licence} is not allowed for {used_by}"
    elif not extra and name not in RUNTIME:
        problem = "the wheel may require numpy alone: make it a package of an extra"
    rows[name] = Row(name, package.version, used_by, licence, problem)
    for text in package.requires or []:
        dependency = Requirement(text)
        if dependency.marker is None or any(
            dependency.marker.evaluate({"extra": extra_name}) for extra_name in (*requirement.extras, "")
        ):
            _add(rows, dependency, extra, used_by.partition(" by ")[0] + f" by {name}")


def libraries(root: Path) -> list[Row]:
    """Returns a row for each C++ library, and for each header without a library."""
    rows = [
        Row(
            library.name,
            "-",
            library.used_by,
            library.licence,
            "" if is_allowed(library.licence, PERMISSIVE) else "the licence is not allowed",
        )
        for library in LIBRARIES
    ]
    known = re.compile("|".join(f"(?:{library.headers})" for library in LIBRARIES))
    for path in _tracked(root, "torchette/*.cpp", "torchette/*.h", "torchette/*.c"):
        names = _INCLUDE.findall((root / path).read_text(encoding="utf-8"))
        rows += [
            Row(name, "-", path, "-", "LIBRARIES in tests/audit.py has no row for this header")
            for name in names
            if not (known.fullmatch(name) or _is_own_or_system(root, path, name))
        ]
    return rows


def _is_own_or_system(root: Path, path: str, name: str) -> bool:
    """Returns whether a header belongs to this tree, the C or C++ library, the compiler, or an operating system."""
    is_own = name.startswith(("torchette/", "executorch/")) or ((root / path).parent / name).exists()
    return is_own or SYSTEM.fullmatch(name) is not None


def sources(root: Path) -> list[Row]:
    """Returns a row for each source of the tree without the licence line at its top."""
    rows = []
    for path in _tracked(root):
        if WITHOUT_LINE.fullmatch(path) or not (root / path).is_file():
            continue
        head = "\n".join((root / path).read_text(encoding="utf-8", errors="replace").splitlines()[:5])
        match = _LINE.search(head)
        if match is None or match[1] != OURS:
            licence = match[1] if match else "-"
            rows.append(
                Row(
                    path,
                    "-",
                    "this tree",
                    licence,
                    f"has no line 'SPDX-License-Identifier: {OURS}' near its top",
                )
            )
    return rows


def _tracked(root: Path, *patterns: str) -> Iterator[str]:
    command = ["git", "-C", str(root), "ls-files", "-z", *patterns]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    yield from filter(None, done.stdout.split("\0"))


def print_table(rows: Sequence[Row]) -> None:
    """Prints each row as a line of columns, with its problem below it."""
    cells = [row[:4] for row in rows]
    widths = [max((len(row[i]) for row in cells), default=0) for i in range(3)]
    for row in rows:
        columns = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        print("  ".join([*columns, row.licence]))
        if row.problem:
            print(f"    NOT ALLOWED: {row.problem}")


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        prog="dev audit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(arguments)
    problems = 0
    tables = {
        "Python packages": packages(root / "pyproject.toml"),
        "C++ libraries": libraries(root),
        "sources without the licence line": sources(root),
    }
    for title, rows in tables.items():
        print(f"\n{title}: {len(rows)}\n")
        print_table(rows)
        problems += sum(bool(row.problem) for row in rows)
    print(f"\n{problems} {'problem' if problems == 1 else 'problems'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
