# SPDX-License-Identifier: BSD-3-Clause
"""Reads .pte files of Torchette or ExecuTorch: `describe` returns their content as plain dataclasses.

`Description.to_dict` is their JSON form, which `json_schema` describes; `Description.tables` is their text form.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torchette import notebook, schema
from torchette.format import pte, receipt
from torchette.format.schema import Record
from torchette.packages import require
from torchette.units import counted

DTYPES = {dtype.schema_name: dtype.torch_name for dtype in schema.DTYPES}
_LISTS_OF_VALUES = ("int_list", "tensor_list", "optional_tensor_list")  # their items are indices of values


@dataclass
class TensorInfo:
    """A tensor. If `dynamism` is `dynamic_bound`, `sizes` and `nbytes` are upper bounds."""

    dtype: str  # torch's name
    sizes: list[int]
    dim_order: list[int]
    dynamism: str  # static, dynamic_bound, dynamic_unbound
    nbytes: int
    storage: str  # constant, planned, initialised (planned, with stored first bytes), external, unplanned
    memory_id: int | None
    memory_offset: int | None  # bytes
    data: int | None  # index of the constant or of the initial bytes
    name: str | None  # fully qualified name, if stored
    ranges: list[int]  # minimum and maximum of each dimension; only for inputs with dynamic sizes

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The minimum and maximum of each dimension; the maximum is `torchette.schema.NO_BOUND` if there is none."""
        if len(self.ranges) == 2 * len(self.sizes):
            return list(zip(self.ranges[::2], self.ranges[1::2], strict=True))
        return [(size if self.dynamism == "static" else 0, size) for size in self.sizes]

    def __str__(self) -> str:
        text = f"{self.dtype}{self.sizes}"
        if self.dynamism != "static":
            text += " at most" if self.dynamism == "dynamic_bound" else " any size"
        if self.dim_order != sorted(self.dim_order):
            text += f" order {self.dim_order}"
        return text

    @property
    def place(self) -> str:
        """Location of its bytes: `@1+64` is byte 64 of planned buffer 1."""
        planned = f"@{self.memory_id}+{self.memory_offset}"
        return {
            "constant": f"constant {self.data}",
            "planned": planned,
            "initialised": f"{planned} from {self.data}",
        }.get(self.storage, self.storage)


@dataclass
class ValueInfo:
    """A value of a method: a tensor, or a Python value. A `*_list` of values contains their indices."""

    index: int
    kind: str  # tensor, int, bool, double, string, null, int_list, double_list, bool_list, tensor_list, ...
    tensor: TensorInfo | None
    value: Any


@dataclass
class QuantInfo:
    """Affine quantization: real = (q - zero_point) * scale, with quant_min <= q <= quant_max."""

    scale: float
    zero_point: int
    quant_min: int
    quant_max: int


@dataclass
class PortInfo:
    """An input or output. `name` is an argument's name, or its path in the input or output tree."""

    name: str
    index: int
    text: str  # dtype and sizes, or the kind of a value that is not a tensor
    quant: QuantInfo | None = None  # quantization parameters of an integer port, if stored

    @property
    def type_text(self) -> str:
        """`text` and the quantization parameters."""
        return (
            f"{self.text} of {self.quant.scale:.6g} (q - {self.quant.zero_point})"
            if self.quant
            else self.text
        )


@dataclass
class FrameInfo:
    """A line of the user's model."""

    file: str
    line: int
    function: str
    code: str


@dataclass
class PartInfo:
    """A source node of a delegate."""

    handle: int  # its debug handle
    module: str
    module_type: str
    source: list[FrameInfo]


@dataclass
class InstructionInfo:
    """An instruction; `inputs` and `outputs` are indices of values."""

    index: int
    kind: str  # kernel, delegate, move, jump_false, free
    op: str  # operator with its overload, or the delegate's backend, or the kind
    inputs: list[int]
    outputs: list[int]
    destination: int | None  # of a jump
    source: list[FrameInfo]  # outermost first; empty if not stored
    module: str = ""  # path of the source module; empty for the root module, or if not stored
    module_type: str = ""  # class of that module
    parts: list[PartInfo] = field(default_factory=list)  # source nodes of a delegate, if stored


