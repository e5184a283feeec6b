# SPDX-License-Identifier: BSD-3-Clause
# In: a dump, a debug buffer, and the record or the file of the program that ran. Out: the events, each with its place in
# the model; and, where torch and a record are there, how far each value is from the model's own.
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
    AROUND_A_KERNEL,
    FRAMEWORK_EVENTS,
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

_log = logging.getLogger("torchette")
# What the tables for people leave out.
_NOT_PRINTED = ("raw", "delegate_debug_identifier", "stack_traces", "module_hierarchy", "debug_data")
# What an event of an instruction that calls no kernel is called -> the instruction.
_ACTIONS = {"JF_CALL": "jump_false", "MOVE_CALL": "move", "FREE_CALL": "free"}
_KERNEL_PREFIX = "native_call_"  # of ExecuTorch's kernels, before `add.out`


class Inspector:
    """What ran, from a dump.

    Args:
        etdump_path, etdump_data: the dump, as a file or as bytes; one of them.
        etrecord: the record of the program that ran, or its path.
        source_time_scale: the unit of the device's clock; the runtime's own is nanoseconds.
        target_time_scale: the unit of the times here.
        debug_buffer_path, debug_buffer: the elements of the tensors that were logged, as a file or as bytes.
        delegate_metadata_parser: makes a dict of the pieces that a delegate adds to its events.
        delegate_time_scale_converter: takes a delegate's event and a time of its clock, and gives it in the target's unit; by
            default both clocks have the same unit.
        enable_module_hierarchy: taken for ExecuTorch's sake: events always have their modules.
        reference_graph_name: which graph of the record events are found in.
        program: the .pte file that ran, as path or bytes: without a record it leads to the lines of the model, if it has
            them. ExecuTorch has no such argument.
        method: the method that ran; by default the one that the dump fits.

    Attributes:
        event_blocks: runs of the same kind together.
        method: the method that ran.

    Raises:
        ModelNotFoundError: there is no such file.
        FormatError: a file is damaged or something else, or the debug buffer is another run's.
        InputError: no dump or two; the dump is of another program or another method than the record or the file; only one
            time scale is cycles.
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
            raise InputError("give one dump: etdump_path or etdump_data")
        if debug_buffer_path is not None and debug_buffer is not None:
            raise InputError("give one debug buffer: debug_buffer_path or debug_buffer")
        ticks_per_unit(source_time_scale, target_time_scale)
        self._etrecord = _record(etrecord)
        self._description = _description(program)
        self._source_time_scale, self._target_time_scale = source_time_scale, target_time_scale
        given = Path(etdump_path) if etdump_path is not None else etdump_data
        assert given is not None
        dump = etdump.load(given)
        buffer = _buffer(debug_buffer_path, debug_buffer)
        if buffer is None and has_tensors(dump):
            warnings.warn(
                "the dump has tensors, but there is no debug buffer with their elements (debug_buffer_path)",
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

    # ---- which program ran ----

    def _operators(self) -> dict[str, list[list[str]]]:
        """Method -> the operators of each chain, as far as the file or the record says so."""
        if self._description is not None:
            found = {}
            for method in self._description.methods:
                ends = [*method.chains[1:], len(method.instructions)]
                found[method.name] = [
                    [item.op for item in method.instructions[start:end]]
                    for start, end in zip(method.chains, ends, strict=True)
                ]
            return found
        return (self._etrecord.operators if self._etrecord is not None else None) or {}

    def _find_method(self, wanted: str | None) -> str:
        operators, record = self._operators(), self._etrecord
        recorded = list((record._debug_handle_map if record is not None else None) or ())
        methods = [name for name in (operators or recorded) if not recorded or name in recorded] or [
            "forward"
        ]
        if wanted is not None:
            if (operators or recorded) and wanted not in methods:
                raise InputError(f"there is no method {wanted!r}", hints=[f"methods: {', '.join(methods)}"])
            methods = [wanted]
        methods.sort(key=lambda name: name != "forward")
        problems = {
            name: self._misfit(operators[name]) if name in operators else self._recorded_misfit(name)
            for name in methods
        }
        for name, problem in problems.items():
            if problem is None:
                return name
        name, problem = next(iter(problems.items()))
        what = "file" if self._description is not None else "record"
        raise InputError(
            f"the dump is not of method {name!r} of this {what}: {problem}",
            hints=[f"give the {what} of the program that ran"],
            code="other-program",
        )

    def _misfit(self, chains: list[list[str]]) -> str | None:
        """What an event says that no instruction of a method does; None if they all fit."""
        for event in self._events():
            if event._instruction_id is None:
                continue
            place = f"{event.name or 'a value'} at instruction {event._instruction_id}"
            if event._chain >= len(chains):
                return f"{place} is in chain {event._chain}, the method has {len(chains)}"
            operators = chains[event._chain]
            if event._instruction_id >= len(operators):
                return f"{place}, the method has {len(operators)}"
            op = operators[event._instruction_id]
            if not _fits(event, op):
                return f"{place}, where the method has {op}"
        return None

    def _recorded_misfit(self, method: str) -> str | None:
        """The same for a record without operators: its instructions, and the names of what they compute."""
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
            for number, found in handles[method].items():
                given = found if isinstance(found, (list, tuple)) else [found]
                bases[int(number)] = set().union(*(ops.get(handle, set()) for handle in given))
        same = different = 0
        for event in self._events():
            number = event._instruction_id
            if number is None:
                continue
            if event.is_delegated_op is False and number > max(numbers, default=-1) + 1:
                return f"{event.name} is at instruction {number}, the record ends with {max(numbers, default=-1)}"
            base = _kernel(event.name)
            if base is not None and bases.get(number):
                fits = _base(base) in bases[number]
                same, different = same + fits, different + (not fits)
        if different and not same:
            return f"none of the {different} kernels is the recorded one"
        return None

    def _has_graph(self, method: str) -> bool:
        record = self._etrecord
        return record is not None and method in (record._edge or ())

    def _events(self) -> list[Event]:
        return [event for block in self.event_blocks for event in block.events]

    # ---- where it comes from ----

    def _number(self) -> None:
        chains = self._operators().get(self.method)
        for event in self._events():
            if event._instruction_id is not None:
                before = (chains or [])[: event._chain]
                event._number = sum(map(len, before)) + event._instruction_id

    def _add_lines(self) -> None:
        """The operators, lines and modules that the .pte file has."""
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
        """What the record has on each event."""
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
            found = [node for handle in event.handles for node in nodes.get(handle, ())]
            if found:
                event.op_types = [node.op for node in found]
                event.stack_traces = {node.name: node.stack_trace for node in found}
                event.module_hierarchy = {node.name: node.module_stack for node in found}

    def _add_references(self) -> None:
        blocks = [block for block in self.event_blocks if block.bundled_input_index is not None]
        found = (self._etrecord._reference_outputs if self._etrecord is not None and blocks else None) or {}
        outputs = found.get(self.method, [])
        for block in blocks:
            if block.bundled_input_index is not None and block.bundled_input_index < len(outputs):
                block.reference_output = outputs[block.bundled_input_index]

    # ---- tables ----

    def table(self, include_units: bool = True, include_delegate_debug_data: bool = False) -> Table:
        """A row for each event of each block, without pandas."""
        tables = [block.table(include_units, include_delegate_debug_data) for block in self.event_blocks]
        columns = list(dict.fromkeys(column for table in tables for column in table.columns))
        return Table([row for table in tables for row in table], columns)

    def to_dict(self) -> dict[str, Any]:
        """The method, and its blocks as dicts."""
        return {"method": self.method, "event_blocks": [block.to_dict() for block in self.event_blocks]}

    def to_dataframe(self, include_units: bool = True, include_delegate_debug_data: bool = False) -> Any:
        """A pandas.DataFrame with a row for each event of each block. Raises MissingPackageError."""
        return self.table(include_units, include_delegate_debug_data).to_dataframe()

    def _printed(self, include_units: bool, include_delegate_debug_data: bool) -> Table:
        table = self.table(include_units, include_delegate_debug_data)
        return Table(
            [row for row in table if AROUND_A_KERNEL not in row["event_name"]],
            [column for column in table.columns if column not in _NOT_PRINTED],
        )

    def print_data_tabular(
        self,
        file: IO[str] | None = None,
        include_units: bool = True,
        include_delegate_debug_data: bool = False,
    ) -> None:
        """Print the events, to standard output by default."""
        print(self._printed(include_units, include_delegate_debug_data), file=file or sys.stdout)

    def save_data_to_tsv(
        self,
        file: IO[str] | str | os.PathLike[str],
        include_units: bool = True,
        include_delegate_debug_data: bool = False,
    ) -> None:
        """Write the events as tab-separated values, to an open file or a path."""
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

    # ---- questions ----

    def find_total_for_module(self, module_name: str) -> float:
        """The mean time, in the target's unit, of all that runs in modules with this in their name or path.

        A delegate's call counts where its parts have no events of their own. Raises InputError where no event is known
        to be in a module: that needs a record or the program.
        """
        events = [event for event in self._events() if event.name != AROUND_A_KERNEL]
        if not any(event.module_hierarchy for event in events):
            raise InputError(
                "no event is known to be in a module",
                hints=["Inspector(..., program='net.pte') or etrecord= knows them"],
            )
        total = 0.0
        for block in self.event_blocks:
            with_parts = {
                (event._chain, event._instruction_id)
                for event in block.events
                if event.is_delegated_op and event.module_hierarchy
            }
            for event in block.events:
                whole = not event.is_delegated_op and (event._chain, event._instruction_id) in with_parts
                counts = event.name != AROUND_A_KERNEL and not whole and event.perf_data is not None
                if counts and event.perf_data is not None and event.is_in_module(module_name):
                    total += event.perf_data.avg
        return total

    def get_op_list(self, event_block: str, show_delegated_ops: bool | None = True) -> dict[str, list[Event]]:
        """Operator -> its events, of the blocks of that name."""
        found: dict[str, list[Event]] = {}
        for block in self.event_blocks:
            for event in block.events if block.name == event_block else ():
                if show_delegated_ops or not event.is_delegated_op:
                    for op in dict.fromkeys(event.op_types):
                        found.setdefault(op, []).append(event)
        return found

    def get_exported_program(self, graph: str | None = None) -> Any:
        """A program of the record, by default the one in the Edge dialect; None where there is no record."""
        if self._etrecord is None:
            _log.warning("exported programs are in an ETRecord, and this Inspector has none")
            return None
        return self._etrecord.program(graph or EDGE_PROGRAM, self.method)

    def calculate_numeric_gap(
        self,
        distance: object = "MSE",
        disable_debug_handle_valdiation: bool = False,
        reference_graph: str | None = None,
    ) -> Any:
        """How far each value that the device has logged is from what a recorded graph computes for the same inputs.

        Args:
            distance: "MSE", "L1" or "SNR", or a `NumericalComparatorBase`.
            disable_debug_handle_valdiation: taken for ExecuTorch's sake: calls that cannot be told apart are left out.
            reference_graph: "exported_program", "edge_dialect_exported_program" or the name of a graph that was added; by
                default what was captured, if the record has it.

        Returns:
            A pandas.DataFrame, or a `Table` where pandas is not installed, with a row for each instruction in the order of
            execution: aot_ops, aot_intermediate_output, runtime_ops, runtime_intermediate_output, gap (a number for each
            result), not_comparable, stacktraces, module, source. If the device computes a value in another form, such as
            another layout, the gap is NaN and not_comparable has the reason; otherwise not_comparable is empty.

        Raises:
            InputError: there is no record, it has no inputs or no such graph, or the dump has no values.
            MissingPackageError: torch is not installed.
        """
        del disable_debug_handle_valdiation
        if self._etrecord is None:
            raise InputError("a numeric gap needs a record", hints=["Inspector(..., etrecord=...)"])
        from torchette.devtools.inspector.numeric_gap import numeric_gap

        found = numeric_gap(self, self._etrecord, distance, reference_graph)
        try:
            pandas()
        except MissingPackageError:
            return found
        return found.to_dataframe()

    def get_vgf_neural_statistics(self) -> list[dict[str, Any]]:
        """Not there: nothing here makes VGF files."""
        raise UnsupportedError("there is no VGF backend, so there are no statistics of one")

    def write_tensorboard_artifact(self, path: str) -> None:
        """Not there, and nothing in ExecuTorch."""
        raise UnsupportedError(
            "nothing is written for TensorBoard",
            hints=["save_data_to_tsv(path)", "torchette profile --trace FILE"],
        )


def _record(given: object) -> ETRecord | None:
    if given is None or isinstance(given, ETRecord):
        return given
    if isinstance(given, (str, os.PathLike)):
        return parse_etrecord(given)
    raise InputTypeError(f"etrecord: expected an ETRecord or a path, not {type(given).__name__}")


def _description(program: object) -> Description | None:
    if program is None or isinstance(program, Description):
        return program
    if isinstance(program, (str, os.PathLike)):
        return describe(Path(program))
    given: Any = getattr(program, "buffer", program)
    return describe(bytes(given))


def _buffer(
    path: str | os.PathLike[str] | None, given: bytes | bytearray | memoryview | None
) -> memoryview | None:
    if path is None:
        return None if given is None else memoryview(given).cast("B")
    try:
        return memoryview(Path(path).read_bytes())
    except FileNotFoundError:
        raise ModelNotFoundError(f"There is no debug buffer {os.fspath(path)!r}") from None


def _fits(event: Event, op: str) -> bool:
    is_kernel, is_action = "::" in op, op in _ACTIONS.values()
    if event.is_delegated_op or event.name == "DELEGATE_CALL":
        return not is_kernel and not is_action
    if event.name in _ACTIONS:
        return op == _ACTIONS[event.name]
    kernel = _kernel(event.name)
    return kernel is None or (is_kernel and kernel.rpartition("::")[2] == op.rpartition("::")[2])


def _kernel(name: str) -> str | None:
    """The kernel that an event is named after, None for other names."""
    if name.startswith(_KERNEL_PREFIX):
        return name.removeprefix(_KERNEL_PREFIX)
    return name if "::" in name and name not in FRAMEWORK_EVENTS else None


def _base(op: str) -> str:
    """`aten::add.out`, `aten.add.Tensor`, `add.out` -> `add`."""
    name = op.rpartition("::")[2]
    parts = name.split(".")
    return parts[1] if len(parts) > 2 else parts[0]


def _numbered(found: Mapping[str, Any] | None, method: str) -> dict[int, Any]:
    """Instruction -> what a map of the record has: the keys are texts in a file."""
    return {int(number): value for number, value in ((found or {}).get(method) or {}).items()}


def _in_delegate(handles: Mapping[Any, Any], identifier: int | str | None) -> Any:
    """The debug handles of a delegate's part, by its number or name; or by a part of its name."""
    for key in (identifier, str(identifier)):
        if key in handles:
            return handles[key]
    within = [key for key in handles if isinstance(key, str) and not key.isdigit() and key in str(identifier)]
    return handles[max(within, key=len)] if within else None
