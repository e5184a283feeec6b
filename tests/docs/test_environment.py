# SPDX-License-Identifier: BSD-3-Clause
# docs/environment.md has every environment variable that the sources read, and no other one.

from __future__ import annotations

import re

from tests.building import ROOT

# Reading a variable in Python, C, C++, Rust and the shell; and the names in the table of torchette/backends/vulkan/cache.cpp.
READS = re.compile(
    r"""(?:environ(?:\.get\(|\.setdefault\(|\[)|getenv\(|env::var\(|is_set\(|\$\{)\s*"?'?(TORCHETTE_[A-Z_]+)(?:["']|:-)"""
    r"""|\{"(TORCHETTE_[A-Z_]+)", "[^"]*"\}"""
)
SUFFIXES = {".py", ".cpp", ".h", ".c", ".rs", ".sh", ""}


def test_the_page_has_every_variable() -> None:
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(TORCHETTE_\w+)`", row[0])}
    read = set()
    for folder in ("torchette", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in SUFFIXES and path.is_file() and "build" not in path.relative_to(ROOT).parts[:1]:
                for match in READS.finditer(path.read_text(encoding="utf-8", errors="ignore")):
                    read.add(match[1] or match[2])
    assert read == documented and len(read) > 8
    assert all(len(row) == 4 for row in rows), "name, values, default, effect"
