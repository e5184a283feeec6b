# SPDX-License-Identifier: BSD-3-Clause
# In: the runs of a dump. Out: groups of equal runs, and in each group every operation with its time in every run.
# Fields and columns are ExecuTorch's; those after `start_time` are additions.
"""`Event` and `EventBlock`: the operations that a device executed."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from torchette.devtools.inspect import FrameInfo, source_line
from torchette.devtools.inspector.table import Table
from torchette.devtools.inspector.values import equal, is_output, read_value
from torchette.errors import FormatError, InputError, InputTypeError
from torchette.format.schema import Record
from torchette.units import counted


class TimeScale(Enum):
    """A unit of time. Cycles cannot be converted to other units."""

    NS = "ns"
    US = "us"
    MS = "ms"
    S = "s"
    CYCLES = "cycles"


_PER_SECOND = {TimeScale.NS: 10**9, TimeScale.US: 10**6, TimeScale.MS: 10**3, TimeScale.S: 1}
# Events of the runtime itself; they do not belong to a line of the model.
FRAMEWORK_EVENTS = ("Method::init", "Program::load_method", "Method::execute")
# Event of ExecuTorch's runtime that encloses the event of each kernel.
OPERATOR_CALL_EVENT = "OPERATOR_CALL"
_MAX_LIST_ITEMS = 5  # number of operators in a cell from which on the cell is abbreviated

Converter = Callable[[int | str, int | float], int | float]
MetadataParser = Callable[[list[Any]], dict[str, Any]]


def ticks_per_unit(source: TimeScale, target: TimeScale) -> float:
    """Returns the divisor that converts `source` to `target`. Raises InputError if only one of them is cycles."""
    if TimeScale.CYCLES in (source, target):
        if source is not target:
            raise InputError(
                "cycles cannot be converted to seconds", hints=["set both time scales to cycles"]
            )
        return 1.0
    return _PER_SECOND[source] / _PER_SECOND[target]


class PerfData:
    """Times of an operation, one per run."""

    def __init__(self, raw: list[float]) -> None:
        self.raw = raw

    @property
    def p10(self) -> float:
        """The 10th percentile."""
        return float(np.percentile(self.raw, 10))

    @property
    def p50(self) -> float:
        """The median."""
        return float(np.percentile(self.raw, 50))

    @property
    def p90(self) -> float:
        """The 90th percentile."""
        return float(np.percentile(self.raw, 90))

    @property
    def avg(self) -> float:
        """The mean."""
        return float(np.mean(self.raw))

    @property
    def min(self) -> float:
        """The minimum."""
        return min(self.raw)

    @property
    def max(self) -> float:
        """The maximum."""
        return max(self.raw)

    def to_dict(self) -> dict[str, Any]:
        """Returns the times and statistics by name."""
        return {"raw": self.raw, **{name: getattr(self, name) for name in _STATISTICS}}

    def __repr__(self) -> str:
        return f"PerfData(p50={self.p50:.6g}, {counted(len(self.raw), 'run')})"


_STATISTICS = ("p10", "p50", "p90", "avg", "min", "max")


@dataclass
class Event:
    """An operation of a method, or a part of a delegate.

    Attributes:
        name: name of the kernel, of the method's action, or the delegate's identifier of the part.
        perf_data: its times; None if only values were logged.
        op_types: the operators that it computes, such as `aten.linear.default`.
        delegate_debug_identifier: the delegate's number or name of the part; None outside delegates.
        debug_handles: debug handles of the captured calls that it computes.
        num_outputs: number of outputs of a delegate call.
        stack_traces: node of the recorded graph -> stack trace; without a record, instruction -> its line.
        module_hierarchy: node -> enclosing modules: key -> (path, type), outermost first.
        is_delegated_op: whether it is a part of a delegate.
        delegate_backend_name: name of the backend.
        debug_data: the values that it returned: scalars, torch tensors (arrays without torch), or lists of these.
    """

    name: str
    perf_data: PerfData | None = None
    op_types: list[str] = field(default_factory=list)
    delegate_debug_identifier: int | str | None = None
    debug_handles: int | Sequence[int] | None = None
    num_outputs: int = 1
    stack_traces: dict[str, str | None] = field(default_factory=dict)
    module_hierarchy: dict[str, dict[str, Any]] = field(default_factory=dict)
    is_delegated_op: bool | None = None
    delegate_backend_name: str | None = None
    _delegate_debug_metadatas: list[Any] = field(default_factory=list)
    debug_data: list[Any] = field(default_factory=list)
    part_name: str = ""  # the delegate's name of the part
    _instruction_id: int | None = None  # index in its chain
    _chain: int = 0
    _number: int | None = None  # index of the instruction, as in `torchette inspect`
    _delegate_metadata_parser: MetadataParser | None = None
    _start_time: list[int] | None = None

    @property
    def instruction(self) -> int | None:
        """Index of its instruction, as in `torchette inspect`; None for events of the method itself."""
        return self._number

    @property
    def start_time(self) -> list[int] | None:
        """Start in each run, in ticks of the device's clock."""
        return self._start_time

    @property
    def delegate_debug_metadatas(self) -> Any:
        """Metadata that the delegate added, one item per run; a dict if a parser is set."""
        if self._delegate_metadata_parser is None or not self._delegate_debug_metadatas:
            return self._delegate_debug_metadatas
        return self._delegate_metadata_parser(self._delegate_debug_metadatas)

    @property
    def raw_delegate_debug_metadatas(self) -> list[Any]:
        """Metadata that the delegate added, without parsing."""
        return self._delegate_debug_metadatas

    @property
    def handles(self) -> tuple[int, ...]:
        """The debug handles as a tuple."""
        handles = self.debug_handles
        return () if handles is None else (handles,) if isinstance(handles, int) else tuple(handles)

    @property
    def source(self) -> str:
        """Line of the model, such as `model.py:12`; of several lines, the first one and the number of others."""
        lines = list(dict.fromkeys(filter(None, (_line(trace) for trace in self.stack_traces.values()))))
        return "" if not lines else lines[0] if len(lines) == 1 else f"{lines[0]} and {len(lines) - 1} more"

    @property
    def module(self) -> str:
        """Path of the module in the model, such as `layers.0.attention`; the common prefix of several.

        A module that contains another one of these modules does not count: a function in its `forward` may be fused with the
        other one.
        """
        all_paths = {_paths(stack)[-1] for stack in self.module_hierarchy.values() if stack}
        paths = [
            path
            for path in all_paths
            if not any(path == "" or inner.startswith(f"{path}.") for inner in all_paths - {path})
        ]
        if not paths:
            return ""
        together = zip(*(path.split(".") for path in paths), strict=False)
        same = itertools.takewhile(lambda names: len(set(names)) == 1, together)
        return ".".join(names[0] for names in same)

    def is_in_module(self, name: str) -> bool:
        """Whether the key or path of an enclosing module contains this text."""
        return any(
            name in key or name in path
            for stack in self.module_hierarchy.values()
            for key, path in zip(stack, _paths(stack), strict=True)
        )

    def asdict(self, _units: str = "") -> dict[str, Any]:
        """Returns its row in a table; `_units` is appended to the names of time columns."""
        types = self.op_types
        if len(types) >= _MAX_LIST_ITEMS:
            types = [types[0], types[1], f"… {types[-1]} ({len(types)} total)"]
        perf = self.perf_data
        return {
            "event_name": self.name,
            "raw": perf.raw if perf else None,
            **{name + _units: getattr(perf, name) if perf else None for name in _STATISTICS},
            "op_types": types,
            "delegate_debug_identifier": self.delegate_debug_identifier,
            "stack_traces": self.stack_traces,
            "module_hierarchy": self.module_hierarchy,
            "is_delegated_op": self.is_delegated_op,
            "delegate_backend_name": self.delegate_backend_name,
            "debug_data": self.debug_data,
            "start_time": self._start_time,
            "instruction": self._number,
            "module": self.module,
            "source": self.source,
            "part_name": self.part_name,
        }

    to_dict = asdict

    def to_dataframe(self, _units: str = "") -> Any:
        """Returns a pandas.DataFrame with one row. Raises MissingPackageError if pandas is not installed."""
        return Table([self.asdict(_units)]).to_dataframe()


