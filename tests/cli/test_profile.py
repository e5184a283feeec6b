# SPDX-License-Identifier: BSD-3-Clause
# `torchette profile`: times as a table, as JSON and as a trace.

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchette.cli import main
from torchette.format import etdump


@pytest.fixture
def model(folder: Path) -> str:
    assert main(["compile", "model.py:Net", "-o", "net.pte"]) == 0
    return "net.pte"


def test_prints_the_operations_by_time(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["profile", model, "-n", "5"]) == 0
    title, limits, columns, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("net.pte, forward: ") and title.endswith("5 runs")
    assert " can do " in limits and "GFLOP/s" in limits and "from memory" in limits
    words = [column for column in columns.split() if column not in ("L2", "L3", "memory")]
    assert words == ["share", "p50", "at", "operation", "GFLOP/s", "peak", "GB/s", "bound", "source"]
    assert any("::" in row for row in rows)
    shares = [float(row.split("%")[0]) for row in rows]
    assert shares == sorted(shares, reverse=True) and 99 < sum(shares) < 101
    assert main(["profile", model, "-n", "1", "--top", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[-1] == f"… {len(rows) - 1} more row{'s' * (len(rows) > 2)}; --top {len(rows)} shows all"


def test_json_and_the_trace(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["profile", model, "-n", "4", "--warm-up", "2", "--json", "--trace", "trace.json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert {row["name"] for row in rows} >= {"Method::execute"}
    assert all(row["calls"] == 1 and row["min"] <= row["p50"] for row in rows)
    assert all(row["bytes"] and row["of_bandwidth"] > 0 for row in rows if row["instruction"] is not None)
    slices = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert [event["args"]["execution"] for event in slices if event["name"] == "Method::execute"] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]


@pytest.mark.parametrize("words", [["-n", "0"], ["--warm-up", "-1"], ["--method", "backward"]])
def test_wrong_use(model: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", model, *words]) == 2
    assert capsys.readouterr().err


def test_the_etdump_has_the_same_runs(model: str) -> None:
    assert main(["profile", model, "-n", "4", "--warm-up", "2", "--etdump", "net.etdp"]) == 0
    loading, *runs = etdump.load("net.etdp").run_data
    assert (loading.name, [run.name for run in runs]) == ("Default", ["Execute"] * 6)
    for run in runs:
        *kernels, method_event = [event.profile_event for event in run.events]
        assert method_event.name == "Method::execute" and method_event.chain_index == -1
        assert all(
            event.name.startswith(("aten::", "cpu::")) and event.instruction_id >= 0 for event in kernels
        )
        assert all(
            method_event.start_time <= event.start_time <= event.end_time <= method_event.end_time
            for event in kernels
        )