@dataclass
class DelegateInfo:
    """A part of a method that a backend runs."""

    index: int
    backend: str
    nbytes: int
    compile_specs: dict[str, int]  # bytes by key


@dataclass
class BufferInfo:
    """Memory that the caller provides to a method; planned tensors refer to it by `id`."""

    id: int
    nbytes: int
    device: str


@dataclass
class MethodInfo:
    """One method: its signature, and its instructions in execution order."""

    name: str
    inputs: list[PortInfo]
    outputs: list[PortInfo]
    planned_buffers: list[BufferInfo]
    operators: dict[str, int]  # number of calls by operator, most frequent first
    delegates: list[DelegateInfo]
    instructions: list[InstructionInfo]
    chains: list[int]  # index of the first instruction of each chain
    values: list[ValueInfo]
    input_tree: str | None
    output_tree: str | None

    def reads(self, index: int) -> bool:
        """Whether an instruction or a list reads a value. A scalar that nothing reads was fixed at export."""
        lists = (value.value for value in self.values if value.kind in _LISTS_OF_VALUES)
        return any(index in each for each in (*(item.inputs for item in self.instructions), *lists))

    @property
    def returns_constant(self) -> bool:
        """Whether the method has no inputs and no instructions, and returns one value."""
        return not self.inputs and not self.instructions and len(self.outputs) == 1


@dataclass
class ConstantInfo:
    """Stored bytes of tensors: of a constant, or the initial bytes of a planned tensor (`kind` is `initial`)."""

    kind: str
    index: int
    dtype: str
    sizes: list[int]
    nbytes: int
    uses: int  # number of tensors that share it
    names: list[str]


@dataclass
class SegmentInfo:
    """A part of the file after the program; `offset` is from the start of the file."""

    index: int
    offset: int
    nbytes: int
    holds: str


