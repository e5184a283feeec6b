# SPDX-License-Identifier: BSD-3-Clause
# The arithmetic of profiles on synthetic events: nesting, and the time without nested events.

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchette
from torchette.devtools.inspect import FrameInfo, InstructionInfo, MethodInfo, PartInfo, describe
from torchette.devtools.limits import Limits, Store
from torchette.devtools.profile import Operation, Profile, events_of, operations, profile, trace_events
from torchette.devtools.work import Work
from torchette.errors import FormatError
from torchette.format import etdump
from torchette.runtime import Event, Runtime


def _method() -> MethodInfo:
    frames = [FrameInfo("/home/me/net.py", 7, "forward", "x + 1")]
    instructions = [
        InstructionInfo(0, "kernel", "aten::add.out", [], [], None, frames),
        InstructionInfo(1, "delegate", "AcmeBackend", [], [], None, []),
        InstructionInfo(2, "kernel", "aten::mul.out", [], [], None, []),
    ]
    empty: Any = []
    return MethodInfo("forward", empty, empty, empty, {}, empty, instructions, [0, 2], empty, None, None)


def _execution(block: int, start: int) -> list[Event]:
    """Of 100 ns, 10 are the instruction loop; the delegate reports 30 of its 50, and 5 of these in two events."""
    return [
        Event(block, "Method::execute", None, None, False, None, start, start + 100),
        Event(block, "aten::add.out", 0, 0, False, None, start + 5, start + 25),
        Event(block, "DELEGATE_CALL", 0, 1, False, None, start + 30, start + 80),
        Event(block, "", 0, 1, True, 4, start + 30, start + 55),
        Event(block, "inner", 0, 1, True, None, start + 50, start + 55),
        Event(block, "last", 0, 1, True, None, start + 70, start + 75),
        Event(block, "aten::mul.out", 1, 0, False, None, start + 80, start + 100),
    ]


def test_nested_time_is_counted_once() -> None:
    load = [Event(0, "Method::init", None, None, False, None, 0, 900)]
    rows_in_order = operations(_method(), [*load, *_execution(1, 1000), *_execution(2, 2000)])
    rows = {(operation.name, operation.instruction, operation.part): operation for operation in rows_in_order}
    nanoseconds = {key: [round(time * 1e9) for time in operation.times] for key, operation in rows.items()}
    assert nanoseconds == {
        ("Method::execute", None, None): [10, 10],
        ("aten::add.out", 0, None): [20, 20],
        ("AcmeBackend", 1, None): [20, 20],
        ("AcmeBackend: 4", 1, 4): [20, 20],
        ("AcmeBackend: inner", 1, None): [5, 5],
        ("AcmeBackend: last", 1, None): [5, 5],
        ("aten::mul.out", 2, None): [20, 20],
    }
    assert all(operation.calls == 2 for operation in rows_in_order)
    assert rows[("aten::add.out", 0, None)].source == "net.py:7"


def test_parts_of_delegate_have_source_lines() -> None:
    method = _method()
    method.instructions[1].parts = [
        PartInfo(4, "layers.0", "Linear", [FrameInfo("deep.py", 3, "forward", "")])
    ]
    sources = {row.part: row.source for row in operations(method, _execution(1, 0)) if row.instruction == 1}
    assert sources[4] == "deep.py:3" and sources[None] == ""
    (slice_,) = [row for row in trace_events(method, _execution(1, 0)) if row["args"].get("part") == 4]
    assert slice_["args"]["source"] == "deep.py:3"


def test_loop_iterations_are_one_row() -> None:
    turns = [Event(1, "aten::add.out", 0, 0, False, None, at, at + 3) for at in (10, 20, 30)]
    (row,) = operations(_method(), turns)
    assert row.calls == 3 and row.times == [9e-9]


def test_skipped_operation_has_zero_time() -> None:
    first, second = _execution(1, 0), _execution(2, 1000)
    rows = operations(_method(), [*first, *second[:2]])
    assert [row.times[1] for row in rows if row.instruction == 2] == [0.0]


def _dump(*runs: tuple[str, list[Event]]) -> Any:
    """An ETDump in the order of a runtime: events are sorted by their end."""

    def record(event: Event) -> Any:
        return etdump.Event(
            profile_event=etdump.ProfileEvent(
                name=event.name,
                chain_index=-1 if event.chain is None else event.chain,
                instruction_id=-1 if event.instruction is None else event.instruction,
                delegate_debug_id_int=-1 if event.part is None else event.part,
                delegate_debug_id_str=event.name if event.in_delegate and event.part is None else None,
                start_time=event.begin,
                end_time=event.end,
            )
        )

    ordered = [(name, sorted(events, key=lambda span: span.end)) for name, events in runs]
    return etdump.ETDump(0, [etdump.RunData(name, events=[*map(record, held)]) for name, held in ordered])


