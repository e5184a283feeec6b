# SPDX-License-Identifier: BSD-3-Clause
# In: the table below. Out: a plugin of pytest that runs the tests of the rows and prints a line for each row.
# `./dev rows` runs it; `./dev test --full` prints the same table at its end.
"""The feature table: each row with the tests that accept it.

A row is accepted if all of its tests pass. A figure that depends on the machine is not a test; the row names the command of
`./dev bench` that measures it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parent


class Row(NamedTuple):
    """A feature: its description, its tests (paths relative to tests/), and the benchmarks of its figures."""

    feature: str
    tests: tuple[str, ...]
    benchmarks: tuple[str, ...] = ()


def _read(text: str) -> dict[str, Row]:
    """Returns the rows of a text. A row is a line "ID feature [| benchmark, ...]" and an indented line for each test."""
    rows: dict[str, Row] = {}
    row = ""
    for line in text.strip().splitlines():
        if line.startswith("  "):
            rows[row] = rows[row]._replace(tests=(*rows[row].tests, line.strip()))
        elif line:
            row, _, feature = line.partition(" ")
            if row in rows:
                raise ValueError(f"two rows have the number {row}")
            feature, _, benchmarks = feature.partition(" | ")
            rows[row] = Row(feature, (), tuple(benchmarks.split(", ")) if benchmarks else ())
    return rows


ROWS: Mapping[str, Row] = _read((TESTS / "rows.txt").read_text(encoding="utf-8"))


def choose(rows: list[str]) -> list[str]:
    """Returns the ids of the rows: "9.10" is one row, "9" all rows of a section, "all" all rows.

    Raises:
        pytest.UsageError: The table has no such row.
    """
    for row in rows:
        if row != "all" and not any(f"{name}.".startswith(f"{row}.") for name in ROWS):
            raise pytest.UsageError(
                f"the feature table has no row {row!r}; the rows are 1.01 to {list(ROWS)[-1]}, and a number such as 9 "
                "chooses a section"
            )
    return [name for name in ROWS if any(row == "all" or f"{name}.".startswith(f"{row}.") for row in rows)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--row",
        action="append",
        default=[],
        metavar="ROW",
        help="run the tests of this row of the feature table, of a section (9), or of all rows (all)",
    )


class Rows:
    """Collects the outcome of every test and prints a line for each row at the end."""

    def __init__(self, chosen: list[str]) -> None:
        self.chosen = chosen
        self.outcomes: dict[str, str] = {}  # a test, without its parameters -> its worst outcome

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        test = re.sub(r"@[\w-]+$", "", report.nodeid).partition("[")[0]
        order = ("passed", "skipped", "failed")
        worst = max(self.outcomes.get(test, "passed"), report.outcome, key=order.index)
        # Some cases of a sweep may be skipped: the test is skipped only if no case ran.
        if {self.outcomes.get(test, report.outcome), report.outcome} == {"passed", "skipped"}:
            worst = "passed"
        self.outcomes[test] = worst

    def outcome(self, test: str) -> str:
        """Returns the outcome of a test, or of all tests of a file: "passed", "skipped", "failed" or "not run"."""
        path = f"tests/{test}"
        outcomes = {
            outcome for name, outcome in self.outcomes.items() if name == path or name.startswith(f"{path}::")
        }
        return next(
            (outcome for outcome in ("failed", "passed", "skipped") if outcome in outcomes), "not run"
        )

    def line(self, row: str) -> tuple[str, list[str]]:
        """Returns the outcome of a row, and the tests that did not pass."""
        outcomes = {test: self.outcome(test) for test in ROWS[row].tests}
        missing = [f"{test}: {outcome}" for test, outcome in outcomes.items() if outcome != "passed"]
        if "failed" in outcomes.values():
            return "FAILED", missing
        return ("accepted" if not missing else "not run"), missing

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("feature table")
        counts: dict[str, int] = {}
        for row in self.chosen:
            outcome, missing = self.line(row)
            counts[outcome] = counts.get(outcome, 0) + 1
            feature, tests, benchmarks = ROWS[row]
            figures = f"; ./dev bench {', '.join(benchmarks)}" if benchmarks else ""
            terminalreporter.write_line(
                f"{row:6}{outcome:10}{feature[:60]:62}{len(tests)} test{'s' * (len(tests) != 1)}{figures}"
            )
            for test in missing:
                terminalreporter.write_line(f"{'':16}- {test}")
        summary = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        terminalreporter.write_line(f"{len(self.chosen)} rows: {summary}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a process of pytest-xdist; the main process counts
        config.pluginmanager.register(Rows(choose(config.getoption("--row") or ["all"])))


def main(rows: list[str]) -> int:
    """Prints the arguments of pytest that run the tests of the rows."""
    try:
        chosen = choose(rows)
    except pytest.UsageError as error:
        print(f"dev rows: {error}", file=sys.stderr)
        return 2
    print(*(f"--row={row}" for row in rows), sep="\n")
    print(*dict.fromkeys(f"tests/{test}" for row in chosen for test in ROWS[row].tests), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
