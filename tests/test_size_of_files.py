# SPDX-License-Identifier: BSD-3-Clause
# No file of torchette/ has more than 800 lines, and no function more than 80 lines of code.

from __future__ import annotations

from pathlib import Path

import lizard
import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_FILE, MAX_FUNCTION = 800, 80
SOURCES = sorted(
    path
    for path in (ROOT / "torchette").rglob("*")
    if path.suffix in (".py", ".cpp", ".h") and "__pycache__" not in path.parts
)


def long_functions(path: Path) -> list[str]:
    """Returns the functions with more lines of code, without comments and docstrings, than MAX_FUNCTION."""
    functions = lizard.analyze_file(str(path)).function_list
    return [f"{path}: {one.name} has {one.nloc} lines" for one in functions if one.nloc > MAX_FUNCTION]


def test_no_file_is_too_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert len(lengths) > 500
    assert not [f"{path} has {length} lines" for path, length in lengths.items() if length > MAX_FILE]


def test_no_function_is_too_long() -> None:
    assert not [line for path in SOURCES for line in long_functions(path)]


@pytest.mark.parametrize(
    ("suffix", "head", "line", "end"),
    [(".cpp", "int f() {", "  g();", "}"), (".py", "def f():", "    g()", "")],
)
def test_a_long_function_is_found(suffix: str, head: str, line: str, end: str, tmp_path: Path) -> None:
    path = tmp_path / f"source{suffix}"
    for count, expected in ((MAX_FUNCTION + 1, 1), (MAX_FUNCTION - 2, 0)):
        path.write_text("\n".join([head, *[line] * count, end, ""]), encoding="utf-8")
        assert len(long_functions(path)) == expected
