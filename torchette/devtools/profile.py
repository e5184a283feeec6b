# SPDX-License-Identifier: BSD-3-Clause
# In: the events of a method's executions, and the program. Out: the time of each operation, its fraction of the
# processor's limits, and the events as a Chrome trace or an ETDump.
"""Time of each operation of a method: `profile` runs the method, `operations` reads events. `trace_events` writes a
Chrome trace, `etdump_of` an ETDump for Inspectors, and torchette/devtools/perfetto.py a trace for Perfetto."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchette import notebook
from torchette.devtools.inspect import InstructionInfo, MethodInfo, PartInfo, Table, printable, source_line
from torchette.devtools.limits import Limits, Store, limits
from torchette.devtools.work import Work, work
from torchette.errors import FormatError
from torchette.format import etdump
from torchette.format.schema import Record
from torchette.runtime import Event, Intermediate, Method, Runtime
from torchette.units import counted


@dataclass(frozen=True)
class Operation:
    """An instruction, or a part of a delegate, over all recorded executions."""

    name: str  # kernel, backend, "backend: part", or action of the method
    instruction: int | None  # index, as in `torchette inspect`; None for the method itself
    part: int | None  # the backend's number of the part
    source: str  # line of the model, if stored
    times: list[float]  # seconds per execution, without nested parts, which have their own rows
    calls: int  # in all executions
    work: Work | None = None  # cost of one call, if known


@dataclass(frozen=True)
class Profile:
    """Times of a method's executions. Prints as a table, also in a notebook."""

    title: str  # file and method
    runs: int
    operations: list[Operation]  # in order of their first start
    events: list[Event]  # of loading, warm-up and all executions
    limits: Limits | None = None  # of the processor, with the method's number of threads
    nbytes: int = 0  # weights and planned memory of the method; selects the store that operators read from

    @property
    def store(self) -> Store | None:
        """The store that holds all bytes of the method between executions."""
        return self.limits.store_of(self.nbytes) if self.limits else None

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each operation, slowest first.

        Times are in seconds; `share` is the fraction of the sum of all medians. `operations` and `bytes` are per
        execution (`torchette.devtools.work`), `flops` and `rate` are per second. `of_peak` and `of_bandwidth` are
        fractions of the processor's limits, and `bound` names the larger fraction. Unknown values are None.
        """
        rows = [self.row(operation) for operation in self.operations]
        total = sum(row["p50"] for row in rows)
        for row in rows:
            row["share"] = row["p50"] / total if total else 0.0
        return sorted(rows, key=lambda row: -row["p50"])

    def row(self, operation: Operation) -> dict[str, Any]:
        """Returns the row of one operation, without its share."""
        times, calls = quantiles(operation.times), operation.calls / self.runs
        seconds = times["p50"]
        num_operations, nbytes = operation.work or (None, None)
        row: dict[str, Any] = {
            "name": operation.name,
            "instruction": operation.instruction,
            "part": operation.part,
            "source": operation.source,
            "calls": calls,
            **times,
            "operations": num_operations and num_operations * calls,
            "bytes": nbytes and nbytes * calls,
            "flops": num_operations * calls / seconds if num_operations and seconds else None,
            "rate": nbytes * calls / seconds if nbytes and seconds else None,
        }
        limits, store = self.limits, self.store
        row["of_peak"] = limits and row["flops"] and row["flops"] / limits.arithmetic
        row["of_bandwidth"] = store and row["rate"] and row["rate"] / store.rate
        by_arithmetic = (row["of_peak"] or 0) > (row["of_bandwidth"] or 0)
        row["bound"] = None if not row["of_bandwidth"] else "arithmetic" if by_arithmetic else "memory"
        return row

    def to_dict(self) -> dict[str, Any]:
        """Returns dicts, lists, strings, numbers and None."""
        return {
            "title": self.title,
            "runs": self.runs,
            "limits": self.limits and dataclasses.asdict(self.limits),
            "store": self.store and self.store.name,
            "operations": self.rows(),
        }

    def table(self) -> Table:
        """Returns the rows as formatted text."""
        rows = self.rows()
        total = sum(row["p50"] for row in rows)
        again = any(row["calls"] != 1 for row in rows)
        columns = [
            ("share", lambda row: f"{row['share']:6.1%}"),
            ("p50", lambda row: milliseconds(row["p50"])),
            *([("calls", lambda row: f"{row['calls']:g}")] if again else ()),
            ("at", lambda row: _place(row["instruction"], row["part"])),
            ("operation", lambda row: printable(row["name"])),
            ("GFLOP/s", lambda row: _billions(row["flops"])),
            ("peak", lambda row: _percent(row["of_peak"])),
            ("GB/s", lambda row: _billions(row["rate"])),
            (self.store.name if self.store else "", lambda row: _percent(row["of_bandwidth"])),
            ("bound", lambda row: row["bound"] or ""),
            ("source", lambda row: printable(row["source"])),
        ]
        cells = [tuple(cell(row) for _, cell in columns) for row in rows]
        title = f"{self.title}: {milliseconds(total)} in {counted(len(rows), 'operation')}, {counted(self.runs, 'run')}"
        if self.limits:
            title += f"\n{self.limits.sentence()}"
        return Table(title, tuple(name for name, _ in columns), cells)

    def data(self) -> Table:
        """Returns the rows with numeric cells, for CSV and pandas."""
        rows = self.rows()
        names = (
            *("name", "instruction", "part", "source", "calls", "p10", "p50", "p90", "min", "share"),
            *("operations", "bytes", "flops", "rate", "of_peak", "of_bandwidth", "bound"),
        )
        return Table(self.title, names, [tuple(row[name] for name in names) for row in rows])

    def to_dataframe(self) -> Any:
        """Returns the rows as a pandas DataFrame. Raises MissingPackageError if pandas is not installed."""
        return self.data().to_dataframe()

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return notebook.tables([self.table()])


def profile(
    method: Method,
    info: MethodInfo,
    inputs: Sequence[Any],
    runs: int,
    *,
    warm_up: int = 3,
    name: str = "",
    threads: int | None = None,
) -> Profile:
    """Runs a method and measures the time of its operations.

    Args:
        method: a method loaded with ``tracing=True``.
        info: description of the plan that it runs (`MethodMeta.plan_name`), from `describe`.
        inputs: inputs of `Method.execute`.
        runs: number of measured executions.
        warm_up: number of executions before them.
        name: name of the file, for the title.
        threads: number of threads of the method; `Runtime.num_threads` by default.

    Raises:
        InputError, ExecutionError: as for `Method.execute`.
    """
    for _ in range(warm_up):
        method.execute(inputs)
    before = method.take_events()
    for _ in range(runs):
        method.execute(inputs)
    events = method.take_events()
    sizes = _sizes(method, info, inputs)
    title = f"{name}, {info.name}" if name else info.name
    can = limits(threads or Runtime.get().num_threads)
    return Profile(title, runs, operations(info, events, sizes), [*before, *events], can, _nbytes(info))


def _sizes(method: Method, info: MethodInfo, inputs: Sequence[Any]) -> dict[int, tuple[int, ...]]:
    """Returns the sizes of values with dynamic shapes, by index, for these inputs."""
    if all(value.tensor is None or value.tensor.dynamism == "static" for value in info.values):
        return {}
    sizes = {
        port.index: tuple(value.shape)
        for port, value in zip(info.inputs, inputs, strict=False)
        if hasattr(value, "shape")
    }
    step, nth = -1, 0  # index of the value among the instruction's outputs

    def see(intermediate: Intermediate) -> None:
        nonlocal step, nth
        nth = nth + 1 if intermediate.step == step else 0
        step = intermediate.step
        written = instruction(info, intermediate.chain, intermediate.instruction).outputs
        if not intermediate.in_delegate and nth < len(written) and hasattr(intermediate.value, "shape"):
            sizes[written[nth]] = tuple(intermediate.value.shape)

    method.execute(inputs, see)
    return sizes


def _nbytes(method: MethodInfo) -> int:
    """Returns the bytes of a method's stored tensors and planned memory."""
    stored = {
        value.tensor.data or value.tensor.name: value.tensor.nbytes
        for value in method.values
        if value.tensor is not None and value.tensor.storage in ("constant", "external")
    }
    return sum(stored.values()) + sum(buffer.nbytes for buffer in method.planned_buffers)


