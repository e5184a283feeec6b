# SPDX-License-Identifier: BSD-3-Clause
# The C++ runtime runs every reference model from static memory: a program in which malloc ends the process gives eager's
# answer.

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.models import artifacts
from tests.models.artifacts import each_model

BUILD = Path(__file__).parents[2] / "build" / "dev"

pytestmark = pytest.mark.skipif(
    shutil.which("cmake") is None or not (BUILD / "CMakeCache.txt").exists(),
    reason="not built by ./dev setup",
)


@pytest.fixture(scope="module")
def heapless() -> Path:
    """The program; built at most once by each test process, one process at a time."""
    import fcntl

    with open(BUILD / "heapless.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            ["cmake", "--build", BUILD, "--target", "torchette_heapless"], capture_output=True, text=True
        )
    assert done.returncode == 0, done.stdout[-4000:]
    return BUILD / "torchette_heapless"


def _run(program: Path, file: bytes, inputs: list[np.ndarray], folder: Path) -> bytes:
    (folder / "model.pte").write_bytes(file)
    (folder / "inputs").write_bytes(b"".join(array.tobytes() for array in inputs))
    done = subprocess.run(
        [program, folder / "model.pte", folder / "inputs", folder / "outputs"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return (folder / "outputs").read_bytes()


@each_model
def test_runs_without_a_heap(name: str, heapless: Path, tmp_path: Path) -> None:
    inputs = [tensor.numpy() for tensor in artifacts.args(name)]
    output = np.frombuffer(_run(heapless, artifacts.our_file(name), inputs, tmp_path), np.float32)
    artifacts.assert_equal_to_eager(output.reshape(artifacts.eager(name).shape).copy(), name)


def test_faults_are_errors_without_a_heap(heapless: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="error 0x23"):
        _run(heapless, artifacts.our_file("digits")[:-5000], [], tmp_path)
