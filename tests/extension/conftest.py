# SPDX-License-Identifier: BSD-3-Clause
# C++ programs of this folder, built on demand in the folder that `./dev setup` has filled already.

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "dev"


def run(*command: str | Path, status: int = 0, **more) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    assert done.returncode == status, (
        f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    )
    return done


@pytest.fixture(scope="session")
def built() -> Callable[[str], Path]:
    """From a target of CMakeLists.txt to its file. One process at a time builds."""
    import fcntl

    if shutil.which("cmake") is None or not (BUILD / "CMakeCache.txt").exists():
        pytest.skip("not built by ./dev setup")

    def build(target: str) -> Path:
        with open(BUILD / "extension.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            run("cmake", "--build", BUILD, "--target", target)
        return BUILD / target

    return build
