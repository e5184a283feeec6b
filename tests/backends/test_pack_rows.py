# SPDX-License-Identifier: BSD-3-Clause
"""Weights in the order in which XNNPACK's kernels read them: needs no XNNPACK."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.building import CXX, ROOT


def test_columns(tmp_path: Path) -> None:
    built = tmp_path / "pack_rows_test"
    options = ["-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    source = ROOT / "tests/backends/pack_rows_test.cpp"
    command = [CXX, *options, "-fno-sanitize-recover=all", f"-I{ROOT}", source, "-o", built]
    subprocess.run(command, check=True, capture_output=True, text=True)
    result = subprocess.run([built], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
