# SPDX-License-Identifier: BSD-3-Clause
"""Weights in the order in which XNNPACK's kernels read them: needs no XNNPACK."""

from __future__ import annotations

from pathlib import Path

from tests.building import CXX, ROOT, run


def test_columns(tmp_path: Path) -> None:
    built = tmp_path / "pack_rows_test"
    options = ["-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    source = ROOT / "tests/backends/pack_rows_test.cpp"
    run(CXX, *options, "-fno-sanitize-recover=all", f"-I{ROOT}", source, "-o", built)
    run(built)
