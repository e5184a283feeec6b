# SPDX-License-Identifier: BSD-3-Clause
# Tests that share fixtures run in one process, and the longest files come first.

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.building import ROOT
from tests.distribution import longest_first, scope_of


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/a.py::test_one", "tests/a.py"),
        ("tests/a.py::test_one[x@y]", "tests/a.py"),
        ("tests/a.py::test_one@cross", "cross"),
        ("tests/a.py::test_one[x@y]@report page", "report page"),
    ],
)
def test_scopes(nodeid: str, scope: str) -> None:
    assert scope_of(nodeid) == scope


def test_order() -> None:
    tests = [
        ("a.py::one", False),
        ("b.py::one", False),
        ("b.py::two@group", False),
        ("c.py::one", False),
        ("c.py::two", False),
        ("d.py::one", True),
        ("e.py::one@group", True),
    ]
    assert longest_first(tests) == [2, 6, 5, 3, 4, 0, 1]


FILE = """
import os
import pytest

@pytest.fixture(scope="module")
def made():
    with open(os.environ["MADE"], "a") as file:
        file.write(__name__ + "\\n")

@pytest.mark.parametrize("i", range(6))
def test(made, i):
    pass
"""


def test_a_fixture_of_a_file_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xdist")
    for name in ("test_one", "test_two", "test_three"):
        (tmp_path / f"{name}.py").write_text(FILE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setenv("MADE", str(tmp_path / "made"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.distribution",
        "-n",
        "2",
        "--dist",
        "loadgroup",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "18 passed" in done.stdout, done.stdout + done.stderr
    assert sorted((tmp_path / "made").read_text().split()) == ["test_one", "test_three", "test_two"]
