# SPDX-License-Identifier: BSD-3-Clause
# Every exception: its text, its code, its built-in parent, and the tree of classes in the documentation.

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchette import errors
from torchette.exir.dialects.page import page
from torchette.packages import PACKAGES

ALL = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, errors.TorchetteError)]


def test_text_states_problem_location_and_remedy():
    error = errors.InputError(
        "input 0 has rank 3", where="model.py:7, in forward", hints=["pass rank 2\nor 1", "b"]
    )
    assert str(error).splitlines() == [
        "input 0 has rank 3",
        "  at model.py:7, in forward",
        "Try:",
        "  - pass rank 2",
        "    or 1",
        "  - b",
    ]
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_each_is_drawn_with_its_code_and_survives_pickling(kind):
    drawn = [line for line in errors.__doc__.splitlines() if f" {kind.__name__} " in line]
    assert len(drawn) == 1 and f" {kind.code}" in drawn[0]
    natural = [
        b.__name__ for b in kind.__bases__ if not issubclass(b, errors.TorchetteError) and b is not Exception
    ]
    assert all(f"({name})" in drawn[0] for name in natural)
    copy = pickle.loads(pickle.dumps(kind("m", where=["w"], hints=["h"], code="c")))
    assert (type(copy), copy.message, copy.where, copy.hints, copy.code) == (kind, "m", ("w",), ("h",), "c")


def test_codes_are_distinct():
    assert len({kind.code for kind in ALL}) == len(ALL)


def test_every_code_is_documented():
    root = Path(__file__).parents[1]
    pages = (root / "docs" / "errors.md").read_text() + page()
    used = {kind.code for kind in ALL}
    for source in (root / "torchette").rglob("*.py"):
        used |= set(re.findall(r'code="([a-z-]+)"', source.read_text()))
    assert not {code for code in used if f"`{code}`" not in pages}


def test_compiling_without_torch_names_the_package():
    code = "import sys; sys.modules['torch'] = None; import torchette; torchette.compile"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "torchette.compile needs torch, which is not installed" in done.stderr
    assert PACKAGES["torch"].install in done.stderr
