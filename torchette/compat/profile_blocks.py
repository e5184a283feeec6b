# SPDX-License-Identifier: BSD-3-Clause
# In: the bytes of a dump of profile blocks from torchette/devtools/profile_blocks.py or ExecuTorch's runtime. Out:
# events with the repetitions of each block, as tables and as a Chrome trace.
"""The names of ExecuTorch's modules profiler.parse_profiler_results and profiler.profiler_results_cli."""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from torchette.devtools.inspect import Table, printable
from torchette.devtools.profile_blocks import (
    ALLOCATION,
    ALLOCATOR,
    CHAIN_IDX_NO_CHAIN,
    ET_PROF_VER,
    EVENT,
    HEADER,
)
from torchette.errors import FormatError


class TimeScale(Enum):
    """The unit of the times in a dump. Times are converted to milliseconds; cycles are not converted."""

    TIME_IN_NS = 0
    TIME_IN_US = 1
    TIME_IN_MS = 2
    CPU_CYCLES = 3


_PER_MILLISECOND = {TimeScale.TIME_IN_NS: 1_000_000, TimeScale.TIME_IN_US: 1000}


@dataclass
class ProfileEvent:
    """An event of a block, with its start time and duration in each repetition of the block."""

    name: str
    ts: list[float]
    duration: list[float]
    chain_idx: int = CHAIN_IDX_NO_CHAIN
    instruction_idx: int = -1
    stacktrace: str | None = None


@dataclass
class ProfileEventFrameworkTax:
    """The percentage of an execution outside of kernels and delegates; one value for each repetition."""

    exec_time: list[float]
    kernel_and_delegate_time: list[float]
    framework_tax: list[float]


@dataclass
class MemEvent:
    """The bytes that a block allocated from an allocator."""

    allocator_name: str
    total_allocations_done: int


def deserialize_profile_results(
    buff: bytes, time_scale: TimeScale = TimeScale.TIME_IN_NS
) -> tuple[dict[str, list[ProfileEvent]], dict[str, list[MemEvent]]]:
    """Reads a dump.

    Blocks with the same name are repetitions of the same code and become one entry.

    Args:
        buff: the bytes of the dump.
        time_scale: the unit of its times.

    Returns:
        Block name -> its events, and block name -> the bytes from each allocator in the first repetition.

    Raises:
        FormatError: if the dump is damaged, has another version, or has repetitions of a block with different events.
    """
    blocks: dict[str, list[ProfileEvent]] = {}
    memory: dict[str, list[MemEvent]] = {}
    scale, offset = _PER_MILLISECOND.get(time_scale, 1), 0
    try:
        while offset < len(buff):
            offset = _read_block(buff, offset, scale, blocks, memory)
    except (struct.error, KeyError) as error:
        raise FormatError(f"the block of the profile at byte {offset:,} is damaged: {error}") from None
    return blocks, memory


def _read_block(
    data: bytes,
    offset: int,
    scale: int,
    blocks: dict[str, list[ProfileEvent]],
    memory: dict[str, list[MemEvent]],
) -> int:
    """Adds one block and returns the offset of the next one."""
    named, version, room, count, room_for_allocators, allocators, room_for_allocations, allocations = (
        HEADER.unpack_from(data, offset)
    )
    if version != ET_PROF_VER:
        raise FormatError(f"the profile has version {version} at byte {offset:,}, not {ET_PROF_VER}")
    name = _text(named)
    offset += HEADER.size
    block_events: list[ProfileEvent] = []
    for at in range(count):
        label, chain, instruction, begin, end = EVENT.unpack_from(data, offset + at * EVENT.size)
        times = [round(begin / scale, 4)], [round((end - begin) / scale, 4)]
        block_events.append(ProfileEvent(_text(label), *times, chain, instruction))
    offset += room * EVENT.size
    names: dict[int, str] = {}
    for at in range(allocators):
        label, identifier = ALLOCATOR.unpack_from(data, offset + at * ALLOCATOR.size)
        names[identifier] = _text(label)
    offset += room_for_allocators * ALLOCATOR.size
    nbytes_by_allocator: dict[str, int] = {}
    for at in range(allocations):
        allocator, nbytes = ALLOCATION.unpack_from(data, offset + at * ALLOCATION.size)
        nbytes_by_allocator[names[allocator]] = nbytes_by_allocator.get(names[allocator], 0) + nbytes
    offset += room_for_allocations * ALLOCATION.size
    events = blocks.setdefault(name, block_events)
    memory.setdefault(name, [MemEvent(*pair) for pair in nbytes_by_allocator.items()])
    if events is not block_events:
        if [event.name for event in events] != [event.name for event in block_events]:
            raise FormatError(f"two repetitions of the block {name!r} have different events")
        for event, again in zip(events, block_events):
            event.ts += again.ts
            event.duration += again.duration
    return offset


