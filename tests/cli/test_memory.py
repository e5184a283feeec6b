# SPDX-License-Identifier: BSD-3-Clause
# `torchette memory`: the bill as a table, as JSON and as a diagram.

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchette.cli import main

pytestmark = pytest.mark.usefixtures("portable_plan")


@pytest.fixture
def model(folder: Path) -> str:
    assert main(["compile", "model.py:Net", "-o", "net.pte"]) == 0
    return "net.pte"


def test_prints_bill_and_diagram(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", model, "--target", "cortex-m4", "--tensors"]) == 0
    text = capsys.readouterr().out
    assert "forward, cortex-m4" in text and "planned 1 over time" in text
    for name in ("planned 1", "method", "temp", "RAM", "weights"):
        assert f"\n{name} " in text


def test_json_has_the_same_figures_and_the_tensors(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["memory", model, "--json", "--svg", "memory.svg", "--trace", "trace.json"]) == 0
    (bill,) = json.loads(capsys.readouterr().out)
    assert bill["ram"] == sum(bill["planned"]) + bill["method"] + bill["temp"]["most"]
    assert {"value", "memory_id", "offset", "nbytes", "first", "last"} <= bill["tensors"][0].keys()
    assert Path("memory.svg").read_text().startswith("<svg")
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert sorted(event["args"]["offset"] for event in slices) == sorted(t["offset"] for t in bill["tensors"])


def test_an_unknown_target_is_a_usage_error(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", model, "--target", "z80"]) == 2
    assert "no target 'z80'" in capsys.readouterr().err
