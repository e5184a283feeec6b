# SPDX-License-Identifier: BSD-3-Clause
# In: the events of a method's executions, and the program. Out: how long each operation takes, and the
# same over time as a Chrome trace or an ETDump.
"""The time of each operation of a method: `operations` for a table, `trace_events` for chrome://tracing and Perfetto,
`etdump_of` for Inspectors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchette.devtools.inspect import InstructionInfo, MethodInfo, source_line
from torchette.format import etdump
from torchette.runtime import Event


@dataclass(frozen=True)
class Operation:
    """An instruction, or a part of a delegate, over all executions that were recorded."""

    name: str  # of a kernel, a backend, a part of a backend (after its name), or an action of the method
    instruction: int | None  # as `torchette inspect` numbers them; None for the method itself
    part: int | None  # the backend's number for it
    source: str  # the line of the model, if the file has it
    times: list[float]  # seconds of each execution, without parts that have their own row
    calls: int  # in all executions together


def operations(method: MethodInfo, events: Iterable[Event]) -> list[Operation]:
    """Each operation once, in the order of their first start. Loading is left out."""
    times: dict[Any, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    calls: dict[Any, int] = defaultdict(int)
    blocks = set()
    nth = 0  # part of the current call
    for event, own in _own_times(event for event in events if event.block > 0):
        nth = nth + 1 if event.in_delegate else 0
        key = (event.chain, event.instruction, event.in_delegate, nth, event.name, event.part)
        times[key][event.block] += own
        calls[key] += 1
        blocks.add(event.block)
    found = []
    for key, spent in times.items():
        chain, place, in_delegate, _, name, part = key
        seconds = [spent.get(block, 0) / 1e9 for block in sorted(blocks)]
        if chain is None:
            found.append(Operation(name, None, None, "", seconds, calls[key]))
            continue
        info = instruction(method, chain, place)
        backend = info.op if info.kind == "delegate" else name
        name = f"{backend}: {name or part}" if in_delegate else backend
        found.append(Operation(name, info.index, part, source_line(info.source), seconds, calls[key]))
    return found


def instruction(method: MethodInfo, chain: int, place: int) -> InstructionInfo:
    """The instruction that an event belongs to."""
    return method.instructions[method.chains[chain] + place]


def _own_times(events: Iterable[Event]) -> Iterator[tuple[Event, int]]:
    """Each event with its nanoseconds outside nested events, in the order of their start."""
    listed = list(events)
    own = [event.end - event.begin for event in listed]
    around: list[int] = []
    for index, event in enumerate(listed):
        while around and not _holds(listed[around[-1]], event):
            around.pop()
        if around:
            own[around[-1]] -= event.end - event.begin
        around.append(index)
    return zip(listed, (max(time, 0) for time in own), strict=True)


def _holds(outer: Event, inner: Event) -> bool:
    if outer.block != inner.block:
        return False
    if inner.chain is None or outer.chain is None:
        return outer.chain is None
    # an instruction contains only its own parts; parts contain parts that end before them
    same = (outer.chain, outer.instruction) == (inner.chain, inner.instruction) and inner.in_delegate
    return same and (not outer.in_delegate or outer.end >= inner.end > inner.begin >= outer.begin)


def trace_events(method: MethodInfo, events: Sequence[Event]) -> list[dict[str, Any]]:
    """The events of a Chrome trace, loading included: microseconds since the first of them."""
    start = min((event.begin for event in events), default=0)
    found = []
    for event in events:
        about: dict[str, Any] = {"execution": event.block}
        name = event.name
        if event.chain is not None and event.instruction is not None:
            info = instruction(method, event.chain, event.instruction)
            about |= {"instruction": info.index, "source": source_line(info.source)}
            name = info.op if info.kind == "delegate" and not event.in_delegate else name
        if event.part is not None:
            about["part"] = event.part
        found.append(
            {
                "name": name or f"part {event.part}",
                "ph": "X",
                "ts": (event.begin - start) / 1e3,
                "dur": (event.end - event.begin) / 1e3,
                "pid": 1,
                "tid": 1,
                "args": about,
            }
        )
    return found


def etdump_of(events: Iterable[Event]) -> Any:
    """The ETDump record of the events, a run for loading and one for each execution; `torchette.format.etdump.dumps`
    makes a file of it. In each run, what ended first comes first, as the runtime writes it."""
    runs: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        runs[event.block].append(event)
    return etdump.ETDump(
        0,
        [
            etdump.RunData(
                "Execute" if block else "Default",
                events=[_profile_event(event) for event in sorted(held, key=lambda event: event.end)],
            )
            for block, held in sorted(runs.items())
        ],
    )


def _profile_event(event: Event) -> Any:
    only_name = event.in_delegate and event.part is None
    return etdump.Event(
        profile_event=etdump.ProfileEvent(
            name=None if only_name else event.name or None,
            chain_index=-1 if event.chain is None else event.chain,
            instruction_id=-1 if event.instruction is None else event.instruction,
            delegate_debug_id_int=-1 if event.part is None else event.part,
            delegate_debug_id_str=event.name if only_name else None,
            start_time=event.begin,
            end_time=event.end,
        )
    )
