# SPDX-License-Identifier: BSD-3-Clause
# The rules of plain English: phrases are found where people read them, and no room exceeds its limit.

from __future__ import annotations

from pathlib import Path

import pytest

from tests import english


@pytest.mark.parametrize(
    ("name", "text", "phrases"),
    [
        ("a.py", '"""Of what whole number stand here."""\n', ["Of what", "whole number", "stand"]),
        ("a.py", "numbers = 1  # takes `numbers` of 8 bits\n", ["of 8 bits", "takes"]),
        ("a.py", 'raise ValueError(f"{x} is no tensor")\nkey = "numbers"\n', ["is no tensor"]),
        ("a.cpp", '#include "numbers.h"\n/* gives\n   nothing */ f("it is held against");\n', ["gives", "held against"]),
        ("a.md", "It gives `numbers`.\n```\ntakes\n```\n", ["gives"]),
        ("a.py", '"""Returns the indices of the values."""\n', []),
    ],
)  # fmt: skip
def test_phrases_are_found(tmp_path: Path, name: str, text: str, phrases: list[str]) -> None:
    path = tmp_path / name
    path.write_text(text)
    words, hits = english.check(path)
    assert words > 0
    assert sorted(hit.phrase.strip('" ') for hit in hits) == sorted(phrases)


def test_no_room_exceeds_its_limit() -> None:
    over = {
        name: round(english.rate(words, hits), 1)
        for name, (words, hits) in english.rooms().items()
        if words > english.MIN_WORDS and english.rate(words, hits) > english.LIMIT
    }
    assert not over, f"{over}: `python -m tests.english FILE` prints the phrases of a file"
