# SPDX-License-Identifier: BSD-3-Clause
# In: a dump, a debug buffer, and the record or the file of the program that ran. Out: the events with their locations
# in the model. With a record and torch, also the difference of each value from the model's value.
"""`Inspector`, with ExecuTorch's names."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from torchette.devtools import profile
from torchette.devtools.inspect import Description, describe, pandas
from torchette.devtools.inspector.events import (
    FRAMEWORK_EVENTS,
    OPERATOR_CALL_EVENT,
    Converter,
    Event,
    EventBlock,
    MetadataParser,
    TimeScale,
    event_blocks,
    has_tensors,
    ticks_per_unit,
    trace_text,
)
from torchette.devtools.inspector.table import Table
from torchette.errors import (
    InputError,
    InputTypeError,
    MissingPackageError,
    ModelNotFoundError,
    UnsupportedError,
)
from torchette.exir.etrecord import EDGE_PROGRAM, ETRecord, parse_etrecord
from torchette.format import etdump
from torchette.units import counted

_log = logging.getLogger("torchette")
# Columns that are omitted from printed tables.
_NOT_PRINTED = ("raw", "delegate_debug_identifier", "stack_traces", "module_hierarchy", "debug_data")
# Name of the event of an instruction that is not a kernel call -> kind of the instruction.
_ACTIONS = {"JF_CALL": "jump_false", "MOVE_CALL": "move", "FREE_CALL": "free"}
_KERNEL_PREFIX = "native_call_"  # prefix of ExecuTorch's kernel names, such as `add.out`


class Inspector:
    """The events in an ETDump, with their locations in the model.

    Args:
        etdump_path: path of the dump.
        etdump_data: bytes of the dump, instead of `etdump_path`.
        etrecord: the record of the program that ran, or its path.
        source_time_scale: unit of the device's clock; this runtime uses nanoseconds.
        target_time_scale: unit of the times in this object.
        debug_buffer_path: path of the file with the elements of logged tensors.
        delegate_metadata_parser: function that converts the metadata that a delegate added to its events to a dict.
        delegate_time_scale_converter: function that converts a delegate's event and a time of its clock to the target
            unit; by default, both clocks have the same unit.
        enable_module_hierarchy: no effect; events always have their modules.
        reference_graph_name: name of the graph in the record that events refer to.
        debug_buffer: elements of logged tensors as bytes, instead of `debug_buffer_path`.
        program: the .pte file that ran, as path or bytes. Without a record, it provides source lines and modules.
            ExecuTorch has no such argument.
        method: the method that ran; by default the method that matches the dump.

    Attributes:
        event_blocks: groups of equal runs.
        method: the method that ran.

    Raises:
        ModelNotFoundError: a file does not exist.
        FormatError: a file is damaged or has another format, or the debug buffer belongs to another run.
        InputError: none or both of the dump arguments are passed, the dump does not match the program, the record or
            the method, or only one time scale is cycles.

    Example:
        >>> inspector = Inspector(etdump_path="net.etdp", program="net.pte")
        >>> inspector.print_data_tabular()
    """

    def __init__(
        self,
        etdump_path: str | os.PathLike[str] | None = None,
        etdump_data: bytes | bytearray | memoryview | None = None,
        etrecord: ETRecord | str | os.PathLike[str] | None = None,
        source_time_scale: TimeScale = TimeScale.NS,
        target_time_scale: TimeScale = TimeScale.MS,
        debug_buffer_path: str | os.PathLike[str] | None = None,
        delegate_metadata_parser: MetadataParser | None = None,
        delegate_time_scale_converter: Converter | None = None,
        enable_module_hierarchy: bool = False,
        reference_graph_name: str = EDGE_PROGRAM,
        *,
        debug_buffer: bytes | bytearray | memoryview | None = None,
        program: object = None,
        method: str | None = None,
    ) -> None:
        del enable_module_hierarchy
        if (etdump_path is None) == (etdump_data is None):
            raise InputError("pass exactly one dump: etdump_path or etdump_data")
        if debug_buffer_path is not None and debug_buffer is not None:
            raise InputError("pass only one debug buffer: debug_buffer_path or debug_buffer")
        ticks_per_unit(source_time_scale, target_time_scale)
        self._etrecord = _record(etrecord)
        self._description = _description(program)
        self._source_time_scale, self._target_time_scale = source_time_scale, target_time_scale
        dump_source = Path(etdump_path) if etdump_path is not None else etdump_data
        assert dump_source is not None
        dump = etdump.load(dump_source)
        buffer = _buffer(debug_buffer_path, debug_buffer)
        if buffer is None and has_tensors(dump):
            warnings.warn(
                "the dump contains tensors, but no debug buffer with their elements was passed (debug_buffer_path)",
                stacklevel=2,
            )
        self.event_blocks: list[EventBlock] = event_blocks(
            dump,
            source=source_time_scale,
            target=target_time_scale,
            buffer=buffer,
            metadata_parser=delegate_metadata_parser,
            converter=delegate_time_scale_converter,
        )
        self._reference_graph_name = reference_graph_name
        self.method = self._find_method(method)
        self._number()
        if self._description is not None:
            self._add_lines()
        if self._etrecord is not None:
            self._add_graph()
            self._add_references()

    # ---- the program that ran ----

    def _operators(self) -> dict[str, list[list[str]]]:
        """Maps each method to the operators of each chain, as far as the file or the record contains them."""
        if self._description is not None:
            operators = {}
            for method in self._description.methods:
                ends = [*method.chains[1:], len(method.instructions)]
                operators[method.name] = [
                    [item.op for item in method.instructions[start:end]]
                    for start, end in zip(method.chains, ends, strict=True)
                ]
            return operators
        return (self._etrecord.operators if self._etrecord is not None else None) or {}

    def _find_method(self, method: str | None) -> str:
        operators, record = self._operators(), self._etrecord
        recorded = list((record._debug_handle_map if record is not None else None) or ())
        methods = [name for name in (operators or recorded) if not recorded or name in recorded] or [
            "forward"
        ]
        if method is not None:
            if (operators or recorded) and method not in methods:
                raise InputError(f"no method {method!r}", hints=[f"methods: {', '.join(methods)}"])
            methods = [method]
        methods.sort(key=lambda name: name != "forward")
        problems = {
            name: self._misfit(operators[name]) if name in operators else self._recorded_misfit(name)
            for name in methods
        }
        for name, problem in problems.items():
            if problem is None:
                return name
        name, problem = next(iter(problems.items()))
        source_kind = "file" if self._description is not None else "record"
        raise InputError(
            f"the dump does not match method {name!r} of this {source_kind}: {problem}",
            hints=[f"pass the {source_kind} of the program that ran"],
            code="other-program",
        )

    def _misfit(self, chains: list[list[str]]) -> str | None:
        """Returns why an event does not match the instructions of a method; None if all events match."""
        for event in self._events():
            if event._instruction_id is None:
                continue
            place = f"{event.name or 'a value'} at instruction {event._instruction_id}"
            if event._chain >= len(chains):
                return (
                    f"{place} is in chain {event._chain}, but the method has {counted(len(chains), 'chain')}"
                )
            operators = chains[event._chain]
            if event._instruction_id >= len(operators):
                return f"{place}, but the method has {counted(len(operators), 'instruction')}"
            op = operators[event._instruction_id]
            if not _fits(event, op):
                return f"{place}, but the method has {op} there"
        return None

    def _recorded_misfit(self, method: str) -> str | None:
        """Like `_misfit`, for a record without operators: compares instruction indices and kernel names."""
        record = self._etrecord
        handles = record._debug_handle_map if record is not None else None
        if record is None or not handles or method not in handles:
            return None
        numbers = {int(number) for number in handles[method]}
        bases: dict[int, set[str]] = {}
        if self._has_graph(method):
            ops: dict[int, set[str]] = {}
            for node in record.nodes(EDGE_PROGRAM, method):
                if node.debug_handle is not None:
                    ops.setdefault(node.debug_handle, set()).add(_base(node.op))
            for number, entry in handles[method].items():
                entry_handles = entry if isinstance(entry, (list, tuple)) else [entry]
                bases[int(number)] = set().union(*(ops.get(handle, set()) for handle in entry_handles))
        same = different = 0
        for event in self._events():
            number = event._instruction_id
            if number is None:
                continue
            if event.is_delegated_op is False and number > max(numbers, default=-1) + 1:
                return f"{event.name} is at instruction {number}, but the record ends with {max(numbers, default=-1)}"
            base = _kernel(event.name)
            if base is not None and bases.get(number):
                fits = _base(base) in bases[number]
                same, different = same + fits, different + (not fits)
        if different and not same:
            return f"none of the names of {counted(different, 'kernel')} matches the record"
        return None

    def _has_graph(self, method: str) -> bool:
        record = self._etrecord
        return record is not None and method in (record._edge or ())

    def _events(self) -> list[Event]:
        return [event for block in self.event_blocks for event in block.events]

    # ---- locations in the model ----

    def _number(self) -> None:
        chains = self._operators().get(self.method)
        for event in self._events():
            if event._instruction_id is not None:
                before = (chains or [])[: event._chain]
                event._number = sum(map(len, before)) + event._instruction_id

    def _add_lines(self) -> None:
        """Sets the operators, lines and modules of events from the .pte file."""
        assert self._description is not None
        method = next(item for item in self._description.methods if item.name == self.method)
        for event in self._events():
            if event._number is None:
                continue
            info = method.instructions[event._number]
            if info.kind == "delegate":
                event.delegate_backend_name = info.op
            elif info.kind == "kernel":
                event.op_types = [info.op]
            part = event.delegate_debug_identifier if event.is_delegated_op else None
            origin = profile.origin(info, part if isinstance(part, int) else None)
            name = f"instruction {info.index}"
            if origin.source:
                event.stack_traces = {name: trace_text(origin.source)}
            if origin.module:
                event.module_hierarchy = {name: {origin.module: (origin.module, origin.module_type)}}

    def _add_graph(self) -> None:
        """Sets the handles, nodes and modules of events from the record."""
        record = self._etrecord
        assert record is not None
        handles = _numbered(record._debug_handle_map, self.method)
        delegates = _numbered(record._delegate_map, self.method)
        counts = _numbered(record._instruction_id_to_num_outs_map, self.method)
        graph = self._reference_graph_name
        nodes: dict[int, list[Any]] = {}
        for node in record.nodes(graph, self.method) if self._has_graph(self.method) else ():
            if node.debug_handle is not None:
                nodes.setdefault(node.debug_handle, []).append(node)
        for event in self._events():
            number = event._number
            if number not in handles or event.name in FRAMEWORK_EVENTS:
                continue
            delegate = delegates.get(number) or {}
            event.num_outputs = counts.get(number, 1)
            if delegate:
                event.delegate_backend_name = delegate.get("name") or ""
            event.debug_handles = (
                _in_delegate(delegate.get("delegate_map") or {}, event.delegate_debug_identifier)
                if event.is_delegated_op and delegate
                else handles[number]
            )
            event_nodes = [node for handle in event.handles for node in nodes.get(handle, ())]
            if event_nodes:
                event.op_types = [node.op for node in event_nodes]
                event.stack_traces = {node.name: node.stack_trace for node in event_nodes}
                event.module_hierarchy = {node.name: node.module_stack for node in event_nodes}

    def _add_references(self) -> None:
        blocks = [block for block in self.event_blocks if block.bundled_input_index is not None]
        references = (
            self._etrecord._reference_outputs if self._etrecord is not None and blocks else None
        ) or {}
        outputs = references.get(self.method, [])
        for block in blocks:
            if block.bundled_input_index is not None and block.bundled_input_index < len(outputs):
                block.reference_output = outputs[block.bundled_input_index]

    # ---- tables ----

    def table(self, include_units: bool = True, include_delegate_debug_data: bool = False) -> Table:
        """Returns a row for each event of each block, without pandas.

        Args:
            include_units: whether the columns have the units of times in their names.
            include_delegate_debug_data: whether to include the metadata of delegates.
        """
        tables = [block.table(include_units, include_delegate_debug_data) for block in self.event_blocks]
        columns = list(dict.fromkeys(column for table in tables for column in table.columns))
        return Table([row for table in tables for row in table], columns)

    def to_dict(self) -> dict[str, Any]:
        """Returns the method and its blocks as dicts."""
        return {"method": self.method, "event_blocks": [block.to_dict() for block in self.event_blocks]}

    def to_dataframe(self, include_units: bool = True, include_delegate_debug_data: bool = False) -> Any:
        """Returns a pandas.DataFrame with a row per event.

        Args:
            include_units, include_delegate_debug_data: see `table`.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        return self.table(include_units, include_delegate_debug_data).to_dataframe()

    def _printed(self, include_units: bool, include_delegate_debug_data: bool) -> Table:
        table = self.table(include_units, include_delegate_debug_data)
        return Table(
            [row for row in table if OPERATOR_CALL_EVENT not in row["event_name"]],
            [column for column in table.columns if column not in _NOT_PRINTED],
        )

    def print_data_tabular(
        self,
        file: IO[str] | None = None,
        include_units: bool = True,
        include_delegate_debug_data: bool = False,
    ) -> None:
        """Prints the events.

        Args:
            file: a text file; default: standard output.
            include_units, include_delegate_debug_data: see `table`.
        """
        print(self._printed(include_units, include_delegate_debug_data), file=file or sys.stdout)

    def save_data_to_tsv(
        self,
        file: IO[str] | str | os.PathLike[str],
        include_units: bool = True,
        include_delegate_debug_data: bool = False,
    ) -> None:
        """Writes the events as tab-separated values.

        Args:
            file: a path or an open text file.
            include_units, include_delegate_debug_data: see `table`.
        """
        table = self._printed(include_units, include_delegate_debug_data)
        if isinstance(file, (str, os.PathLike)):
            with open(file, "w", encoding="utf-8") as opened:
                table.write_tsv(opened)
        else:
            table.write_tsv(file)

    def __str__(self) -> str:
        return str(self._printed(True, False))

    def _repr_html_(self) -> str:
        return self._printed(True, False)._repr_html_()

    # ---- queries ----

    def find_total_for_module(self, module_name: str) -> float:
        """Returns the mean time, in the target unit, of all events of modules.

        A delegate call counts only if its parts have no separate events.

        Args:
            module_name: text that the name or the path of each module contains.

        Raises:
            InputError: no event has a module; pass a record or the program.
        """
        events = [event for event in self._events() if event.name != OPERATOR_CALL_EVENT]
        if not any(event.module_hierarchy for event in events):
            raise InputError(
                "the modules of the events are not known",
                hints=["Inspector(..., program='net.pte'), or etrecord="],
            )
        total = 0.0
        for block in self.event_blocks:
            with_parts = {
                (event._chain, event._instruction_id)
                for event in block.events
                if event.is_delegated_op and event.module_hierarchy
            }
            for event in block.events:
                is_split = not event.is_delegated_op and (event._chain, event._instruction_id) in with_parts
                counts = event.name != OPERATOR_CALL_EVENT and not is_split and event.perf_data is not None
                if counts and event.perf_data is not None and event.is_in_module(module_name):
                    total += event.perf_data.avg
        return total

    def get_op_list(self, event_block: str, show_delegated_ops: bool | None = True) -> dict[str, list[Event]]:
        """Returns the events of each operator.

        Args:
            event_block: the name of the blocks.
            show_delegated_ops: whether to include the events of delegates.
        """
        events_by_op: dict[str, list[Event]] = {}
        for block in self.event_blocks:
            for event in block.events if block.name == event_block else ():
                if show_delegated_ops or not event.is_delegated_op:
                    for op in dict.fromkeys(event.op_types):
                        events_by_op.setdefault(op, []).append(event)
        return events_by_op

    def get_exported_program(self, graph: str | None = None) -> Any:
        """Returns a program of the record; None if there is no record.

        Args:
            graph: a name of `ETRecord.graph_names()`; default: the Edge program.

        Raises:
            InputError: the graph is not recorded.
        """
        if self._etrecord is None:
            _log.warning("this Inspector has no ETRecord, which contains the exported programs")
            return None
        return self._etrecord.program(graph or EDGE_PROGRAM, self.method)

    def calculate_numeric_gap(
        self,
        distance: object = "MSE",
        disable_debug_handle_valdiation: bool = False,
        reference_graph: str | None = None,
    ) -> Any:
        """Compares each value that the device logged with the value that a recorded graph computes for the same inputs.

        Args:
            distance: "MSE", "L1" or "SNR", or a `NumericalComparatorBase`.
            disable_debug_handle_valdiation: no effect; calls that cannot be distinguished are omitted.
            reference_graph: "exported_program", "edge_dialect_exported_program" or the name of an added graph; by
                default the captured program, if the record contains it.

        Returns:
            A pandas.DataFrame, or a `Table` if pandas is not installed, with a row for each instruction in execution
            order. The columns are aot_ops, aot_intermediate_output, runtime_ops, runtime_intermediate_output, gap (a
            number per result), not_comparable, stacktraces, module and source. If the device computes a value in
            another form, such as another layout, gap is NaN and not_comparable contains the reason; otherwise
            not_comparable is empty.

        Raises:
            InputError: there is no record, the record has no inputs or no such graph, or the dump contains no values.
            MissingPackageError: torch is not installed.
        """
        del disable_debug_handle_valdiation
        if self._etrecord is None:
            raise InputError(
                "calculate_numeric_gap requires a record", hints=["Inspector(..., etrecord=...)"]
            )
        from torchette.devtools.inspector.numeric_gap import numeric_gap

        gaps = numeric_gap(self, self._etrecord, distance, reference_graph)
        try:
            pandas()
        except MissingPackageError:
            return gaps
        return gaps.to_dataframe()

    def get_vgf_neural_statistics(self) -> list[dict[str, Any]]:
        """Returns nothing: there is no VGF backend. Raises UnsupportedError."""
        raise UnsupportedError("VGF statistics are not supported: there is no VGF backend")

    def write_tensorboard_artifact(self, path: str) -> None:
        """Not supported, and without effect in ExecuTorch.

        Args:
            path: unused.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "TensorBoard artifacts are not supported",
            hints=["save_data_to_tsv(path)", "torchette profile --trace FILE"],
        )


def _record(etrecord: object) -> ETRecord | None:
    if etrecord is None or isinstance(etrecord, ETRecord):
        return etrecord
    if isinstance(etrecord, (str, os.PathLike)):
        return parse_etrecord(etrecord)
    raise InputTypeError(f"etrecord: expected an ETRecord or a path, got {type(etrecord).__name__}")


def _description(program: object) -> Description | None:
    if program is None or isinstance(program, Description):
        return program
    if isinstance(program, (str, os.PathLike)):
        return describe(Path(program))
    buffer: Any = getattr(program, "buffer", program)
    return describe(bytes(buffer))


def _buffer(
    path: str | os.PathLike[str] | None, data: bytes | bytearray | memoryview | None
) -> memoryview | None:
    if path is None:
        return None if data is None else memoryview(data).cast("B")
    try:
        return memoryview(Path(path).read_bytes())
    except FileNotFoundError:
        raise ModelNotFoundError(f"the debug buffer {os.fspath(path)!r} does not exist") from None


def _fits(event: Event, op: str) -> bool:
    is_kernel, is_action = "::" in op, op in _ACTIONS.values()
    if event.is_delegated_op or event.name == "DELEGATE_CALL":
        return not is_kernel and not is_action
    if event.name in _ACTIONS:
        return op == _ACTIONS[event.name]
    kernel = _kernel(event.name)
    return kernel is None or (is_kernel and kernel.rpartition("::")[2] == op.rpartition("::")[2])


def _kernel(name: str) -> str | None:
    """Returns the kernel that an event is named after; None for other names."""
    if name.startswith(_KERNEL_PREFIX):
        return name.removeprefix(_KERNEL_PREFIX)
    return name if "::" in name and name not in FRAMEWORK_EVENTS else None


def _base(op: str) -> str:
    """Returns the base name of an operator: `aten::add.out`, `aten.add.Tensor` and `add.out` -> `add`."""
    name = op.rpartition("::")[2]
    parts = name.split(".")
    return parts[1] if len(parts) > 2 else parts[0]


def _numbered(entries: Mapping[str, Any] | None, method: str) -> dict[int, Any]:
    """Returns the entries of a method by instruction. In a file, the keys are strings."""
    return {int(number): value for number, value in ((entries or {}).get(method) or {}).items()}


def _in_delegate(handles: Mapping[Any, Any], identifier: int | str | None) -> Any:
    """Returns the debug handles of a delegate's part with this number or name, or with a name that contains the key."""
    for key in (identifier, str(identifier)):
        if key in handles:
            return handles[key]
    within = [key for key in handles if isinstance(key, str) and not key.isdigit() and key in str(identifier)]
    return handles[max(within, key=len)] if within else None
