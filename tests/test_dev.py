# SPDX-License-Identifier: BSD-3-Clause
# ./dev on machines where something is missing: it says what, and leaves nothing half done.

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout with ./dev alone, on a machine that has bash and a few tools."""
    shutil.copy(ROOT / "dev", tmp_path / "dev")
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "cat", "dirname", "mkdir", "tail"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    return tmp_path


def dev(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [shutil.which("bash") or "bash", str(folder / "dev"), *arguments]
    return subprocess.run(
        command, env={"PATH": str(folder / "bin")}, capture_output=True, text=True, check=False
    )


def test_help_needs_nothing(bare: Path) -> None:
    done = dev(bare, "--help")
    assert done.returncode == 0
    for command in ("setup", "demo", "check", "test", "size", "bench", "docs", "matrix"):
        assert f"\n  {command} " in done.stdout


def test_unknown_command(bare: Path) -> None:
    done = dev(bare, "fly")
    assert done.returncode == 2 and "no command fly" in done.stderr


def test_no_python(bare: Path) -> None:
    done = dev(bare, "setup")
    assert done.returncode == 1 and "no Python 3.10 to 3.13 found" in done.stderr


def test_no_compiler_and_nothing_to_install_it_with(bare: Path) -> None:
    (bare / "bin" / "python3").symlink_to(sys.executable)
    done = dev(bare, "setup")
    assert done.returncode == 1
    assert "missing and cannot be installed from here: g++" in done.stderr
    assert not (bare / ".venv").exists()


def test_a_failing_step_shows_its_log_and_leaves_no_stamp(bare: Path) -> None:
    python = bare / "bin" / "python3"
    python.write_text('#!/bin/sh\ncase "$*" in *venv*) echo disk full >&2; exit 1;; esac\n')
    python.chmod(0o755)
    (bare / "bin" / "g++").symlink_to(python)
    done = dev(bare, "setup")
    assert done.returncode == 1
    assert "FAIL virtual environment" in done.stderr and "disk full" in done.stderr
    assert not (bare / ".venv").exists()