@dataclass
class EventBlock:
    """A group of equal runs: loads of a method, or executions with the same events.

    Attributes:
        name: "Default" for loading, "Execute" for execution.
        events: each operation once, in order of the first start.
        source_time_scale: unit of the device's clock.
        target_time_scale: unit of the times in this object.
        bundled_input_index: index of the bundled program's case; None for other inputs.
        run_output: the outputs of the method.
        reference_output: the expected outputs, from the record.
        allocations: (allocator, bytes) of each allocation in the first run.
    """

    name: str
    events: list[Event] = field(default_factory=list)
    source_time_scale: TimeScale = TimeScale.NS
    target_time_scale: TimeScale = TimeScale.MS
    bundled_input_index: int | None = None
    run_output: list[Any] | None = None
    reference_output: list[Any] | None = None
    allocations: list[tuple[str, int]] = field(default_factory=list)

    def table(self, include_units: bool = False, include_delegate_debug_data: bool = False) -> Table:
        """Returns a row for each event."""
        units = f" ({self.target_time_scale.value})" if include_units else ""
        rows = [{"event_block_name": self.name, **event.asdict(units)} for event in self.events]
        if include_delegate_debug_data:
            for row, event in zip(rows, self.events, strict=True):
                row.update(_metadata_columns(event.delegate_debug_metadatas))
        columns = list(dict.fromkeys(column for row in rows for column in row))
        return Table(rows, columns)

    def to_dict(self) -> dict[str, Any]:
        """Returns the name, and the events as dicts."""
        return {
            "name": self.name,
            "time_scale": self.target_time_scale.value,
            "bundled_input_index": self.bundled_input_index,
            "events": [event.to_dict() for event in self.events],
        }

    def to_dataframe(self, include_units: bool = False, include_delegate_debug_data: bool = False) -> Any:
        """Returns a pandas.DataFrame with a row per event. Raises MissingPackageError if pandas is not installed."""
        return self.table(include_units, include_delegate_debug_data).to_dataframe()

    def __str__(self) -> str:
        return str(self.table(include_units=True))


