# SPDX-License-Identifier: BSD-3-Clause
# What `./dev setup` has built, for tests that build more of it: one process at a time, and only what is asked for.

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "dev"
CXX = os.environ.get("CXX", "c++")
CC = os.environ.get("CC", "cc")


def run(*command: str | Path, status: int = 0, **more) -> subprocess.CompletedProcess[str]:
    """Runs a command whose exit status must be `status`; its output is text."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    assert done.returncode == status, (
        f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    )
    return done


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Nobody else builds in the folder meanwhile. Skips the test where there is no such folder."""
    if shutil.which("cmake") is None or not (BUILD / "CMakeCache.txt").exists():
        pytest.skip("not built by ./dev setup")
    with open(BUILD / "build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def configure() -> None:
    """The folder as a checkout has it, after a test that made a wheel in it, too."""
    cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    # another cmake would write other command lines, and everything would be compiled anew
    cmake = next(line.partition("=")[2] for line in cache.splitlines() if line.startswith("CMAKE_COMMAND:"))
    run(cmake, "-S", ROOT, "-B", BUILD, "-U", "SKBUILD*", f"-DPython_EXECUTABLE={sys.executable}")


def built(target: str) -> Path:
    """The file of a target of CMakeLists.txt."""
    with locked():
        run("cmake", "--build", BUILD, "--target", target)
    return BUILD / target
