# SPDX-License-Identifier: BSD-3-Clause
# The zoo: every architecture compiles, runs on the runtime and equals eager; those that cannot fail with the known cause.

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.models import architectures


@pytest.mark.slow
@pytest.mark.parametrize("name", architectures.NAMES)
def test_equals_eager(name: str) -> None:
    library = name.partition("/")[0]
    if (
        importlib.util.find_spec(library) is None
    ):  # torchvision can be imported after `build` has prepared it only
        pytest.skip(f"{library} is not installed")
    row = architectures.measure(name)
    assert row.status.startswith(architectures.FAILS.get(name, "equal")), row


def test_the_zoo_is_as_broad_as_promised() -> None:
    working = [name for name in architectures.NAMES if name not in architectures.FAILS]
    assert len(working) >= 100
    for library, count in (("torchvision", 20), ("timm", 40), ("transformers", 30)):
        assert sum(name.startswith(f"{library}/") for name in working) >= count


def test_the_page_lists_every_architecture() -> None:
    listed = re.findall(r"^\| `([\w/.-]+)` \|", architectures.PAGE.read_text(encoding="utf-8"), re.M)
    assert listed == architectures.NAMES, "run: python -m tests.models.architectures"
