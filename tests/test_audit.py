# SPDX-License-Identifier: BSD-3-Clause
# ./dev audit: the dependencies of this checkout are allowed, every source has its licence line, and each rule finds a violation.

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import audit
from tests.audit import EXCEPTIONS, PERMISSIVE, SEPARATE, is_allowed

PERMISSIVE_TEXT = "Permission is hereby\ngranted, free of charge, to any person"


def test_everything_in_this_checkout_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([]) == 0, capsys.readouterr().out
    printed = capsys.readouterr().out
    assert "sources without the licence line: 0\n" in printed and printed.endswith("\n0 problems\n")
    for name, used_by in (
        ("numpy", "the wheel"),
        ("torch", "extra export"),
        ("nanobind", "the Python module"),
    ):
        assert any(line.startswith(f"{name} ") and used_by in line for line in printed.splitlines()), name


@pytest.mark.parametrize("program", ["tests.audit", "benchmarks.core_size"])
def test_scripts_have_help_and_refuse_unknown_options(program: str) -> None:
    for option, status in (("--help", 0), ("--no-such-option", 2)):
        command = [sys.executable, "-m", program, option]
        done = subprocess.run(command, cwd=audit.ROOT, capture_output=True, text=True)
        assert done.returncode == status and "usage: " in done.stdout + done.stderr, done.stderr


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("MIT AND BSD-3-Clause", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND (Apache-2.0 OR GPL-2.0-only)", True),
        ("MIT OR GPL-3.0-only AND GPL-2.0-only", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-2.0-only WITH Unknown-exception", False),
        ("3-Clause Words", False),
        ("()", False),
        ("", False),
    ],
)
def test_licence_expressions(expression: str, allowed: bool) -> None:
    assert is_allowed(expression, PERMISSIVE) == allowed


def test_copyleft_licences_are_in_no_list() -> None:
    assert not [name for name in PERMISSIVE | SEPARATE if "GPL" in name]
    assert all(is_allowed(f"GPL-2.0-only WITH {name}", PERMISSIVE) for name in EXCEPTIONS)


def install(folder: Path, name: str, *lines: str, text: str = "") -> None:
    """Writes a package's metadata like pip."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "\n".join(["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *lines, "", ""])
    )
    (info / "RECORD").write_text(f"{info.name}/METADATA,,\n{info.name}/LICENSE,,\n")
    (info / "LICENSE").write_text(text)


def problems(folder: Path, wheel: str = "", fast: str = "", dev: str = "") -> dict[str, str]:
    """Returns the problems, by package, that the audit reports for a project with these requirements."""
    project = folder / "pyproject.toml"
    project.write_text(
        f'[project]\ndependencies = ["numpy"{wheel}]\n[project.optional-dependencies]\n'
        f"fast = [{fast}]\ndev = [{dev}]\n"
    )
    return {row.name: row.problem for row in audit.packages(project) if row.problem}


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def test_a_package_with_a_forbidden_licence_is_found(packages: Path) -> None:
    install(packages, "sharer", "License-Expression: GPL-3.0-only")
    install(packages, "innocent", "License: MIT", "Requires-Dist: sharer")
    install(packages, "worded", "Classifier: License :: OSI Approved :: GNU Affero General Public License v3")
    assert problems(packages, fast='"innocent"') == {
        "sharer": "the licence GPL-3.0-only is not allowed for extra fast by innocent"
    }
    assert list(problems(packages, fast='"worded"')) == ["worded"]
    assert problems(packages, dev='"innocent", "worded"') == {}, "tools of a checkout are not distributed"


def test_a_package_without_a_licence_or_that_is_absent_is_found(packages: Path) -> None:
    install(packages, "silent")
    install(packages, "written", text=PERMISSIVE_TEXT)
    found_problems = problems(packages, fast='"silent", "written"', dev='"no-such-package-1234"')
    assert found_problems == {
        "silent": "states no licence",
        "no-such-package-1234": "is not installed: ./dev setup",
    }


def test_wheel_requires_only_numpy(packages: Path) -> None:
    install(packages, "harmless", "License-Expression: MIT")
    install(packages, "shared", "License-Expression: MPL-2.0")
    assert "numpy alone" in problems(packages, wheel=', "harmless"')["harmless"]
    assert problems(packages, fast='"harmless", "shared"') == {}
    assert "not allowed for the wheel" in problems(packages, wheel=', "shared"')["shared"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Creates a repository with one valid source."""
    (tmp_path / "torchette").mkdir()
    text = '// SPDX-License-Identifier: BSD-3-Clause\n#include <cmath>\n#include "own.h"\n#include <sys/stat.h>\n'
    (tmp_path / "torchette" / "right.cpp").write_text(text)
    (tmp_path / "torchette" / "own.h").write_text("// SPDX-License-Identifier: BSD-3-Clause\n")
    return tmp_path


def track(tree: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tree], check=True)
    subprocess.run(["git", "-C", tree, "add", "-A"], check=True)


def test_a_header_of_a_library_without_a_row_is_found(tree: Path) -> None:
    track(tree)
    assert not [row for row in audit.libraries(tree) if row.problem]
    (tree / "torchette" / "right.cpp").write_text("#include <unknown/library.h>\n#include <zlib.h>\n")
    headers = [row.name for row in audit.libraries(tree) if row.problem]
    assert headers == ["unknown/library.h", "zlib.h"]


def test_a_source_without_the_licence_line_is_found(tree: Path) -> None:
    (tree / "torchette" / "bare.py").write_text("x = 1\n")
    (tree / "torchette" / "copied.js").write_text("// SPDX-License-Identifier: LGPL-2.1-only\n")
    (tree / "torchette" / "CMakeLists.txt").write_text("# none\n")
    (tree / "README.md").write_text("text\n")
    track(tree)
    names = ["torchette/CMakeLists.txt", "torchette/bare.py", "torchette/copied.js"]
    assert [row.name for row in audit.sources(tree)] == names


def test_exit_status_states_whether_everything_is_allowed(
    tree: Path, packages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / ".gitignore").write_text("site/\n")
    project = "# SPDX-License-Identifier: BSD-3-Clause\n[project]\n"
    (tree / "pyproject.toml").write_text(project + 'optional-dependencies.fast = ["sharer"]\n')
    track(tree)
    install(packages, "sharer", "License-Expression: MIT")
    assert audit.main([], tree) == 0, capsys.readouterr().out
    metadata = packages / "sharer-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("MIT", "GPL-3.0-only"))
    assert audit.main([], tree) == 1
    assert "NOT ALLOWED: the licence GPL-3.0-only" in capsys.readouterr().out


def test_libraries_that_the_xnnpack_script_fetches_have_rows() -> None:
    script = (audit.ROOT / "torchette/backends/xnnpack/build_library.sh").read_text(encoding="utf-8")
    listed = script.split("SOURCES=(\n")[1].split("\n)")[0]
    fetched = {line.split()[0].strip('"') for line in listed.splitlines()}
    assert fetched <= {library.name.lower() for library in audit.LIBRARIES} and len(fetched) == 5
