# SPDX-License-Identifier: BSD-3-Clause
# No block of more than MAX_LINES lines appears twice outside tests: one behaviour has one implementation.

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = ("torchette", "examples", "benchmarks")
ENDINGS = {
    ".py", ".c", ".cpp", ".h", ".def", ".java", ".kt", ".swift", ".rs", ".js", ".mjs", ".css", ".html", ".sh", ".cmake",
    ".glsl", ".comp",
}  # fmt: skip
MAX_LINES = 12

_PYTHON_IMPORT = re.compile(r"^[ \t]*(?:from \S+ )?import (?:\([^)]*\)|.*)", re.M)
_IGNORED = re.compile(
    r"\W*$|//|/\*|\*[\s/]|#\s*include\b|#\s*(?:undef|endif|pragma)\b|import\b|use\b|using\b|package\b|from\b.*\bimport\b"
)


class Line(NamedTuple):
    """A line of code: its number in the file, and its text."""

    number: int
    text: str


def lines_of(text: str, ending: str) -> list[Line]:
    """Returns all lines except blank lines, comments, imports, includes and lines of punctuation."""
    if ending == ".py":
        text = _PYTHON_IMPORT.sub(lambda match: "\n" * match[0].count("\n"), text)
    shell = ending in (".py", ".sh", ".cmake")
    return [
        Line(number, line)
        for number, line in enumerate(map(str.strip, text.splitlines()), 1)
        if not _IGNORED.match(line) and not (shell and line.startswith("#"))
    ]


def repeated(files: Mapping[str, list[Line]]) -> Iterator[tuple[str, str, int]]:
    """Yields the two positions of each duplicated block, and its number of lines; only blocks that cannot be extended."""
    known: dict[str, int] = {}
    numbers = {
        name: [known.setdefault(line.text, len(known)) for line in lines] for name, lines in files.items()
    }
    first: dict[tuple[int, ...], tuple[str, int]] = {}
    size = MAX_LINES + 1
    for name, codes in numbers.items():
        covered = 0  # the end of the last repeated block
        for at in range(len(codes) - size + 1):
            block = tuple(codes[at : at + size])
            where = first.setdefault(block, (name, at))
            if where == (name, at) or at + size <= covered:
                continue
            original, begin = where
            length = size
            limit = at if original == name else len(numbers[original])  # a block does not overlap its copy
            if begin + length > limit:
                continue
            while at + length < len(codes) and begin + length < limit:
                if codes[at + length] != numbers[original][begin + length]:
                    break
                length += 1
            covered = at + length
            yield (
                f"{original}:{files[original][begin].number}",
                f"{name}:{files[name][at].number}",
                length,
            )


def test_no_block_appears_twice() -> None:
    files = {
        path.relative_to(ROOT).as_posix(): lines_of(path.read_text(encoding="utf-8"), path.suffix)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in ENDINGS and "__pycache__" not in path.parts
    }
    duplicates = [f"{copy} repeats {length} lines of {block}" for block, copy, length in repeated(files)]
    assert not duplicates, "\n".join(duplicates)


def test_a_repeated_block_is_found() -> None:
    block = [f"call({i})" for i in range(MAX_LINES + 1)]
    one = "\n".join(["def a():", *block])
    two = "\n".join(["import os", "def b():", "", "# why", *block, "return 0"])
    files = {"one.py": lines_of(one, ".py"), "two.py": lines_of(two, ".py")}
    assert list(repeated(files)) == [("one.py:2", "two.py:5", MAX_LINES + 1)]
    files["two.py"] = lines_of(two.replace("call(6)", "call(7)"), ".py")
    assert not list(repeated(files))
