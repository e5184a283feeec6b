# SPDX-License-Identifier: BSD-3-Clause
# Builds a C++ program of the tests with the real kernels and sanitizers, in the folder that the core's own tests share;
# or the Python module so, in a folder of its own; or either with all backends, XNNPACK's library itself included.

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "sanitize"


def _xnnpack(folder: Path) -> list[str]:
    """CMake's option for the library, built with sanitizers from the sources that `./dev xnnpack` has fetched."""
    sources, library = ROOT / ".torchette/xnnpack/src", folder / "library"
    if not sources.exists():
        return []
    library.mkdir(parents=True, exist_ok=True)
    if not (library / "src").exists():
        (library / "src").symlink_to(sources)
    script = ROOT / "torchette/backends/xnnpack/build_library.sh"
    flags = "-fsanitize=address -fno-omit-frame-pointer -g1"
    done = subprocess.run(
        ["bash", script, library], env={**os.environ, "CFLAGS": flags}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return [f"-DTORCHETTE_XNNPACK_DIR={library}"]


def build(target: str, python: bool = False, backends: bool = False) -> Path:
    """The file that this CMake target makes; only what has changed is compiled. Skips where there is no cmake."""
    name = "sanitize-backends" if backends else "sanitize-python" if python else "sanitize"
    folder = BUILD.with_name(name)
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    configure = [
        *("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1"),
        *(f"-DTORCHETTE_BUILD_PYTHON={python or backends}", f"-DTORCHETTE_BUILD_TESTS={not python or backends}"),
        *("-DTORCHETTE_SANITIZE=ON", "-DTORCHETTE_ONE_LEVEL=ON", f"-DPython_EXECUTABLE={sys.executable}"),
        *(_xnnpack(folder) if backends else ()),
    ]  # fmt: skip
    for command in (configure, ["cmake", "--build", folder, "--target", target]):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return next(folder.glob(f"{target}.*.so"), folder / target)
