# SPDX-License-Identifier: BSD-3-Clause
# Paths of several folders on one command line of pytest.

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def test_folders_keep_their_fixtures_if_files_between_them_are_named(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    (tests / "inner").mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    for name in ("conftest.py", "distribution.py"):
        shutil.copy(Path(__file__).with_name(name), tests)
    (tests / "inner" / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture\ndef one():\n    return 1\n"
    )
    (tests / "test_b.py").write_text("def test_b():\n    pass\n")
    for name in "ac":
        (tests / "inner" / f"test_{name}.py").write_text(f"def test_{name}(one):\n    assert one == 1\n")
    paths = ("tests/inner/test_a.py", "tests/test_b.py", "tests/inner/test_c.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *paths]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout
