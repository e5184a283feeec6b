# SPDX-License-Identifier: BSD-3-Clause
# `torchette ops --coverage` prints the kernel table and the stored result of the parity tests.

from __future__ import annotations

import json
import re

import pytest

from torchette.cli import main, ops
from torchette.runtime import _native, operator_names

Capture = pytest.CaptureFixture[str]


def test_every_core_operator_runs(capsys: Capture) -> None:
    assert main(["ops", "--coverage", "--json", "relu"]) == 0
    shown = json.loads(capsys.readouterr().out)
    relu = next(row for row in shown["core"] if row["operator"] == "aten::relu")
    assert relu["runs as"] == "aten::relu.out" and relu["calls"]["float32"] > 0
    passed, tried = shown["samples"]["nn.functional.relu"]["float32"]
    assert passed == tried > 0
    assert [row["operator"] for row in ops.coverage(operator_names()) if not row["runs as"]] == []


def test_a_missing_kernel_is_shown_and_fails(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchette.runtime

    known = operator_names() - {"aten::relu.out"}
    monkeypatch.setattr(torchette.runtime, "operator_names", lambda: known)
    assert main(["ops", "--coverage", "aten::relu"]) == 1
    assert "0 of 1 Core ATen operators" in capsys.readouterr().err


def test_the_page_has_a_row_for_every_operator(capsys: Capture) -> None:
    """The page that `./dev docs` writes."""
    assert main(["ops", "--coverage", "--markdown"]) == 0
    page = capsys.readouterr().out
    core = list(ops.coverage({name for name, _ in _native.operators()}))
    sampled = ops.stored()["operators"]
    rows = re.findall(r"^\| `([^`]+)` \|", page, re.M)
    assert rows == [*(row["operator"] for row in core), *sampled] and len(core) > 100 < len(sampled)
    assert f"{len(core)} of {len(core)} Core ATen operators run in this build" in page


def test_failures_have_reasons() -> None:
    stored = ops.stored()
    excluded = {
        name.partition("#")[0].partition(":")[0] for names in stored["excluded"].values() for name in names
    }
    for name, row in stored["operators"].items():
        for dtype, (passed, tried) in row.items():
            assert passed <= tried and (passed == tried or name in excluded), (name, dtype)