class Table(NamedTuple):
    """A table; prints as aligned text."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def to_csv(self) -> str:
        """Returns the table as CSV, starting with the column names."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()

    def to_dataframe(self) -> Any:
        """Returns a pandas DataFrame. Raises MissingPackageError if pandas is not installed."""
        return pandas().DataFrame(self.rows, columns=list(self.columns))

    def __str__(self) -> str:
        rows = [
            self.columns,
            *([f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in self.rows),
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
        return "\n".join([self.title, *(f"  {line}" for line in lines)])


def pandas() -> Any:
    """Returns the pandas package. Raises MissingPackageError if it is not installed."""
    return require(
        "pandas", "a DataFrame", ["to_dict, and printing a result as a table, do not require pandas"]
    )


@dataclass
class Description:
    """The content of a .pte file."""

    nbytes: int
    version: int
    bytes_by_use: dict[str, int]  # sums to nbytes
    methods: list[MethodInfo]
    constants: list[ConstantInfo]
    segments: list[SegmentInfo]
    named_data: dict[str, int] = field(default_factory=dict)  # bytes by name
    provenance: dict[str, Any] | None = None  # content of the receipt, not verified

    def to_dict(self) -> dict[str, Any]:
        """Returns dicts, lists, strings, numbers and None. Infinities and NaN are strings."""
        return dataclasses.asdict(self)

    def to_json(self, indent: int | None = None) -> str:
        """Returns JSON text that validates against `json_schema()`."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def tables(self, *, brief: bool = False) -> Iterator[Table]:
        """Yields the description as tables; `brief` omits individual instructions and constants."""
        for title, columns, rows in self._tables(brief):
            # Names come from the file and can contain terminal control characters.
            yield Table(printable(title), columns, [tuple(map(printable, row)) for row in rows])

    def _tables(self, brief: bool) -> Iterator[Table]:
        uses = [(use, size, f"{size / self.nbytes:.1%}") for use, size in self.bytes_by_use.items() if size]
        yield Table(f"{self.nbytes:,} bytes", ("of these", "bytes", "share"), uses)
        for method in self.methods:
            if not method.returns_constant:
                yield from _method_tables(method, brief)
        if fixed := [method for method in self.methods if method.returns_constant]:
            rows = [(m.name, port.text, _place(m.values[port.index])) for m in fixed for port in m.outputs]
            yield Table("methods that return a constant", ("method", "type", "value"), rows)
        if self.constants and not brief:
            stored: list[tuple[Any, ...]] = [
                (f"{c.kind} {c.index}", f"{c.dtype}{c.sizes}", c.nbytes, c.uses, ", ".join(c.names))
                for c in self.constants
            ]
            yield Table("stored tensors", ("data", "type", "bytes", "uses", "name"), stored)
        if self.segments:
            placed: list[tuple[Any, ...]] = [(s.index, s.offset, s.nbytes, s.holds) for s in self.segments]
            yield Table("segments", ("segment", "offset", "bytes", "holds"), placed)
        if self.named_data:
            yield Table("named data", ("name", "bytes"), list(self.named_data.items()))
        if self.provenance:
            yield Table("provenance, as the receipt has it", ("", "what"), receipt.rows(self.provenance))

    def __str__(self) -> str:
        """The tables as aligned text."""
        return "\n\n".join(map(str, self.tables()))

    def data(self, what: str = "instructions") -> Table:
        """Returns a table with a row per item, for CSV and pandas: numeric cells, nothing omitted.

        Raises ValueError if `what` is not "instructions", "values" or "constants".
        """
        if what not in ("instructions", "values", "constants"):
            raise ValueError(f"no table {what!r}; expected instructions, values or constants")
        if what == "instructions":
            columns: tuple[str, ...] = (
                "method",
                "index",
                "kind",
                "operator",
                "module",
                "source",
                "inputs",
                "outputs",
            )
            rows: list[tuple[Any, ...]] = [
                (
                    method.name,
                    instruction.index,
                    instruction.kind,
                    instruction.op,
                    instruction.module,
                    source_line(instruction.source),
                    " ".join(map(str, instruction.inputs)),
                    " ".join(map(str, instruction.outputs)),
                )
                for method in self.methods
                for instruction in method.instructions
            ]
        elif what == "values":
            names = ("dtype", "sizes", "nbytes", "storage", "memory_id", "memory_offset", "name")
            columns = ("method", "index", "kind", *names, "value")
            rows = [
                (
                    method.name,
                    value.index,
                    value.kind,
                    *(_plain_cell(getattr(value.tensor, name)) if value.tensor else None for name in names),
                    _plain_cell(value.value),
                )
                for method in self.methods
                for value in method.values
            ]
        else:
            columns = ("kind", "index", "dtype", "sizes", "nbytes", "uses", "names")
            rows = [
                (c.kind, c.index, c.dtype, _plain_cell(c.sizes), c.nbytes, c.uses, " ".join(c.names))
                for c in self.constants
            ]
        return Table(what, columns, rows)

    def to_dataframe(self, what: str = "instructions") -> Any:
        """Returns `data` as a pandas DataFrame. Raises MissingPackageError if pandas is not installed."""
        return self.data(what).to_dataframe()

    def _repr_html_(self) -> str:
        return notebook.tables(self.tables(brief=True))


def describe(source: str | Path | bytes | pte.PteFile) -> Description:
    """Describes a .pte file of Torchette or ExecuTorch.

    Args:
        source: path, bytes, or a file that was already read.

    Raises:
        ModelNotFoundError: the file does not exist.
        FormatError: the file is damaged.
    """
    if isinstance(source, (str, Path)):
        file = pte.load_file(source)
    else:
        file = source if isinstance(source, pte.PteFile) else pte.read(source)
    methods = [_method(file, plan) for plan in file.program.execution_plan]
    _find_scales(methods)
    segments = _segments(file)
    return Description(
        nbytes=len(file.buffer),
        version=file.program.version,
        bytes_by_use=_bytes_by_use(file, segments),
        methods=methods,
        constants=_constants(methods),
        segments=segments,
        named_data={name: len(blob) for name, blob in file.named().items()},
        provenance=receipt.provenance(file),
    )


def _method(file: pte.PteFile, plan: Record) -> MethodInfo:
    values = [_value(index, value.val) for index, value in enumerate(plan.values)]
    instructions: list[Any] = []
    chains = []
    for chain in plan.chains:
        start = len(instructions)
        chains.append(start)
        for index, instruction in enumerate(chain.instructions):
            frames = chain.stacktrace[index] if index < len(chain.stacktrace) else None
            info = _instruction(plan, values, start + index, instruction.instr_args, frames)
            if info.destination is not None:
                info.destination += start
            instructions.append(info)
    _find_delegate_outputs(instructions, values, set(plan.inputs))
    delegates = [
        DelegateInfo(
            index,
            delegate.id,
            len(file.delegate(delegate)),
            {spec.key or "": len(spec.value) for spec in delegate.compile_specs},
        )
        for index, delegate in enumerate(plan.delegates)
    ]
    devices = {
        item.buffer_idx: f"{item.device_type.name.lower()}:{item.device_index}"
        for item in plan.non_const_buffer_device
    }
    buffers = [
        BufferInfo(index, nbytes, devices.get(index, "cpu"))
        for index, nbytes in enumerate(plan.non_const_buffer_sizes)
        if index
    ]
    meta = plan.container_meta_type
    input_tree, output_tree = (meta.encoded_inp_str, meta.encoded_out_str) if meta else (None, None)
    calls = Counter(item.op for item in instructions if item.kind in ("kernel", "delegate"))
    return MethodInfo(
        name=plan.name,
        inputs=_ports(values, plan.inputs, input_tree, _input_name),
        outputs=_ports(values, plan.outputs, output_tree, _output_name),
        planned_buffers=buffers,
        operators=dict(calls.most_common()),
        delegates=delegates,
        instructions=instructions,
        chains=chains,
        values=values,
        input_tree=input_tree,
        output_tree=output_tree,
    )


def _find_scales(methods: list[MethodInfo]) -> None:
    """Sets the quantization parameters of inputs and outputs, which constant methods return."""
    constants = {m.name: m.values[m.outputs[0].index].value for m in methods if m.returns_constant}
    for method in methods:
        prefixes = [f"{method.name}_", *([""] if method.name == "forward" else [])]
        for direction, ports in (("input", method.inputs), ("output", method.outputs)):
            for number, port in enumerate(ports):
                for prefix in prefixes:
                    keys = (
                        f"{prefix}{direction}{number}_{key}"
                        for key in ("scale", "zp", "quant_min", "quant_max")
                    )
                    parameters: list[Any] = [constants.get(key) for key in keys]
                    if port.quant is None and all(isinstance(number, (int, float)) for number in parameters):
                        port.quant = QuantInfo(*parameters)


def _value(index: int, record: Record) -> ValueInfo:
    value: Any
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(record).__name__).lower()
    if kind == "tensor":
        return ValueInfo(index, kind, _tensor(record), None)
    stored = [getattr(record, item.name) for item in dataclasses.fields(record)]
    value = stored[0] if stored else None
    return ValueInfo(
        index, kind, None, [_finite(item) for item in value] if kind.endswith("_list") else _finite(value)
    )


def _finite(value: object) -> Any:
    """Returns infinities and NaN, which JSON does not have, as strings."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _tensor(record: Record) -> TensorInfo:
    extra, place, data = record.extra_tensor_info, record.allocation_info, record.data_buffer_idx or None
    if extra and extra.location == pte.TensorDataLocation.EXTERNAL:
        storage, data = "external", None
    elif place:
        storage = "initialised" if data else "planned"
    else:
        storage = "constant" if data else "unplanned"
    name = record.scalar_type.name
    return TensorInfo(
        dtype=DTYPES.get(name, name.lower()),
        sizes=record.sizes,
        dim_order=list(record.dim_order),
        dynamism=record.shape_dynamism.name.lower(),
        nbytes=pte.tensor_nbytes(record),
        storage=storage,
        memory_id=place.memory_id if place else None,
        memory_offset=place.memory_offset_low + (place.memory_offset_high << 32) if place else None,
        data=data,
        name=extra.fully_qualified_name if extra else None,
        ranges=list(extra.ranges or ()) if extra else [],
    )


def _ports(
    values: list[ValueInfo], indices: list[int], tree: str | None, name: Callable[[tuple[Any, ...]], str]
) -> list[PortInfo]:
    try:
        paths = list(_leaf_paths(json.loads(tree)[1])) if tree else []
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        paths = []  # The tree is optional: a file with an unreadable one is still valid.
    if len(paths) != len(indices):
        paths = [(0, i) if name is _input_name else (i,) for i in range(len(indices))]
    ports = []
    for path, index in zip(paths, indices, strict=True):
        tensor = values[index].tensor
        text = str(tensor) if tensor else values[index].kind
        # A stored name is a single word, so the path is more specific inside a structure.
        stored = tensor.name if tensor and name is _input_name and len(path) == 2 else None
        ports.append(PortInfo(stored or name(path), index, text))
    return ports


def _leaf_paths(tree: dict[str, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path to each leaf of a pytree in torch's JSON form: dictionary keys and indices."""
    if tree["type"] is None:
        yield path
        return
    children = tree["children_spec"]
    keys = (
        json.loads(tree["context"])
        if tree["type"].endswith((".dict", ".OrderedDict"))
        else range(len(children))
    )
    for key, child in zip(keys, children, strict=True):
        yield from _leaf_paths(child, (*path, key))


def _input_name(path: tuple[Any, ...]) -> str:
    """Formats a path in the input tree, which contains the positional arguments, then the keyword arguments."""
    keyword, *keys = path
    return (str(keys.pop(0)) if keyword else "args") + "".join(f"[{key!r}]" for key in keys)


def _output_name(path: tuple[Any, ...]) -> str:
    return "output" + "".join(f"[{key!r}]" for key in path)


def _instruction(
    plan: Record, values: list[ValueInfo], index: int, call: Record, frames: Record | None
) -> InstructionInfo:
    kind = type(call).__name__
    *parts, (_, module, module_type, source) = _origins(frames)
    info = InstructionInfo(
        index, "free", _operator_name(plan, call), [], [], None, source, module, module_type
    )
    info.parts = [PartInfo(*part) for part in parts]
    if kind == "KernelCall":
        info.kind = "kernel"
        info.inputs, info.outputs = _split_arguments(values, call.args)
    elif kind == "DelegateCall":
        info.kind, info.inputs = "delegate", list(call.args)
    elif kind == "MoveCall":
        info.kind = info.op
        info.inputs, info.outputs = [call.move_from], [call.move_to]
    elif kind == "JumpFalseCall":
        info.kind = info.op
        info.inputs, info.destination = [call.cond_value_index], call.destination_instruction
    else:
        info.inputs = [call.value_index]
    return info


def operator_names(plan: Record) -> list[list[str]]:
    """Returns the operator of each instruction of each chain, in the form of `InstructionInfo.op`."""
    return [[_operator_name(plan, each.instr_args) for each in chain.instructions] for chain in plan.chains]


def _operator_name(plan: Record, call: Record) -> str:
    kind = type(call).__name__
    if kind == "KernelCall":
        operator = plan.operators[call.op_index]
        return f"{operator.name}.{operator.overload}" if operator.overload else operator.name
    if kind == "DelegateCall":
        result: str = plan.delegates[call.delegate_index].id
        return result
    return {"MoveCall": "move", "JumpFalseCall": "jump_false"}.get(kind, "free")


def _origins(frames: Record | None) -> list[tuple[int, str, str, list[FrameInfo]]]:
    """Returns debug handle, module, its class and lines of each part of a delegate, then those of the instruction.

    A frame without a file is a module; the lines after it belong to it (torchette/schema/program.fbs).
    """
    origins: list[tuple[int, str, str, list[FrameInfo]]] = []
    for frame in frames.items if frames else ():
        if not frame.filename:
            origins.append((frame.lineno, frame.name or "", frame.context or "", []))
            continue
        if not origins:
            origins.append((0, "", "", []))
        origins[-1][3].append(FrameInfo(frame.filename, frame.lineno, frame.name or "", frame.context or ""))
    return origins if origins and not origins[-1][0] else [*origins, (0, "", "", [])]


def _split_arguments(values: list[ValueInfo], args: list[int]) -> tuple[list[int], list[int]]:
    """Splits a kernel's arguments into inputs and outputs.

    The last argument is the return value: an output, or the list of all outputs. The out arguments precede it.
    """
    if not args:
        return [], []
    inputs, outputs = list(args[:-1]), _members(values, args[-1])
    if inputs and _members(values, inputs[-1]) == outputs:
        del inputs[-1]
    elif inputs[-len(outputs) :] == outputs:
        del inputs[-len(outputs) :]
    return inputs, outputs


def _find_delegate_outputs(
    instructions: list[InstructionInfo], values: list[ValueInfo], written: set[int]
) -> None:
    """Splits the arguments of delegates. The file does not mark outputs; they are those that nothing wrote before."""
    for item in instructions:
        if item.kind == "delegate":
            for position, index in enumerate(item.inputs):
                tensor = values[index].tensor
                if tensor and tensor.data is None and tensor.storage != "external" and index not in written:
                    item.inputs, item.outputs = item.inputs[:position], item.inputs[position:]
                    break
        written.update(item.outputs)


def _members(values: list[ValueInfo], index: int) -> list[int]:
    value = values[index]
    return value.value if value.kind == "tensor_list" else [index]


def _constants(methods: list[MethodInfo]) -> list[ConstantInfo]:
    constants: dict[tuple[str, int], ConstantInfo] = {}
    for method in methods:
        for value in method.values:
            tensor = value.tensor
            if tensor is None or tensor.data is None:
                continue
            kind = "constant" if tensor.storage == "constant" else "initial"
            info = constants.setdefault(
                (kind, tensor.data),
                ConstantInfo(kind, tensor.data, tensor.dtype, tensor.sizes, tensor.nbytes, 0, []),
            )
            info.uses += 1
            if tensor.name and tensor.name not in info.names:
                info.names.append(tensor.name)
    return [constants[key] for key in sorted(constants)]


def _segments(file: pte.PteFile) -> list[SegmentInfo]:
    holds: dict[int, str] = {}
    program = file.program
    if program.constant_segment and program.constant_segment.offsets:
        holds[program.constant_segment.segment_index] = "weights"
    for item in program.mutable_data_segments:
        holds.setdefault(item.segment_index, "initial values")
    for plan in program.execution_plan:
        for delegate in plan.delegates:
            if delegate.processed.location == pte.DataLocation.SEGMENT:
                holds.setdefault(delegate.processed.index, "delegates")
    for item in program.named_data:
        holds.setdefault(item.segment_index, "named data")
    return [
        SegmentInfo(index, file.segment_base + segment.offset, segment.size, holds.get(index, "nothing"))
        for index, segment in enumerate(program.segments)
    ]


def _bytes_by_use(file: pte.PteFile, segments: list[SegmentInfo]) -> dict[str, int]:
    """Returns the bytes of the file by purpose; bytes of no other purpose are padding."""
    program = file.program
    inline = Counter(
        weights=sum(len(item.storage) for item in program.constant_buffer),
        delegates=sum(len(item.data) for item in program.backend_delegate_data),
    )
    uses = {"program": file.program_size - inline.total(), **inline}
    for segment in segments:
        uses[segment.holds] = uses.get(segment.holds, 0) + segment.nbytes
    uses["padding"] = len(file.buffer) - sum(uses.values())
    return uses


def _method_tables(method: MethodInfo, brief: bool) -> Iterator[Table]:
    rows: list[tuple[Any, ...]] = [
        (direction, port.name, port.type_text, _place(method.values[port.index]))
        for direction, ports in (("input", method.inputs), ("output", method.outputs))
        for port in ports
    ]
    yield Table(f"method {method.name}", ("", "name", "type", "memory"), rows)
    if method.planned_buffers:
        rows = [(f"@{item.id}", item.nbytes, item.device) for item in method.planned_buffers]
        yield Table(f"{method.name}: planned memory", ("buffer", "bytes", "device"), rows)
    if method.delegates:
        rows = [(item.index, item.backend, item.nbytes) for item in method.delegates]
        yield Table(f"{method.name}: delegates", ("delegate", "backend", "bytes"), rows)
    if brief:
        rows = list(method.operators.items())
        yield Table(
            f"{method.name}: {counted(len(method.instructions), 'instruction')}", ("operator", "calls"), rows
        )
    elif method.instructions:
        rows = [_instruction_row(method, item) for item in method.instructions]
        yield Table(
            f"{method.name}: {counted(len(method.instructions), 'instruction')}",
            ("#", "operator", "inputs", "outputs", "source"),
            rows,
        )


def _instruction_row(method: MethodInfo, item: InstructionInfo) -> tuple[Any, ...]:
    op = item.op if item.destination is None else f"{item.op} to {item.destination}"
    inputs = ", ".join(_argument(method.values, index) for index in item.inputs)
    outputs = ", ".join(_argument(method.values, index) for index in item.outputs)
    return item.index, op, inputs, outputs, source_line(item.source)


def source_line(frames: list[FrameInfo]) -> str:
    """Returns the innermost line outside torch; "" if there are no frames."""
    if not frames:
        return ""
    model_frames = [frame for frame in frames if "/site-packages/torch/" not in frame.file]
    frame = (model_frames or frames)[-1]
    # Relative names were shortened by the compiler and are kept. Absolute paths belong to another machine.
    name = Path(frame.file).name if Path(frame.file).is_absolute() else frame.file
    return f"{name}:{frame.line}"


def _argument(values: list[ValueInfo], index: int) -> str:
    """Formats a value as an argument: a tensor as index, type and location; other values as literals."""
    if index == -1:
        return "None"
    value = values[index]
    if value.tensor:
        return f"%{index} {value.tensor} {value.tensor.place}"
    if value.kind in ("int_list", "tensor_list", "optional_tensor_list"):
        return f"[{', '.join(_argument(values, item) for item in value.value)}]"
    return repr(value.value)


def _place(value: ValueInfo) -> str:
    return value.tensor.place if value.tensor else str(value.value)


def _plain_cell(value: object) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def printable(cell: object) -> Any:
    """Escapes characters that control a terminal; returns other objects unchanged."""
    if not isinstance(cell, str) or cell.isprintable():
        return cell
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cell)


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of `Description.to_json`, generated from the dataclasses."""
    definitions: dict[str, Any] = {}
    root = _json_type(Description, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": definitions}


def _json_type(kind: object, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return {}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_json_type(item, definitions) for item in arguments]}
    if origin is list:
        return {"type": "array", "items": _json_type(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _json_type(arguments[1], definitions)}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}
            hints = typing.get_type_hints(kind)
            definitions[kind.__name__] = {
                "type": "object",
                "description": kind.__doc__,
                "properties": {name: _json_type(hint, definitions) for name, hint in hints.items()},
                "required": list(hints),
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{kind.__name__}"}
    names: dict[object, str] = {str: "string", int: "integer", float: "number", type(None): "null"}
    return {"type": names[kind]}
