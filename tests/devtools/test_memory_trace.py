# SPDX-License-Identifier: BSD-3-Clause
# The Chrome trace of planned memory, with ExecuTorch's function name and arguments.

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from torchette.util.activation_memory_profiler import generate_memory_trace

from torchette.errors import InputError
from torchette.exir import to_edge


@pytest.fixture(scope="module")
def program():
    layers = [torch.nn.Linear(8, 8) if i % 2 == 0 else torch.nn.Softmax(-1) for i in range(6)]
    exported = torch.export.export(torch.nn.Sequential(*layers).eval(), (torch.ones(2, 8),))
    return to_edge(exported).to_executorch()


@pytest.mark.parametrize("offsets", [False, True])
def test_no_two_slices_of_a_row_overlap_and_the_counter_reaches_the_plan(
    program, offsets: bool, tmp_path: Path
) -> None:
    generate_memory_trace(program, tmp_path / "trace.json", enable_memory_offsets=offsets)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) >= 6
    rows: dict[int, list[tuple[int, int]]] = {}
    for event in slices:
        rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
        assert not offsets or event["tid"] == event["args"]["offset"]
    for row in rows.values():
        row.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(row))
    live = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    planned, bound = program.planned_bytes()
    assert max(live) == planned == bound and min(live) < planned


def test_unknown_method_raises(program, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no method 'backward'"):
        generate_memory_trace(program, tmp_path / "trace.json", method_name="backward")
