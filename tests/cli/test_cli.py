# SPDX-License-Identifier: BSD-3-Clause
# The command line as a whole: help, exit codes, errors in one line.

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from torchette import cli


@pytest.mark.parametrize("verb", cli.verbs())
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main([verb, "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text and f"torchette {verb}" in text.partition("examples:")[2]
    summary = (importlib.import_module(f"torchette.cli.{verb.replace('-', '_')}").__doc__ or "").splitlines()[
        0
    ]
    assert 10 < len(summary) < 80 and not summary.endswith("."), (
        "the first line of the docstring is the summary"
    )


@pytest.mark.parametrize("arguments", [["fly"], ["doctor", "--colour"], []])
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "--help" in error


def test_no_verb_imports_torch() -> None:
    """The help of every verb is there on a numpy-only installation, and quickly."""
    code = "import sys; from torchette import cli; cli._parser(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
