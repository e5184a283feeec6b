# SPDX-License-Identifier: BSD-3-Clause
# The generated page of commands has a section with the help of each command.

from __future__ import annotations

import re
import runpy

import pytest

from tests.building import ROOT
from torchette import cli


def test_page_contains_help_of_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # restored after the page has set it
    text = runpy.run_path(str(ROOT / "docs/site/commands.py"))["page"]()
    sections = dict(re.findall(r"^## (torchette[^\n]*)\n\n```\n(.+?)^```$", text, re.M | re.S))
    assert {name.split()[1] for name in sections if " " in name} == set(cli.verbs())
    assert "torchette llm compile" in sections
    assert all(help.startswith(f"usage: {name}") and "examples:" in help for name, help in sections.items())
