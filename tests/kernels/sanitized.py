# SPDX-License-Identifier: BSD-3-Clause
# Runs Python code under AddressSanitizer, with the Python module of the tree `asan` of tests/building.py.

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.building import CXX, ROOT

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
    compiler = shutil.which(CXX)
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