def _metadata_columns(metadata: object) -> dict[str, Any]:
    if not metadata:
        return {}
    if isinstance(metadata, list):
        return {"delegate_debug_metadata": metadata}
    if isinstance(metadata, Mapping):
        return dict(metadata)
    raise InputTypeError(
        f"delegate_metadata_parser returned {type(metadata).__name__}, expected a dict",
        hints=["return a dict: column -> value"],
    )


# ---- from a dump ----


@dataclass(frozen=True)
class _Key:
    """Identity of an event in all runs."""

    chain: int
    instruction: int | None
    number: int | None  # the delegate's number of the part
    text: str | None
    name: str
    logged: str | None  # name of the event with the values


@dataclass
class _Gathered:
    """Times and values of one key in all runs."""

    times: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    metadata: list[bytes] = field(default_factory=list)
    values: list[Any] | None = None


def event_blocks(
    dump: Record,
    *,
    source: TimeScale,
    target: TimeScale,
    buffer: memoryview | None,
    metadata_parser: MetadataParser | None,
    converter: Converter | None,
) -> list[EventBlock]:
    """Groups the runs of a dump. Values are read only if there is a buffer.

    Raises:
        InputError: only one time scale is cycles.
        FormatError: times or values are not valid.
    """
    scale = ticks_per_unit(source, target)
    converter = converter or (lambda name, time: time / scale)
    groups: dict[Any, tuple[EventBlock, dict[_Key, _Gathered]]] = {}
    for run in dump.run_data:
        entries = _entries(run)
        index = run.bundled_input_index if run.bundled_input_index >= 0 else None
        signature = (run.name, tuple(entries), index)
        outputs = _outputs(run, buffer)
        if signature not in groups:
            block = EventBlock(
                run.name or "", [], source, target, index, outputs, allocations=_allocations(run)
            )
            groups[signature] = (block, {key: _Gathered() for key in entries})
        block, gathered = groups[signature]
        changed = not equal(block.run_output, outputs)
        for key, (profiled, logged) in entries.items():
            changed |= _gather(gathered[key], key, profiled, logged, buffer, scale, converter)
        if changed:
            warnings.warn(
                f"runs of {block.name!r} have different values; the values of the first run are shown",
                stacklevel=3,
            )
    for block, gathered in groups.values():
        block.events = [_event(key, samples, metadata_parser) for key, samples in gathered.items()]
    return [block for block, _ in groups.values()]


def _entries(run: Record) -> dict[_Key, tuple[list[Any], list[Any]]]:
    """Returns times and values by key, in order of appearance. An instruction in a loop has several of each."""
    places: dict[tuple[int, int | None, int | None, str | None], tuple[list[Any], list[Any]]] = {}
    for event in run.events:
        payload = event.profile_event or event.debug_event
        if payload is None or (event.debug_event is not None and is_output(payload.debug_entry)):
            continue
        # Events outside any chain belong to the method. Their index -1 reads as 2**32 - 1 if the field is unsigned.
        in_chain = 0 <= payload.chain_index < 2**31 and payload.instruction_id >= 0
        place = (
            payload.chain_index if in_chain else 0,
            payload.instruction_id if in_chain else None,
            payload.delegate_debug_id_int if payload.delegate_debug_id_int >= 0 else None,
            payload.delegate_debug_id_str or None,
        )
        profiled, logged = places.setdefault(place, ([], []))
        (profiled if event.profile_event is not None else logged).append(payload)
    entries: dict[_Key, tuple[list[Any], list[Any]]] = {}
    for place, (profiled, logged) in places.items():
        name_of_values = (logged[0].name or "") if logged else None
        for name in dict.fromkeys(profile_event.name or "" for profile_event in profiled) or ("",):
            same = [profile_event for profile_event in profiled if (profile_event.name or "") == name]
            entries[_Key(*place, name, name_of_values)] = (same, logged)
    return entries


