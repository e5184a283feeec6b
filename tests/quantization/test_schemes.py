# SPDX-License-Identifier: BSD-3-Clause
"""The names of quantization schemes are the same in code, messages and documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchette.errors import InputError
from torchette.quantization import LLM_SCHEMES, RECIPES, SCHEMES, scheme_named

ROOT = Path(__file__).parents[2]


def test_names_are_unique() -> None:
    names = [name for scheme in SCHEMES.values() for name in (scheme.name, *scheme.aliases)]
    assert len(names) == len(set(names))
    assert all(
        scheme_named(name).name == scheme.name for scheme in SCHEMES.values() for name in scheme.aliases
    )


def test_unknown_name_lists_all_schemes() -> None:
    for among in (RECIPES, LLM_SCHEMES):
        with pytest.raises(InputError, match="no quantization scheme 'int3'") as caught:
            scheme_named("int3", among)
        assert all(SCHEMES[name].names in caught.value.hints[0] for name in among)


@pytest.mark.parametrize("alias", ["int8", "int8-static"])
def test_int8_is_ambiguous_for_language_models(alias: str) -> None:
    with pytest.raises(InputError, match="ambiguous" if alias == "int8" else "do not support"):
        scheme_named(alias, LLM_SCHEMES)


def test_page_lists_all_names() -> None:
    page = (ROOT / "docs/quantize.md").read_text()
    table = page[page.index("## Schemes") : page.index("## Calibration")]
    rows = re.findall(r"^\| `([\w-]+)` \|([^|]*)\|", table, re.MULTILINE)
    listed = {name: tuple(re.findall(r"`([\w-]+)`", aliases)) for name, aliases in rows}
    assert listed == {name: scheme.aliases for name, scheme in SCHEMES.items()}
    page = (ROOT / "docs/llm-compile.md").read_text()
    section = page[page.index("## Quantization") : page.index("## Folders")]
    assert {*LLM_SCHEMES} <= {*re.findall(r'`"([\w-]+)"`', section)}
