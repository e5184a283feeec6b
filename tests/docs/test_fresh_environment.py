# SPDX-License-Identifier: BSD-3-Clause
# The steps of a new user: a clone, a new virtual environment, and the commands of the README and of the guides, unchanged except
# for the index of torch's CPU build, which is replaced by the pinned torch of the tests.

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.building import ROOT
from tests.conftest import PINNED_TORCH
from tests.test_docs import NET, blocks, save_smollm

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fresh")]

USERS_NET = re.sub(r"    example_inputs = .*\n", "", NET)  # a user's model does not have it
assert USERS_NET != NET


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy of the tracked files in their current state."""
    folder = tmp_path_factory.mktemp("fresh") / "torchette"
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in names.split("\0")[:-1]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def bash(script: str, folder: Path, **variables: str) -> str:
    environment = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "TORCHETTE_CACHE")
    }
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=folder, env={**environment, **variables}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def shell_blocks(page: str) -> list[str]:
    text = [block.text for block in blocks(ROOT / page) if block.language == "sh"]
    return [
        re.sub(r"pip install torch --index-url \S+", f"pip install torch=={PINNED_TORCH}", block)
        for block in text
    ]


def python_blocks(page: str) -> list[str]:
    return [block.text for block in blocks(ROOT / page) if block.language == "python"]


@pytest.fixture(scope="module")
def installed(clone: Path) -> Path:
    """Runs the README's first block in the clone: creates .venv and installs the compiler."""
    first = shell_blocks("README.md")[0]
    assert "python3 -m venv" in first and 'pip install ".[export]"' in first
    bash(first, clone)
    return clone


def test_the_quickstart_runs_in_the_checkout_and_elsewhere(installed: Path, tmp_path: Path) -> None:
    for folder in (installed, tmp_path):
        (folder / "quickstart.py").write_text(python_blocks("README.md")[0])
        printed = bash(f"source {installed}/.venv/bin/activate\npython quickstart.py", folder)
        assert printed.split() == ["True"], printed


def test_the_commands_of_the_readme_run(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(USERS_NET)
    np.save(tmp_path / "photo.npy", np.ones((1, 3, 224, 224), np.float32))
    bash(f"source {installed}/.venv/bin/activate\n{shell_blocks('README.md')[1]}", tmp_path)
    assert {"net.pte", "net.html", "scores.npz"} <= {path.name for path in tmp_path.iterdir()}


def test_the_page_about_installing_is_true(installed: Path) -> None:
    assert "native module" in bash(shell_blocks("docs/install.md")[0], installed)


def test_every_extra_installs_and_its_guide_runs(installed: Path, tmp_path: Path) -> None:
    activate = f"source {installed}/.venv/bin/activate"
    commands = [
        line
        for page in ("docs/llm.md", "docs/cross-compile.md", "docs/quantize.md")
        for block in shell_blocks(page)
        for line in block.splitlines()
        if line.startswith("pip install")
    ]
    assert len(commands) >= 2
    bash("\n".join([activate, *commands, 'pip install ".[all]"']), installed)
    (tmp_path / "model.py").write_text(USERS_NET)
    np.save(tmp_path / "photo.npy", np.ones((1, 3, 224, 224), np.float32))
    save_smollm(tmp_path / "smollm")
    lines = [line for line in shell_blocks("docs/llm.md")[0].splitlines() if line.startswith("torchette")]
    assert any("llm compile" in line for line in lines)
    bash("\n".join([activate, *lines]).replace("torchette chat", "echo Hello | torchette chat"), tmp_path)
    shapes = "--inputs 1x3x224x224 --quantize int8 --calibration photo.npy -o small.pte"
    bash(f"{activate}\ntorchette compile model.py:Net {shapes}\ntorchette run small.pte", tmp_path)
    bash(f"{activate}\ntorchette build --list", tmp_path)