def quantiles(times: Sequence[float]) -> dict[str, float]:
    """Returns the 10th, 50th and 90th percentile and the minimum of the runs."""
    p10, p50, p90 = map(float, np.percentile(times, [10, 50, 90]))
    return {"p10": p10, "p50": p50, "p90": p90, "min": min(times)}


def milliseconds(seconds: float) -> str:
    """Formats a time: ``0.00123`` is ``1.23 ms``; below 0.1 ms in microseconds."""
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-4 else f"{seconds * 1e3:.2f} ms"


def _billions(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e9:.3g}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _place(instruction: int | None, part: int | None) -> str:
    return "" if instruction is None else str(instruction) if part is None else f"{instruction}:{part}"


def operations(
    method: MethodInfo, events: Iterable[Event], sizes: Mapping[int, Sequence[int]] | None = None
) -> list[Operation]:
    """Returns one entry per operation, in order of the first start. Loading is excluded.

    Args:
        method: description of the method.
        events: events of traced executions.
        sizes: sizes by index of the value, for values with dynamic shapes.
    """
    times: dict[Any, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    calls: dict[Any, int] = defaultdict(int)
    blocks = set()
    nth = 0  # index of the part in the current call
    for event, own_time in _own_times(event for event in events if event.block > 0):
        nth = nth + 1 if event.in_delegate else 0
        key = (event.chain, event.instruction, event.in_delegate, nth, event.name, event.part)
        times[key][event.block] += own_time
        calls[key] += 1
        blocks.add(event.block)
    result = []
    for key, spent in times.items():
        chain, place, in_delegate, _, name, part = key
        seconds = [spent.get(block, 0) / 1e9 for block in sorted(blocks)]
        if chain is None:
            result.append(Operation(name, None, None, "", seconds, calls[key]))
            continue
        info = instruction(method, chain, place)
        backend = info.op if info.kind in ("kernel", "delegate") else name
        name = f"{backend}: {name or part}" if in_delegate else backend
        source = source_line(origin(info, part).source)
        cost = None if in_delegate else work(method, info, sizes)
        result.append(Operation(name, info.index, part, source, seconds, calls[key], cost))
    return result


def instruction(method: MethodInfo, chain: int, place: int) -> InstructionInfo:
    """Returns the instruction of an event."""
    return method.instructions[method.chains[chain] + place]


def origin(info: InstructionInfo, part: int | None) -> InstructionInfo | PartInfo:
    """Returns the delegate's source node with the debug handle `part`, else the instruction."""
    return next((part_info for part_info in info.parts if part_info.handle == part), info)


def _own_times(events: Iterable[Event]) -> Iterator[tuple[Event, int]]:
    """Yields each event with its nanoseconds outside nested events, in order of their start."""
    listed = list(events)
    own_times = [event.end - event.begin for event in listed]
    around: list[int] = []
    for index, event in enumerate(listed):
        while around and not _holds(listed[around[-1]], event):
            around.pop()
        if around:
            own_times[around[-1]] -= event.end - event.begin
        around.append(index)
    return zip(listed, (max(time, 0) for time in own_times), strict=True)


def _holds(outer: Event, inner: Event) -> bool:
    if outer.block != inner.block:
        return False
    if inner.chain is None or outer.chain is None:
        return outer.chain is None
    # An instruction contains only its own parts; a part contains parts that end before it.
    same = (outer.chain, outer.instruction) == (inner.chain, inner.instruction) and inner.in_delegate
    return same and (not outer.in_delegate or outer.end >= inner.end > inner.begin >= outer.begin)


def events_of(dump: Record, method: MethodInfo) -> list[Event]:
    """Converts an ETDump record (`torchette.format.etdump`) of Torchette or ExecuTorch to events.

    Raises:
        FormatError: the method does not have an event's instruction: the dump belongs to another program or method.
    """
    result = []
    block = 0
    for run in dump.run_data:
        executes = run.name == "Execute"
        block += executes
        timed = [event.profile_event for event in run.events if event.profile_event is not None]
        # ExecuTorch also times the kernel inside its call; keep one of the two events.
        kernels = {
            (event.chain_index, event.instruction_id)
            for event in timed
            if (event.name or "").startswith("native_call_")
        }
        for event in timed:
            place = (event.chain_index, event.instruction_id)
            if event.name == "OPERATOR_CALL" and place in kernels:
                continue
            at_all = event.chain_index >= 0 and event.instruction_id >= 0
            if at_all and not _has(method, *place):
                raise FormatError(
                    f"the dump refers to instruction {event.instruction_id} of chain {event.chain_index}, which method {method.name!r} does not have",
                    hints=["use the program and the method that wrote the dump"],
                )
            part = event.delegate_debug_id_int
            inside = part >= 0 or bool(event.delegate_debug_id_str)
            result.append(
                Event(
                    block if executes else 0,
                    event.delegate_debug_id_str or event.name or "",
                    event.chain_index if at_all else None,
                    event.instruction_id if at_all else None,
                    inside,
                    part if part >= 0 else None,
                    event.start_time,
                    max(event.start_time, event.end_time),
                )
            )
    # Enclosing events precede nested events.
    return sorted(
        result,
        key=lambda event: (event.block, event.begin, event.chain is not None, event.in_delegate, -event.end),
    )


def _has(method: MethodInfo, chain: int, place: int) -> bool:
    ends = [*method.chains[1:], len(method.instructions)]
    return chain < len(method.chains) and method.chains[chain] + place < ends[chain]


def trace_events(method: MethodInfo, events: Sequence[Event]) -> list[dict[str, Any]]:
    """Returns the events of a Chrome trace, including loading. Times are microseconds since the first event."""
    start = min((event.begin for event in events), default=0)
    records = []
    for event in events:
        about: dict[str, Any] = {"execution": event.block}
        name = event.name
        if event.chain is not None and event.instruction is not None:
            info = instruction(method, event.chain, event.instruction)
            about |= {"instruction": info.index, "source": source_line(origin(info, event.part).source)}
            name = info.op if info.kind == "delegate" and not event.in_delegate else name
            cost = None if event.in_delegate else work(method, info)
            about |= {key: value for key, value in (cost._asdict() if cost else {}).items() if value}
        if event.part is not None:
            about["part"] = event.part
        records.append(
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
    return records


def etdump_of(events: Iterable[Event]) -> Any:
    """Returns the ETDump record of the events: one run for loading, and one per execution.

    `torchette.format.etdump.dumps` serializes it. The events of a run are ordered by their end, as the runtime writes
    them.
    """
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