def test_dump_has_same_times() -> None:
    load = [Event(0, "Method::init", None, None, False, None, 0, 900)]
    first, second = _execution(1, 1000), _execution(2, 2000)
    record = _dump(("Default", load), ("Execute", first), ("Execute", second))
    events = events_of(etdump.load(etdump.dumps(record)), _method())
    assert operations(_method(), events) == operations(_method(), [*load, *first, *second])


def test_executorch_kernels_are_counted_once() -> None:
    call = Event(1, "OPERATOR_CALL", 0, 0, False, None, 10, 40)
    kernel = Event(1, "native_call_add.out", 0, 0, False, None, 15, 35)
    (row,) = operations(_method(), events_of(_dump(("Execute", [call, kernel])), _method()))
    assert (row.name, row.times) == ("aten::add.out", [20e-9])


def test_dump_of_another_method_raises() -> None:
    for chain, place in ((0, 2), (2, 0), (1, 9)):
        stray = Event(1, "aten::add.out", chain, place, False, None, 0, 1)
        with pytest.raises(FormatError, match=f"instruction {place} of chain {chain}"):
            events_of(_dump(("Execute", [stray])), _method())


def test_trace_includes_loading_and_backend_names() -> None:
    load = Event(0, "Method::init", None, None, False, None, 500, 900)
    slices = trace_events(_method(), [load, *_execution(1, 1000)])
    assert [(event["name"], event["ts"], event["dur"]) for event in slices[:4]] == [
        ("Method::init", 0.0, 0.4),
        ("Method::execute", 0.5, 0.1),
        ("aten::add.out", 0.505, 0.02),
        ("AcmeBackend", 0.53, 0.05),
    ]
    assert slices[4]["name"] == "part 4" and slices[4]["args"]["part"] == 4
    assert slices[-1]["args"] == {"execution": 1, "instruction": 2, "source": ""}
    assert trace_events(_method(), []) == []


def _measured(nbytes: int = 4_000) -> Profile:
    can = Limits("a processor", "v3", 2, 8e9, (Store("L2", 4_000, 4e9), Store("memory", None, 1e9)))
    operations = [
        Operation("cpu::linear.out", 0, None, "net.py:1", [1e-6, 1e-6], 2, Work(4_000, 1_000)),
        Operation("aten::add.out", 1, None, "net.py:2", [2e-6, 2e-6], 4, Work(None, 3_000)),
        Operation("Method::execute", None, None, "", [1e-7, 1e-7], 2),
    ]
    return Profile("net.pte, forward", 2, operations, [], can, nbytes)


def test_rates_are_fractions_of_processor_limits() -> None:
    rows = {row["name"]: row for row in _measured().rows()}
    linear, add = rows["cpu::linear.out"], rows["aten::add.out"]
    assert (linear["flops"], linear["rate"]) == pytest.approx((4e9, 1e9))
    assert (linear["of_peak"], linear["of_bandwidth"]) == pytest.approx((0.5, 0.25))
    assert linear["bound"] == "arithmetic"
    # two calls per execution, and no formula
    assert (add["operations"], add["bytes"]) == (None, 6_000) and add["of_bandwidth"] == pytest.approx(0.75)
    assert add["bound"] == "memory"
    assert {rows["Method::execute"][key] for key in ("bytes", "rate", "of_peak", "bound")} == {None}


def test_larger_method_uses_farther_store() -> None:
    near, far = _measured(), _measured(4_001)
    assert near.store and far.store and (near.store.name, far.store.name) == ("L2", "memory")
    assert far.rows()[1]["of_bandwidth"] == pytest.approx(1) and far.rows()[1]["bound"] == "memory"
    assert near.to_dict()["store"] == "L2" and near.to_dict()["limits"]["arithmetic"] == 8e9


def test_the_table_fits_a_page() -> None:
    lines = str(_measured().table()).splitlines()
    assert "8 GFLOP/s of float32" in lines[1] and max(map(len, lines)) <= 100
    assert lines[2].split() == [
        *("share", "p50", "calls", "at", "operation", "GFLOP/s", "peak", "GB/s", "L2", "bound", "source"),
    ]
    assert lines[4].split()[5:] == ["cpu::linear.out", "4", "50%", "1", "25%", "arithmetic", "net.py:1"]


def test_shapes_of_a_dynamic_method_are_those_of_the_inputs() -> None:
    n = torch.export.Dim("n", max=64)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Flatten(0, 1), torch.nn.Linear(16, 4)).eval()
    data = bytes(torchette.compile(model, (torch.randn(3, 2, 8),), dynamic_shapes=({0: n},)))
    method = Runtime.get().load_program(data).load_method("forward", tracing=True)
    result = profile(method, describe(data).methods[0], [torch.randn(5, 2, 8)], 2)
    assert sorted(
        operation.work.operations
        for operation in result.operations
        if operation.work and operation.work.operations
    ) == [
        2 * 10 * 16 * 4,
        2 * 10 * 8 * 16,
    ]
    assert result.runs == 2 and all(operation.calls == 2 for operation in result.operations)
