# SPDX-License-Identifier: BSD-3-Clause
# Limits of the processor are measured once and stored; damaged or unwritable files are handled.

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchette import runtime
from torchette.devtools import limits as module
from torchette.devtools.limits import Limits, Store, limits


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate cache folder, and a shorter measurement."""
    monkeypatch.setenv("TORCHETTE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_SECONDS", 0.005)
    monkeypatch.setattr(module, "_MAX_BYTES", 8 << 20)
    return tmp_path / "cache"


def _refuse(threads: int) -> Limits:
    raise AssertionError("measured again")


def test_limits_are_measured_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = limits(2)
    assert (measured.threads, measured.level) == (2, runtime.kernel_level())
    assert measured.arithmetic > 0 and all(store.rate > 0 for store in measured.stores)
    assert [store.name for store in measured.stores][::-1][0] == "memory" and measured.stores[0].name == "L2"
    of_one_thread = limits(1)  # a second entry in the file
    monkeypatch.setattr(module, "_measure", _refuse)
    assert limits(2) == measured and limits(1) == of_one_thread
    with pytest.raises(AssertionError, match="measured again"):
        limits(2, again=True)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"%s": {"stores": []}}', '{"%s": 3}'])
def test_a_damaged_file_is_replaced(text: str, cache: Path) -> None:
    limits()
    path = cache / "limits.json"
    (key,) = json.loads(path.read_text())
    path.write_text(text.replace("%s", key))
    measured = limits()
    assert json.loads(path.read_text())[key]["arithmetic"] == measured.arithmetic


def test_unwritable_folder_is_ignored(cache: Path) -> None:
    cache.write_text("a file is where the folder should be")
    assert limits().arithmetic > 0
    assert cache.read_text().startswith("a file")


def test_store_of_returns_nearest_store() -> None:
    stores = (Store("L2", 100, 4.0), Store("L3", 1000, 2.0), Store("memory", None, 1.0))
    known = Limits("a processor", "v3", 1, 8.0, stores)
    assert [known.store_of(nbytes).name for nbytes in (0, 100, 101, 1001)] == ["L2", "L2", "L3", "memory"]
