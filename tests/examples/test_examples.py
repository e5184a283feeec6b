# SPDX-License-Identifier: BSD-3-Clause
# `torchette examples`: the list, skipped examples, invalid arguments, and that the examples run.

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.building import ROOT, built, run
from tests.sweep import sweep
from torchette import cli


@pytest.fixture
def examples() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / "__main__.py"))


def test_list_has_all_examples(examples: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["examples", "list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(examples["EXAMPLES"]) and {"digits", "java", "search"} <= set(listed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "or use --all"),
        (["run", "fly"], "unknown example fly"),
        (["run", "digits", "--all"], "--all"),
    ],
)
def test_invalid_arguments_are_rejected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["examples", *arguments])
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_a_failure_shows_and_a_missing_tool_skips(
    examples: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = examples["Example"]
    examples["EXAMPLES"].clear()
    examples["EXAMPLES"]["bad"] = example("", [], lambda _: [[sys.executable, "-c", "print('why'); exit(3)"]])
    examples["EXAMPLES"]["far"] = example("", ["no-such-tool"], lambda _: [["no-such-tool"]])
    examples["EXAMPLES"]["good"] = example("", [], lambda _: [[sys.executable, "-c", "print(42)"]])
    main = examples["main"]
    assert main(["run", "far", "good", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "skipped far: missing no-such-tool\n" in printed and re.search(r"ok +good \(0 s\): 42", printed)
    assert main(["run", "--all", "--folder", str(tmp_path)]) == 1
    assert "why" in capsys.readouterr().out


@pytest.mark.gate
@pytest.mark.xdist_group("wasm")
@pytest.mark.parametrize(
    "names", sweep(["--all", "digits java kotlin rust", "search"], "digits java kotlin rust", "search")
)
def test_they_run(names: str, tmp_path: Path) -> None:
    """The web page and the module for JavaScript have separate tests: test_web_page.py and tests/build/test_web.py."""
    built("torchette_shared")
    command = ("-m", "torchette", "examples", "run", *names.split(), "--folder", tmp_path)
    lines = run(sys.executable, *command, cwd=ROOT).stdout.splitlines()
    results = {line.split()[1].rstrip(":"): line for line in lines}
    assert names == "--all" or set(results) == set(names.split())
    for name in results.keys() & {"digits", "search"}:
        assert results[name].startswith("ok")
    for name in results.keys() & {"digits", "java", "kotlin", "rust", "javascript"}:
        assert results[name].startswith("skipped") or results[name].split(": ")[1].startswith("7 0.9")