def _text(name: bytes) -> str:
    return name.partition(b"\0")[0].decode(errors="replace")


def profile_table(
    profile_data: Mapping[str, Sequence[ProfileEvent]], model_buffer: bytes | None = None
) -> list[Table]:
    """Returns a table for each block, with a row for each event and a column for each repetition.

    `model_buffer` is ignored; `torchette profile` prints the lines of the model.
    """
    del model_buffer
    return [
        Table(
            name,
            (
                "Name",
                "Chain",
                "Instr",
                *_iterations(max((len(event.duration) for event in events), default=0)),
            ),
            [
                (printable(event.name), event.chain_idx, event.instruction_idx, *event.duration)
                for event in events
            ],
        )
        for name, events in profile_data.items()
    ]


def mem_profile_table(mem_allocations: Mapping[str, Sequence[MemEvent]]) -> list[Table]:
    """Returns a table for each block with the bytes that it allocated from each allocator."""
    columns = ("Allocator name", "Total size of allocations done")
    return [
        Table(
            name,
            columns,
            [(printable(event.allocator_name), event.total_allocations_done) for event in events],
        )
        for name, events in mem_allocations.items()
    ]


def profile_aggregate_framework_tax(
    prof_data: Mapping[str, Sequence[ProfileEvent]],
) -> dict[str, ProfileEventFrameworkTax]:
    """Returns block name -> the percentage of its executions outside of kernels and delegates.

    Blocks without an execution are omitted.
    """
    taxes = {}
    for name, events in prof_data.items():
        execute_times = next((event.duration for event in events if "Method::execute" in event.name), [])
        inner = [
            event.duration
            for event in events
            if "native_call" in event.name or "delegate_execute" in event.name
        ]
        sums = [sum(times) for times in zip(*inner)]
        if execute_times and sums:
            tax = [round((a - b) / a, 4) * 100 if a else 0.0 for a, b in zip(execute_times, sums)]
            taxes[name] = ProfileEventFrameworkTax(execute_times, sums, tax)
    return taxes


def profile_framework_tax_table(
    prof_framework_tax_data: Mapping[str, ProfileEventFrameworkTax],
) -> list[Table]:
    """Returns a table for each block of `profile_aggregate_framework_tax`."""
    return [
        Table(
            f"{name} framework tax calculations",
            ("", *_iterations(len(tax.exec_time))),
            [
                ("Model execution time", *tax.exec_time),
                ("Time spent in kernels and delegates", *tax.kernel_and_delegate_time),
                ("Framework tax (%)", *tax.framework_tax),
            ],
        )
        for name, tax in prof_framework_tax_data.items()
    ]


def _iterations(count: int) -> tuple[str, ...]:
    return tuple(f"Iteration {at}" for at in range(count))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of ExecuTorch's `profiler.profiler_results_cli`."""
    parser = argparse.ArgumentParser("profiler_results_cli", description=main.__doc__)
    parser.add_argument("--prof_results_bin", required=True, help="a file with the bytes of a dump")
    parser.add_argument("--model_path", help="ignored; torchette profile prints the lines of a model")
    parser.add_argument("--chrome_json_path", help="output file of a trace for chrome://tracing")
    options = parser.parse_args(arguments)
    events, memory = deserialize_profile_results(Path(options.prof_results_bin).read_bytes())
    tables = [*profile_table(events), *profile_framework_tax_table(profile_aggregate_framework_tax(events))]
    for table in (*tables, *mem_profile_table(memory)):
        print(table)
    if options.chrome_json_path:
        Path(options.chrome_json_path).write_text(json.dumps({"traceEvents": _trace(events)}, indent=2))
    return 0


def _trace(prof_data: Mapping[str, Sequence[ProfileEvent]]) -> list[dict[str, object]]:
    """Converts the events to Chrome's trace format, in microseconds."""
    return [
        {
            "name": f"{name}:{event.name}", "cat": "cpu_op", "ph": "X", "pid": 0, "tid": 0,
            "ts": int(begin * 1000), "dur": int(duration * 1000),
        }
        for name, events in prof_data.items()
        for event in events
        for begin, duration in zip(event.ts, event.duration)
    ]  # fmt: skip
