# SPDX-License-Identifier: BSD-3-Clause
# Weights are not copied: loading a large program from a mapped file uses almost no memory.

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

import torchette

MEASURE = """
import sys
from torchette.runtime import Runtime

def resident() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * 4096

runtime = Runtime.get()  # imports the native module
before = resident()
method = runtime.load_program(sys.argv[1]).load_method("forward")
print(resident() - before)
"""


def test_large_program_is_mapped(tmp_path: Path) -> None:
    module = torch.nn.Linear(5120, 5120, bias=False).eval()
    path = tmp_path / "large.pte"
    torchette.compile(module, (torch.ones(1, 5120),)).save(path)
    assert path.stat().st_size > 100e6
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 5e6
