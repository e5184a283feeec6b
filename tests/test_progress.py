# SPDX-License-Identifier: BSD-3-Clause
# Progress in a log: lines at intervals, with the time that is left; and on a terminal one line that changes.

from __future__ import annotations

import io

import pytest

from torchette import progress
from torchette.progress import Progress


class _Clock:
    """Seconds that the test sets."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    fake_clock = _Clock()
    monkeypatch.setattr(progress, "time", fake_clock)
    return fake_clock


def test_short_work_prints_nothing_in_a_log(clock: _Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as steps:
        for clock.now in range(10):
            steps("edge", "fold_constants")
    assert capsys.readouterr().err == ""


def test_long_work_prints_a_line_for_each_interval_and_the_time_left(
    clock: _Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress() as steps:
        for done in range(40):
            clock.now = 3.0 * done
            steps("quantize", f"layer {done}", done, 40)
    assert capsys.readouterr().err.splitlines() == [
        f"quantize: layer {done} ({done} of 40 done, about {left} left)"
        for done, left in (
            (4, "2 min"),
            (8, "2 min"),
            (12, "1 min"),
            (16, "1 min"),
            (20, "1 min"),
            (24, "48 s"),
            (28, "36 s"),
            (32, "24 s"),
            (36, "12 s"),
        )
    ]


def test_steps_that_were_done_before_do_not_count_in_the_time_left(
    clock: _Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = Progress(interval=0)
    steps("quantize", "layer 30", 30, 40)
    clock.now = 60
    steps("quantize", "layer 31", 31, 40)
    assert capsys.readouterr().err.splitlines() == [
        "quantize: layer 30 (30 of 40 done)",
        "quantize: layer 31 (31 of 40 done, about 9 min left)",
    ]


def test_without_an_interval_each_step_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(interval=0) as steps:
        steps("compile", "add.cpp", 1, 1)
        steps("link", "executor_runner")
    assert capsys.readouterr().err == "compile: add.cpp (1 of 1 done)\nlink: executor_runner\n"


def test_a_terminal_has_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with Progress() as steps:
        steps("edge", "first")
        steps("edge", "second")
    assert screen.getvalue() == "\r\033[K  …  edge: first\r\033[K  …  edge: second\r\033[K"
