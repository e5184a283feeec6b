# SPDX-License-Identifier: BSD-3-Clause
# Runs Python code under AddressSanitizer with the Python module of the `asan` build tree of tests/building.py.

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.building import CXX, ROOT

# Imports the sanitized module in place of the regular one.
_IMPORT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("torchette.runtime._native", {module!r})
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
"""


def _libraries() -> str:
    """Returns the libraries to preload: libasan, because the main program is built without it, and libstdc++, in which
    libasan looks up the exception functions at startup. Python does not load libstdc++, and without it the first C++
    exception of an extension module would end the process."""
    compiler = shutil.which(CXX)
    if compiler is None or sys.platform != "linux":
        pytest.skip("AddressSanitizer is preloaded on Linux with a C++ compiler only")
    paths = []
    for name in ("libasan.so", "libstdc++.so.6"):
        done = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True)
        paths.append(done.stdout.strip())
    if not all(map(os.path.isabs, paths)):
        pytest.skip(f"{compiler} does not provide libasan.so")
    return " ".join(paths)


def python(code: str, module: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs code under AddressSanitizer, with `module` as the runtime. Skips the test if this is not possible."""
    # PYTHONMALLOC=malloc disables Python's memory pools, which hide small objects from the sanitizer.
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
