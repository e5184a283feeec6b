# SPDX-License-Identifier: BSD-3-Clause
# Builds a C++ program of the tests with the real kernels and sanitizers, in the folder that the core's own tests share;
# or the Python module so, in a folder of its own.

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "sanitize"


def build(target: str, python: bool = False) -> Path:
    """The file that this CMake target makes; only what has changed is compiled. Skips where there is no cmake."""
    folder = BUILD.with_name("sanitize-python") if python else BUILD
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    configure = [
        *("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1"),
        *(f"-DTORCHETTE_BUILD_PYTHON={python}", f"-DTORCHETTE_BUILD_TESTS={not python}", "-DTORCHETTE_SANITIZE=ON"),
        *("-DTORCHETTE_ONE_LEVEL=ON", f"-DPython_EXECUTABLE={sys.executable}"),
    ]  # fmt: skip
    for command in (configure, ["cmake", "--build", folder, "--target", target]):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return next(folder.glob(f"{target}.*.so")) if python else folder / target
