# SPDX-License-Identifier: BSD-3-Clause
# The command line: help and warnings.

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import warnings

import pytest

from torchette import cli
from torchette.cli._parser import HelpFormatter, parsers
from torchette.errors import DelegationWarning

TREE = list(parsers(cli._parser()))


@pytest.mark.parametrize("parser", TREE, ids=lambda parser: parser.prog)
def test_every_command_has_a_summary_a_description_and_examples(parser: argparse.ArgumentParser) -> None:
    summary, _, body = (parser.description or "").partition("\n")
    assert 10 < len(summary) < 80 and not summary.endswith("."), "the first line is the summary"
    description, _, examples = body.partition("examples:")
    assert len(description.strip()) > 20 or parser.prog == "torchette"
    assert re.search(rf"^  .*\b{parser.prog}\b", examples, re.M)


@pytest.mark.parametrize("parser", TREE, ids=lambda parser: parser.prog)
def test_every_argument_has_help(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            assert action.help, action


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize("parser", TREE, ids=lambda parser: parser.prog)
def test_help_fits_the_terminal(
    parser: argparse.ArgumentParser, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = parser.format_help()
    before, separator, tail = text.partition("\n\n")[2].partition("\nexamples:\n")  # after the usage
    examples, _, after = tail.partition("\n\n")
    assert separator and examples in (parser.description or "")
    assert before.strip()
    long = [line for line in (before + "\n" + after).splitlines() if len(line) > width]
    assert not [line for line in long if not re.fullmatch(r" *(-[\w-]+ )?\S+", line)]


def test_paragraphs_wrap_and_indented_blocks_do_not() -> None:
    formatter = HelpFormatter("torchette", width=32)
    text = "One two three\nfour five six seven eight nine ten.\n\nexamples:\n  torchette run net.pte     as it is\n"
    assert formatter._fill_text(text, 30, "").splitlines() == [
        "One two three four five six",
        "seven eight nine ten.",
        "",
        "examples:",
        "  torchette run net.pte     as it is",
    ]


@pytest.mark.parametrize("arguments", [[], ["llm"], ["custom"]])
def test_without_a_command_the_help_is_printed(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    out, error = capsys.readouterr()
    assert not exit_.value.code and not error and "examples:" in out


def test_warnings_have_code_and_no_source_line(capsys: pytest.CaptureFixture[str]) -> None:
    message = DelegationWarning("mm stays outside")
    with cli._plain_warnings("torchette compile"):
        text = warnings.formatwarning(message, DelegationWarning, "delegate.py", 7)
    assert text == "torchette compile: warning: [left-behind] mm stays outside\n"
    assert "delegate.py:7" in warnings.formatwarning(message, DelegationWarning, "delegate.py", 7)


def test_no_verb_imports_torch() -> None:
    """The help of every verb works with numpy only, and is fast."""
    code = "import sys; from torchette import cli; cli._parser(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
