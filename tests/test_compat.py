# SPDX-License-Identifier: BSD-3-Clause
"""ExecuTorch's module paths are served from one table, which is held against ExecuTorch itself."""

from __future__ import annotations

import importlib

import pytest

from torchette import compat


@pytest.mark.parametrize("path", compat.TABLE)
def test_every_name_is_there(path: str) -> None:
    module = importlib.import_module(f"torchette.{path}")
    for name, ours in compat.TABLE[path].items():
        assert getattr(module, name) is getattr(importlib.import_module(ours), name)
    with pytest.raises(AttributeError, match="no attribute"):
        module.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    "path", [path for path in compat.TABLE if path.startswith(("exir.", "devtools.", "extension."))]
)
def test_the_peer_has_the_same_paths(path: str) -> None:
    pytest.importorskip("executorch")
    theirs = importlib.import_module(f"executorch.{path}")
    assert [name for name in compat.TABLE[path] if not hasattr(theirs, name)] == []


def test_other_paths_are_refused() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("torchette.exir.backend.no_such_module")