def _gather(
    samples: _Gathered,
    key: _Key,
    profiled: Sequence[Any],
    logged: Sequence[Any],
    buffer: memoryview | None,
    scale: float,
    converter: Converter,
) -> bool:
    """Adds the times and values of one run; returns whether the values differ from those of earlier runs."""
    if profiled:
        delegated = key.number is not None or key.text is not None
        times = [
            float(_elapsed(converter(_name(key), one.start_time), converter(_name(key), one.end_time), key))
            if delegated
            else _elapsed(one.start_time, one.end_time, key) / scale
            for one in profiled
        ]
        samples.times.append(sum(times))
        samples.starts.append(profiled[0].start_time)
        samples.metadata.append(bytes(profiled[0].delegate_debug_metadata or b""))
    if not logged or buffer is None:
        return False
    try:
        values = [read_value(one.debug_entry, buffer) for one in logged]
    except FormatError as error:
        error.where = (f"values of {_name(key) or key.logged}, instruction {key.instruction}", *error.where)
        raise
    if samples.values is None:
        samples.values = values
        return False
    return not equal(samples.values, values)


def _elapsed(start: float, end: float, key: _Key) -> float:
    """Returns the time between two readings of a clock; a 32-bit clock may have wrapped around."""
    if end >= start:
        return end - start
    if start >= 2**32:
        raise FormatError(
            f"{_name(key) or 'an event'}, instruction {key.instruction}, ends at {end}, before it starts at {start}",
            hints=["the clock of the device must not go back"],
        )
    return end + 2**32 - start


def _name(key: _Key) -> str:
    """Returns the name of an event; a delegate's part is named after its identifier."""
    identifier = key.number if key.number is not None else key.text
    return key.name or key.logged or "" if identifier is None else str(identifier)


def _event(key: _Key, samples: _Gathered, parser: MetadataParser | None) -> Event:
    identifier = key.number if key.number is not None else key.text
    return Event(
        name=_name(key),
        perf_data=PerfData(samples.times) if samples.times else None,
        delegate_debug_identifier=identifier,
        is_delegated_op=identifier is not None,
        debug_data=list(samples.values or ()),
        part_name="" if identifier is None else key.name or key.logged or key.text or "",
        _delegate_debug_metadatas=samples.metadata if any(samples.metadata) else [],
        _instruction_id=key.instruction,
        _chain=key.chain,
        _delegate_metadata_parser=parser,
        _start_time=samples.starts or None,
    )


def _outputs(run: Record, buffer: memoryview | None) -> list[Any]:
    records = (event.debug_event.debug_entry for event in run.events if event.debug_event is not None)
    return (
        [read_value(record, buffer) for record in records if is_output(record)] if buffer is not None else []
    )


def _allocations(run: Record) -> list[tuple[str, int]]:
    names = [allocator.name or "" for allocator in run.allocators]
    allocations = (event.allocation_event for event in run.events if event.allocation_event is not None)
    return [
        (names[one.allocator_id - 1] if 0 < one.allocator_id <= len(names) else "", one.allocation_size)
        for one in allocations
    ]


def has_tensors(dump: Record) -> bool:
    """Whether a dump has values that are stored in a debug buffer."""
    return any(
        event.debug_event is not None and event.debug_event.debug_entry.val.name in ("Tensor", "TensorList")
        for run in dump.run_data
        for event in run.events
    )


# ---- locations in the model ----

_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>[^\n]+)(?:\n\s*(?P<code>[^\n]*))?'
)


def _line(trace: str | None) -> str:
    return source_line(list(_frames(trace)))


def _frames(trace: str | None) -> Iterator[FrameInfo]:
    for match in _FRAME.finditer(trace or ""):
        yield FrameInfo(match["file"], int(match["line"]), match["function"], (match["code"] or "").strip())


def trace_text(frames: Sequence[FrameInfo]) -> str:
    """Formats the source lines of an instruction like a stack trace of torch."""
    return "\n".join(
        f'File "{frame.file}", line {frame.line}, in {frame.function}'
        + (f"\n    {frame.code}" if frame.code else "")
        for frame in frames
    )


def _paths(stack: Mapping[str, Any]) -> list[str]:
    return [entry[0] if isinstance(entry, (tuple, list)) else str(entry) for entry in stack.values()]
