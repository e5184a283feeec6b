# SPDX-License-Identifier: BSD-3-Clause
# ETDumps of ExecuTorch 1.5.1 and Torchette: each Inspector reads the dumps of both runtimes, and ExecuTorch's Inspector
# also accepts Torchette's dumps with its own ETRecord.

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchette.format import etdump
from torchette.runtime import Runtime

pytest.importorskip("executorch", reason="the peer is not installed")

RUNS = 3


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.linear(x))
        return y * x.sum(), y.sigmoid()


ARGS = (torch.linspace(-1, 1, 8).reshape(2, 4),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of the peer's compiler, its record, and its dumps from both runtimes."""
    from executorch.exir import to_edge
    from executorch.runtime import Runtime as PeerRuntime

    folder = tmp_path_factory.mktemp("etdump")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        edge = to_edge(torch.export.export(Net().eval(), ARGS), generate_etrecord=True)
        program = edge.to_executorch()
        record = program.get_etrecord()
        record.update_representative_inputs(list(ARGS))
        record.save(str(folder / "net.bin"))
    (folder / "net.pte").write_bytes(program.buffer)
    for name, runtime in (("ours", Runtime.get()), ("peer", PeerRuntime.get())):
        loaded = runtime.load_program(folder / "net.pte", enable_etdump=True, debug_buffer_size=100_000)
        method = loaded.load_method("forward")
        for _ in range(RUNS):
            method.execute(list(ARGS))
        loaded.write_etdump_result_to_file(str(folder / f"{name}.etdp"), str(folder / f"{name}.values"))
    return folder


def inspected(folder: Path, name: str, **more: Any) -> Any:
    from executorch.devtools import Inspector

    return Inspector(
        etdump_path=str(folder / f"{name}.etdp"), debug_buffer_path=str(folder / f"{name}.values"), **more
    )


def instructions(block: Any) -> dict[int, Any]:
    """Returns the kernel events by instruction; the peer writes two for each."""
    skipped = ("OPERATOR_CALL", "Method::execute")
    return {event._instruction_id: event for event in block.events if event.name not in skipped}


def test_peer_inspector_reads_both_dumps_equally(folder: Path) -> None:
    blocks = {name: inspected(folder, name).event_blocks for name in ("ours", "peer")}
    assert (
        [block.name for block in blocks["ours"]]
        == [block.name for block in blocks["peer"]]
        == ["Default", "Execute"]
    )
    ours, theirs = (blocks[name][1] for name in ("ours", "peer"))
    mine, events_of_peer = instructions(ours), instructions(theirs)
    assert mine.keys() == events_of_peer.keys() and len(mine) >= 4
    for number, event in mine.items():
        assert event.name == events_of_peer[number].name.replace("native_call_", "aten::")
        assert len(event.perf_data.raw) == len(events_of_peer[number].perf_data.raw) == RUNS
        assert min(event.perf_data.raw) >= 0 and event.is_delegated_op is False
        for value, expected in zip(event.debug_data, events_of_peer[number].debug_data, strict=True):
            torch.testing.assert_close(value, expected)
    for value, expected in zip(ours.run_output, theirs.run_output, strict=True):
        torch.testing.assert_close(value, expected)
    (method_event,) = [event for event in ours.events if event.name == "Method::execute"]
    assert len(method_event.perf_data.raw) == RUNS
    assert method_event.perf_data.avg >= sum(event.perf_data.avg for event in mine.values())


def test_events_with_peer_record_have_same_operators(folder: Path) -> None:
    record = str(folder / "net.bin")
    ours, theirs = (inspected(folder, name, etrecord=record).event_blocks[1] for name in ("ours", "peer"))
    mine, events_of_peer = instructions(ours), instructions(theirs)
    for number, event in mine.items():
        assert event.debug_handles == events_of_peer[number].debug_handles and event.debug_handles
        assert event.op_types == events_of_peer[number].op_types
        assert event.module_hierarchy == events_of_peer[number].module_hierarchy
        assert event.stack_traces == events_of_peer[number].stack_traces
    assert any(event.op_types for event in mine.values())


def test_peer_table_and_numeric_gap(folder: Path) -> None:
    inspector = inspected(folder, "ours", etrecord=str(folder / "net.bin"))
    inspector.print_data_tabular(table := io.StringIO())
    assert "aten::mul.out" in table.getvalue()
    gap = inspector.calculate_numeric_gap("MSE")
    assert len(gap) > 0 and max(max(np.ravel(values)) for values in gap["gap"]) < 1e-10


def test_inspector_reads_dump_of_peer_runtime(folder: Path) -> None:
    logged = {}
    for name in ("ours", "peer"):
        data = (folder / f"{name}.values").read_bytes()
        loading, *runs = etdump.load(folder / f"{name}.etdp").run_data
        assert loading.name == "Default" and [run.name for run in runs] == ["Execute"] * RUNS
        for run in runs:
            events = [event.debug_event for event in run.events if event.debug_event]
            logged.setdefault(name, []).append(
                [
                    (event.chain_index, array(event.debug_entry.tensor, data), event.debug_entry.output)
                    for event in events
                ]
            )
            timed = [event.profile_event for event in run.events if event.profile_event]
            assert all(event.start_time <= event.end_time for event in timed)
            assert any(event.name == "Method::execute" for event in timed)
    for mine, of_peer in zip(logged["ours"], logged["peer"], strict=True):
        for value, expected in zip(mine, of_peer, strict=True):
            assert value[0] == expected[0] and value[2] == expected[2]
            np.testing.assert_allclose(value[1], expected[1], rtol=1e-6)


def array(tensor: Any, data: bytes) -> np.ndarray:
    assert tensor.scalar_type == etdump.ScalarType.FLOAT
    return np.frombuffer(data, np.float32, math.prod(tensor.sizes), tensor.offset).reshape(tensor.sizes)


def test_serializers_agree() -> None:
    from executorch.devtools.etdump.serialize import (
        deserialize_from_etdump_flatcc,
        serialize_to_etdump_flatcc,
    )

    event = etdump.ProfileEvent("aten::add.out", 0, 3, 7, None, b"\1\2", 2**40, 2**40 + 9)
    value = etdump.Value(etdump.ValueType.Tensor, etdump.Tensor(etdump.ScalarType.LONG, [2], [1], 64))
    dump = etdump.ETDump(
        0,
        [
            etdump.RunData(
                "Execute",
                3,
                [etdump.Allocator("temp")],
                [
                    etdump.Event(event),
                    etdump.Event(None, etdump.AllocationEvent(1, 99)),
                    etdump.Event(debug_event=etdump.DebugEvent(0, 3, value, name="aten::add.out")),
                ],
            )
        ],
    )
    theirs = deserialize_from_etdump_flatcc(etdump.dumps(dump))
    (run,) = theirs.run_data
    assert (run.name, run.bundled_input_index, run.allocators[0].name) == ("Execute", 3, "temp")
    assert (run.events[0].profile_event.name, run.events[0].profile_event.end_time) == (event.name, 2**40 + 9)
    assert run.events[1].allocation_event.allocation_size == 99
    assert run.events[2].debug_event.debug_entry.tensor.offset == 64
    # the peer's result has no size prefix
    assert etdump.load(serialize_to_etdump_flatcc(theirs)) == dump
