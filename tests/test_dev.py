# SPDX-License-Identifier: BSD-3-Clause
# ./dev on machines with a missing tool: it names the tool and leaves no partial result.

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout with only ./dev, on a machine that has bash and a few tools."""
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
    for command in (
        "setup",
        "demo",
        "check",
        "test",
        "audit",
        "size",
        "bench",
        "docs",
        "matrix",
        "sweep",
        "release",
    ):
        assert f"\n  {command} " in done.stdout


def test_unknown_command(bare: Path) -> None:
    done = dev(bare, "fly")
    assert done.returncode == 2 and "no command fly" in done.stderr


def test_no_python(bare: Path) -> None:
    done = dev(bare, "setup")
    assert done.returncode == 1 and "no Python 3.10 to 3.14 found" in done.stderr


def test_missing_compiler_without_a_package_manager(bare: Path) -> None:
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


CHANGELOG = (
    "# Changelog\n\n## [1.2.3] - 2026-01-31\n\n### Added\n\n- A thing.\n\n## [1.2.2] - 2026-01-30\n\n- Old.\n"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository that can be released, with stubs of Python and CMake that only write the wheel."""
    (tmp_path / "torchette/extension/rust").mkdir(parents=True)
    (tmp_path / "torchette/runtime").mkdir()
    files = {
        "CHANGELOG.md": CHANGELOG,
        "CMakeLists.txt": "",
        "pyproject.toml": "",
        "torchette/__init__.py": '__version__ = "1.2.3"\n',
        "torchette/extension/rust/Cargo.toml": '[package]\nversion = "1.2.3"\n',
        "torchette/runtime/_native.so": "",
        ".gitignore": ".torchette/\n.venv/\nbin/\ndist/\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    shutil.copy(ROOT / "dev", tmp_path / "dev")
    tools = {
        ".venv/bin/python": """case "$*" in
  "- dev") echo ninja ;;
  *"-r /dev/stdin") cat >/dev/null ;;
  *"pip wheel"*) mkdir -p .torchette/wheel; touch .torchette/wheel/a.whl ;;
esac""",
        ".venv/bin/auditwheel": "mkdir -p dist; touch dist/torchette-$WHEEL-cp310.whl",
        "bin/cmake": "",
        "bin/g++": "",
        "bin/ccache": "",
    }
    for name, text in tools.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "--quiet", "--message=all")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def release(folder: Path, *arguments: str, wheel: str = "1.2.3") -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "WHEEL": wheel,
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }
    environment |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b.example"}
    command = [str(folder / "dev"), "release", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_release_builds_the_wheel_and_tags_the_version(project: Path) -> None:
    done = release(project, "--dry-run")
    assert done.returncode == 0 and "1.2.3 can be released" in done.stdout, done.stderr
    assert not git(project, "tag") and not (project / "dist").exists()
    done = release(project, wheel="1.2.2")
    assert done.returncode == 1 and "not of 1.2.3" in done.stderr and not git(project, "tag")
    done = release(project)
    assert done.returncode == 0, done.stderr
    assert git(project, "tag", "--list", "--format=%(objecttype) %(contents)").strip() == (
        "tag Torchette 1.2.3\n\n### Added\n\n- A thing."
    )
    done = release(project, "--dry-run")
    assert done.returncode == 1 and "the tag v1.2.3 exists" in done.stderr


def test_release_names_each_reason_against_it(project: Path) -> None:
    git(project, "switch", "--quiet", "--create", "other")
    (project / "torchette/__init__.py").write_text('__version__ = "1.3.0"\n')
    (project / "CHANGELOG.md").write_text(CHANGELOG.replace("2026-01-31", "unreleased"))
    done = release(project)
    assert done.returncode == 1 and not git(project, "tag")
    for reason in (
        "1.3.0 cannot be released",
        "the branch is 'other'",
        "the tree has changes",
        "the newest section is '## [1.2.3] - unreleased'; write '## [1.3.0] - 20",
        "Cargo.toml: the version is not 1.3.0",
    ):
        assert reason in done.stderr
    assert release(project, "--fast").returncode == 1
