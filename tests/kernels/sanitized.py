# SPDX-License-Identifier: BSD-3-Clause
# Builds a C++ program of the tests with the real kernels and sanitizers, in the folder that the core's own tests share;
# or the Python module so, in a folder of its own; or either with all backends, XNNPACK's library itself included. Runs
# Python code with such a module.

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


# Puts the sanitized module where the one of the checkout would be imported.
_IMPORT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("torchette.runtime._native", {module!r})
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
"""


def _libraries() -> str:
    """libasan, which must come before everything else in a process whose main program was built without it; and the
    library of C++, of which it looks up at its start how exceptions are thrown: Python itself does not bring it, and the
    first exception of an extension module would end the process."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None or sys.platform != "linux":
        pytest.skip("AddressSanitizer is preloaded on Linux with a C++ compiler only")
    paths = []
    for name in ("libasan.so", "libstdc++.so.6"):
        found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True)
        paths.append(found.stdout.strip())
    if not all(map(os.path.isabs, paths)):
        pytest.skip(f"{compiler} brings no libasan.so")
    return " ".join(paths)


def python(code: str, module: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs code under AddressSanitizer; what it imports of the runtime is `module`. Skips where that cannot be."""
    # Python keeps small objects in pools of its own, where the sanitizer does not see them come and go.
    env = {
        **os.environ, "LD_PRELOAD": _libraries(), "PYTHONMALLOC": "malloc", "PYTHONPATH": str(ROOT),
        "ASAN_OPTIONS": "detect_leaks=0",
    }  # fmt: skip

    def run(code: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT)

    if run("pass").returncode:
        pytest.skip("libasan cannot be preloaded here")
    return run((_IMPORT.format(module=str(module)) if module else "") + code)
