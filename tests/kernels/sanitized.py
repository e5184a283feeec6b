# SPDX-License-Identifier: BSD-3-Clause
# Builds a C++ program of the tests with the real kernels and sanitizers, in the folder that the core's own tests share.

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "sanitize"


def build(target: str) -> Path:
    """The program of this CMake target; only what has changed is compiled. Skips where there is no cmake."""
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    configure = [
        *("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1"),
        *("-DTORCHETTE_BUILD_PYTHON=OFF", "-DTORCHETTE_BUILD_TESTS=ON", "-DTORCHETTE_SANITIZE=ON"),
        *("-DTORCHETTE_ONE_LEVEL=ON", f"-DPython_EXECUTABLE={sys.executable}"),
    ]  # fmt: skip
    for command in (configure, ["cmake", "--build", BUILD, "--target", target]):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return BUILD / target
