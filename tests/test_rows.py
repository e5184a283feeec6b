# SPDX-License-Identifier: BSD-3-Clause
# The feature table: its rows are those of the specification, its tests exist, and a failure shows.

from __future__ import annotations

import ast
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import rows
from tests.rows import ROWS, TESTS, Row, Rows

SPECIFICATION = TESTS.parents[1] / "shared" / "spec" / "features.md"


def test_every_row_has_tests() -> None:
    assert len(ROWS) == 128
    assert not [row for row, (feature, tests, _) in ROWS.items() if not feature or not tests]
    assert [*ROWS] == sorted(ROWS, key=lambda row: tuple(map(int, row.split("."))))


@pytest.mark.skipif(not SPECIFICATION.exists(), reason="the specification is not in this checkout")
def test_the_rows_are_those_of_the_specification() -> None:
    numbers = re.findall(r"^\| (\d+\.\d\d) \|", SPECIFICATION.read_text(encoding="utf-8"), re.MULTILINE)
    assert [*ROWS] == numbers


def test_every_test_of_a_row_exists() -> None:
    functions: dict[str, set[str]] = {}
    missing = []
    for row, (_, tests, _) in ROWS.items():
        for test in tests:
            path, _, name = test.partition("::")
            if path not in functions:
                file = TESTS / path
                tree = ast.parse(file.read_text(encoding="utf-8") if file.exists() else "")
                functions[path] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            if not functions[path] or (name and name not in functions[path]):
                missing.append(f"{row}: {test}")
    assert not missing


def test_every_benchmark_of_a_row_exists() -> None:
    parts = (TESTS.parent / "benchmarks" / "__main__.py").read_text(encoding="utf-8")
    for _, _, benchmarks in ROWS.values():
        assert all(f'"{name}": ' in parts for name in benchmarks), benchmarks


def report(test: str, outcome: str, when: str = "call") -> pytest.TestReport:
    return cast(
        pytest.TestReport,
        SimpleNamespace(nodeid=f"tests/{test}", outcome=outcome, when=when, passed=outcome == "passed"),
    )


def test_a_row_is_accepted_if_all_of_its_tests_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ROWS", {"1.01": Row("export", ("a.py::test_one", "b.py"))})
    written: list[str] = []
    terminal: Any = SimpleNamespace(section=written.append, write_line=written.append)

    def outcome(*reports: pytest.TestReport) -> str:
        plugin = Rows(["1.01"])
        for each in reports:
            plugin.pytest_runtest_logreport(each)
        return plugin.line("1.01")[0]

    one, two = report("a.py::test_one[1]", "passed"), report("b.py::test_two", "passed")
    assert outcome(one, two) == "accepted"
    assert outcome(one) == "not run"
    assert outcome(one, report("b.py::test_two", "skipped", "setup")) == "not run"
    assert outcome(one, report("b.py::test_three", "skipped"), two) == "accepted"
    assert outcome(one, two, report("a.py::test_one[2]", "failed")) == "FAILED"
    assert outcome(one, two, report("b.py::test_two", "failed", "setup")) == "FAILED"

    plugin = Rows(["1.01"])
    plugin.pytest_runtest_logreport(one)
    plugin.pytest_terminal_summary(terminal)
    assert written[1].split() == ["1.01", "not", "run", "export", "2", "tests"]
    assert written[2].split() == ["-", "b.py:", "not", "run"]
    assert written[3] == "1 rows: 1 not run"


def test_rows_are_chosen_by_number_or_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert rows.choose(["1.03"]) == ["1.03"]
    assert len(rows.choose(["9"])) == 11 and len(rows.choose(["all"])) == 128
    with pytest.raises(pytest.UsageError, match=r"no row '1\.3'"):
        rows.choose(["1.3"])
    assert rows.main(["10.19", "2.04"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "--row=10.19",
        "--row=2.04",
        *(f"tests/{test}" for row in ("2.04", "10.19") for test in ROWS[row].tests),
    ]
    assert rows.main(["11"]) == 2
    assert "no row '11'" in capsys.readouterr().err
