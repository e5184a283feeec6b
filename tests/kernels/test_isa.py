# SPDX-License-Identifier: BSD-3-Clause
# Kernels are compiled once per instruction set level. The linker would merge functions with the same name from several
# levels, and a CPU could execute instructions that it lacks. Therefore the code of each level has unique names.
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEVELS = ("v1", "v3", "v4")


def objects(level: str) -> list[Path]:
    builds = ROOT.glob(f"build/*/torchette/kernels/CMakeFiles/torchette_kernels_{level}_*.dir/**/*.cpp.o")
    newest: dict[str, Path] = {}
    for path in sorted(builds, key=lambda p: p.stat().st_mtime):
        newest[path.as_posix().partition(".dir/")[2]] = path
    return list(newest.values())


@pytest.mark.parametrize("level", LEVELS)
def test_no_code_is_shared_between_levels(level: str) -> None:
    files = objects(level)
    if not files or shutil.which("nm") is None:
        pytest.skip("no objects of this level here, or no nm to read them")
    # A to Z, v, w: symbols with external visibility. Only code matters; data is the same for every CPU.
    listing = subprocess.run(["nm", "-C", "-A", *files], capture_output=True, text=True, check=True).stdout
    shared = [
        line
        for line in listing.splitlines()
        if line.split()[-2:]
        and (fields := line.split(maxsplit=2))[1] in "TWi"
        and f"torchette::{level}::" not in line
        for _ in [fields]
    ]
    assert not shared, "\n".join(shared[:20])


def test_the_levels_agree() -> None:
    """All levels compute the same results except for the last bit. Each level runs in its own process."""
    script = (
        "import torch; from torchette.runtime import _native as n; torch.manual_seed(0)\n"
        "x = torch.randn(999); y = torch.empty(999); s = torch.empty(())\n"
        "n.call_kernel('aten::gelu.out', x, 'none', y); n.call_kernel('aten::sum.IntList_out', y, None, False, None, s)\n"
        "print(float(s))"
    )
    results = []
    for level in LEVELS:
        environment = dict(os.environ, TORCHETTE_ISA=level, PYTHONPATH=str(ROOT))
        run = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        results.append(float(run.stdout))
    assert max(results) - min(results) < 1e-4
