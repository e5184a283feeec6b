# SPDX-License-Identifier: BSD-3-Clause
"""The .pte file: a program and its weights.

`write` returns a file as a list of chunks from a Program record and buffers, without copying weights. `read` returns
the record and views of the weights from any bytes, or raises FormatError with the location of the error. The record
classes are those of `torchette/schema/program.fbs`: `pte.Program`, `pte.Tensor`, `pte.ScalarType`, ...
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from torchette.errors import FormatError
from torchette.files import file_error, hints_for
from torchette.format import flatbuffer
from torchette.format.schema import Record, load

if TYPE_CHECKING:
    from typing_extensions import Buffer

SCHEMA = load(Path(__file__).parent.parent / "schema" / "program.fbs")

# After the root offset and the file identifier: magic, length of the header, size of the program (all bytes before the
# padding of the first segment), offset of the first segment, size of all segments.
_HEADER = struct.Struct("<4sIQQQ")
_HEADER_AT = 8
_HEADER_MAGIC = b"eh00"
_HEADER_MINIMUM = 24  # early files omit the last field
_SMALL = 1 << 16  # maximum bytes that one page fault may map

_OTHER_FILES = {b"BP": "a bundled program", b"FT": "a data file (.ptd)", b"ED": "a profile (.etdp)"}


def __getattr__(name: str) -> Any:
    try:
        return SCHEMA.types[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


# Combines the two fields of the offset, under ExecuTorch's name.
SCHEMA.types["AllocationDetails"].memory_offset = property(
    lambda self: self.memory_offset_low | self.memory_offset_high << 32
)

# Suffix of the name of a method's second plan, which needs no backend. The runtime uses it if the first plan does not
# load. ExecuTorch's runtime sees another method.
PORTABLE = "@portable"

# The allowed types of list elements.
_MEMBERS = {"IntList": ("Int",), "TensorList": ("Tensor",), "OptionalTensorList": ("Tensor", "Null")}

# Size of one element in bytes, by ScalarType.
ITEM_SIZE: dict[int, int] = {
    SCHEMA.types["ScalarType"][name]: size
    for size, names in {
        1: "BYTE CHAR BOOL QINT8 QUINT8 QUINT4X2 QUINT2X4 FLOAT8E5M2 FLOAT8E4M3FN FLOAT8E5M2FNUZ FLOAT8E4M3FNUZ",
        2: "SHORT HALF BFLOAT16 BITS16 UINT16",
        4: "INT FLOAT QINT32 UINT32",
        8: "LONG DOUBLE UINT64",
    }.items()
    for name in names.split()
}


def tensor_nbytes(tensor: Record) -> int:
    """Returns the size of a Tensor record's elements in bytes, at its (upper bound) sizes."""
    result: int = math.prod(tensor.sizes) * ITEM_SIZE[tensor.scalar_type]
    return result


@dataclass(frozen=True)
class Pte:
    """A complete file. The chunks with weights are views of the buffers that were passed to `write`."""

    chunks: tuple[Any, ...]
    nbytes: int

    def __bytes__(self) -> bytes:
        """Returns the file as bytes. Each call copies the weights."""
        return b"".join(self.chunks)

    def __len__(self) -> int:
        return self.nbytes

    def write_to(self, file: BinaryIO | str | Path) -> None:
        """Writes the file to a path or a binary file object, chunk by chunk."""
        if isinstance(file, (str, Path)):
            with open(file, "wb") as opened:
                opened.writelines(self.chunks)
        else:
            file.writelines(self.chunks)


class _Segments:
    """Aligned segments during layout, each as a list of chunks."""

    def __init__(self, alignment: int) -> None:
        self.records: list[Any] = []
        self.chunks: list[Any] = []
        self.size = 0
        self._alignment = alignment

    def add(self, items: Iterable[Any], item_alignment: int = 1) -> Any:
        """Appends one segment of the aligned items. Returns its SubsegmentOffsets record."""
        self._pad(self._alignment)
        start = self.size
        offsets = []
        for item in items:
            view = _bytes_view(item)
            self._pad(item_alignment)
            offsets.append(self.size - start)
            self.chunks.append(view)
            self.size += view.nbytes
        self.records.append(SCHEMA.types["DataSegment"](start, self.size - start))
        return SCHEMA.types["SubsegmentOffsets"](len(self.records) - 1, offsets)

    def _pad(self, alignment: int) -> None:
        padding = -self.size % alignment
        if padding:
            self.chunks.append(bytes(padding))
            self.size += padding


def write(
    program: Record,
    constants: Sequence[Any] = (b"",),
    mutable_data: Sequence[Any] = (),
    delegate_data: Sequence[Any] = (),
    named_data: Mapping[str, Any] | None = None,
    *,
    named_alignment: int = 1,
    segment_alignment: int = 128,
    constant_tensor_alignment: int = 16,
    extract_delegate_segments: bool = True,
) -> Pte:
    """Serializes a program with its weights, which are not copied.

    Args:
        program: a Program record, which is not modified. Its constants, delegate data, segments and named data are
            replaced by the other arguments.
        constants: C-contiguous buffers, indexed by the `Tensor.data_buffer_idx` of constant tensors. Element 0 is
            reserved and empty.
        mutable_data: initial bytes of planned tensors in the same form; empty if there are none.
        delegate_data: blobs, indexed by `BackendDelegate.processed.index` (its location is ignored).
        named_data: blobs by name. Names with the same buffer object share a segment.
        named_alignment: alignment of named data in bytes, a power of two.
        segment_alignment: alignment of segments in bytes, a power of two.
        constant_tensor_alignment: alignment of each constant in its segment in bytes, a power of two.
        extract_delegate_segments: store delegate data in segments instead of inside the program.

    Raises:
        FormatError: the schema cannot represent a record.
        ValueError: another argument is invalid.
    """
    for alignment in (segment_alignment, constant_tensor_alignment, named_alignment):
        if alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"an alignment must be a power of two, got {alignment}")
    for items in (constants, mutable_data):
        if items and _bytes_view(items[0]).nbytes:
            raise ValueError(
                "element 0 of the constants and of the mutable data is reserved and must be empty"
            )
    segment_alignment = max(segment_alignment, constant_tensor_alignment, named_alignment)

    segments = _Segments(segment_alignment)
    program = replace(
        program, constant_buffer=[], backend_delegate_data=[], named_data=[], mutable_data_segments=[]
    )
    program.constant_segment = segments.add(constants or (b"",), constant_tensor_alignment)
    if any(_bytes_view(item).nbytes for item in mutable_data):
        program.mutable_data_segments = [segments.add(mutable_data, constant_tensor_alignment)]
    if delegate_data:
        _add_delegate_data(program, segments, delegate_data, extract_delegate_segments)
    if named_data:
        _add_named_data(program, segments, constants, named_data, named_alignment)
    program.segments = segments.records

    start = head(program, segments.size, segment_alignment)
    return Pte((start, *segments.chunks), len(start) + segments.size)


def _add_delegate_data(program: Record, segments: _Segments, blobs: Sequence[Any], extract: bool) -> None:
    """Stores the blobs in segments or inside the program, and sets the references of the delegates."""
    if extract:
        indices = [segments.add([blob]).segment_index for blob in blobs]
        location = SCHEMA.types["DataLocation"].SEGMENT
    else:
        indices = list(range(len(blobs)))
        location = SCHEMA.types["DataLocation"].INLINE
        program.backend_delegate_data = [SCHEMA.types["BackendDelegateInlineData"](blob) for blob in blobs]
    reference = SCHEMA.types["BackendDelegateDataReference"]
    program.execution_plan = [
        replace(
            plan,
            delegates=[
                replace(delegate, processed=reference(location, indices[delegate.processed.index]))
                for delegate in plan.delegates
            ],
        )
        for plan in program.execution_plan
    ]


def _add_named_data(
    program: Record, segments: _Segments, constants: Sequence[Any], named: Mapping[str, Any], alignment: int
) -> None:
    """Stores each blob once. A blob with the bytes of a constant refers to the constant."""
    stored: dict[int, int] = {}
    weights = _digests(constants)
    # Small blobs come first, so that one page fault of a mapped file reads many of them.
    for blob in sorted(named.values(), key=lambda item: _bytes_view(item).nbytes > _SMALL):
        if id(blob) in stored:
            continue
        same = weights.get(_digest(blob))
        start = 0 if same is None else segments.records[0].offset + program.constant_segment.offsets[same]
        if same is None or start % alignment:
            stored[id(blob)] = segments.add([blob]).segment_index
        else:
            # A weight that a delegate and the program both use is stored once.
            segments.records.append(SCHEMA.types["DataSegment"](start, _bytes_view(blob).nbytes))
            stored[id(blob)] = len(segments.records) - 1
    # Keep the given order, because a runtime searches from the last name that it found.
    program.named_data = [SCHEMA.types["NamedData"](name, stored[id(blob)]) for name, blob in named.items()]


def head(program: Record, data_size: int, alignment: int) -> bytearray:
    """Returns the file up to its first segment: the Program record, with its segments and data set, and padding.

    Args:
        program: a Program record.
        data_size: size of all segments in bytes, with the padding between them.
        alignment: alignment of the first segment in bytes, a power of two.

    Raises:
        FormatError: the schema cannot represent a record.
    """
    start = flatbuffer.encode(SCHEMA, program, reserve=_HEADER.size)
    base = _aligned(len(start), alignment) if data_size else 0
    _HEADER.pack_into(start, _HEADER_AT, _HEADER_MAGIC, _HEADER.size, len(start), base, data_size)
    return start + bytes(max(base - len(start), 0))


def _digest(blob: Buffer) -> bytes:
    return hashlib.sha256(_bytes_view(blob)).digest()


def _digests(items: Sequence[Any]) -> dict[bytes, int]:
    return {_digest(item): index for index, item in enumerate(items) if _bytes_view(item).nbytes}


@dataclass
class PteFile:
    """A .pte file that has been read and checked: all indices are valid and all constants are inside the file."""

    program: Any
    buffer: memoryview
    program_size: int
    segment_base: int
    segment_data_size: int
    has_header: bool = True

    def segment(self, index: int) -> memoryview:
        """Returns the bytes of a segment, without a copy."""
        segment = self.program.segments[index]
        start = self.segment_base + segment.offset
        return self.buffer[start : start + segment.size]

    def constant(self, index: int) -> memoryview:
        """Returns the bytes of constant `index`, without a copy. They may include the padding of the next constant."""
        if self.program.constant_buffer:
            return memoryview(self.program.constant_buffer[index].storage)
        return self._subsegment(self.program.constant_segment, index)

    def mutable(self, index: int, data_segment: int = 0) -> memoryview:
        """Returns the initial bytes of planned tensors with this `data_buffer_idx`, like `constant`."""
        return self._subsegment(self.program.mutable_data_segments[data_segment], index)

    def delegate(self, delegate: Record) -> memoryview:
        """Returns the blob of a BackendDelegate record, without a copy."""
        if delegate.processed.location == SCHEMA.types["DataLocation"].SEGMENT:
            return self.segment(delegate.processed.index)
        return memoryview(self.program.backend_delegate_data[delegate.processed.index].data)

    def named(self) -> dict[str, memoryview]:
        """Returns the named blobs, without copies."""
        return {item.key: self.segment(item.segment_index) for item in self.program.named_data}

    def _subsegment(self, subsegments: Record, index: int) -> memoryview:
        data = self.segment(subsegments.segment_index)
        start = subsegments.offsets[index]
        # An item ends where the next one begins, because the file stores only offsets.
        following = subsegments.offsets[index + 1 : index + 2]
        end = following[0] if following and following[0] >= start else len(data)
        return data[start:end]


def load_file(path: str | Path) -> PteFile:
    """Reads and maps the .pte file at `path`. Raises ModelNotFoundError, FormatError, OSError."""
    try:
        with open(path, "rb") as file:
            try:
                return read(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except ValueError as error:
                if isinstance(error, FormatError):
                    raise
                return read(file.read())  # an empty file, or a file that cannot be mapped
    except (FileNotFoundError, IsADirectoryError) as error:
        raise file_error(error) from None
    except FormatError as error:
        error.where = (str(path), *error.where)
        error.hints = hints_for(path) or error.hints
        raise


def read(data: Buffer) -> PteFile:
    """Reads a .pte file from a bytes-like object, which the result keeps as a view. Raises FormatError."""
    view = _bytes_view(data)
    if len(view) < _HEADER_AT:
        raise FormatError(f"the file has {len(view)} bytes, too few for a .pte file")
    identifier = bytes(view[4:8])
    if identifier != SCHEMA.identifier:
        kind = _OTHER_FILES.get(identifier[:2])
        raise FormatError(
            f"not a .pte file: bytes 4 to 7 should be {SCHEMA.identifier.decode()}, they are {identifier!r}",
            hints=[f"this looks like {kind}"] if kind else (),
        )
    program_size, base, data_size = len(view), 0, 0
    has_header = view[_HEADER_AT : _HEADER_AT + 4] == _HEADER_MAGIC
    if has_header:
        program_size, base, data_size = _read_header(view)
    program = flatbuffer.decode(SCHEMA, view[:program_size])
    file = PteFile(program, view, program_size, base, data_size, has_header)
    _Checker(file).check()
    return file


def _read_header(view: memoryview) -> tuple[int, int, int]:
    """Returns the size of the program, the offset of the first segment, and the size of the segments."""
    size = len(view)
    if size < _HEADER_AT + _HEADER_MINIMUM:
        raise FormatError(f"the file ends at byte {size}, inside its extended header")
    length, program_size, base = struct.unpack_from("<IQQ", view, _HEADER_AT + 4)
    if length < _HEADER_MINIMUM or _HEADER_AT + length > size:
        raise FormatError(f"the extended header at byte {_HEADER_AT} has an invalid length of {length} bytes")
    data_size = 0
    if length >= _HEADER.size:
        data_size = int.from_bytes(view[_HEADER_AT + 24 : _HEADER_AT + 32], "little")
    hints = ["the file is truncated or damaged; compile or copy it again"]
    if program_size > size or program_size < _HEADER_AT + length:
        raise FormatError(
            f"the extended header has a program of {program_size} bytes, but the file has {size} bytes",
            hints=hints,
        )
    if base and not program_size <= base <= size:
        raise FormatError(
            f"the segments start at byte {base}, but the program ends at {program_size} and the file at {size}",
            hints=hints,
        )
    if base and base + data_size > size:
        raise FormatError(
            f"the segments end at byte {base + data_size}, but the file has {size} bytes", hints=hints
        )
    return program_size, base, data_size or (size - base if base else 0)


class _Checker:
    """Checks all indices of a program, so that other readers do not need to check them."""

    def __init__(self, file: PteFile) -> None:
        self._file = file
        self._program = file.program

    def check(self) -> None:
        program = self._program
        for index, segment in enumerate(program.segments):
            if segment.offset + segment.size > self._file.segment_data_size:
                raise FormatError(
                    f"segment {index} ends at byte {segment.offset + segment.size} of the segments, which have "
                    f"{self._file.segment_data_size}"
                )
        if program.constant_buffer and program.constant_segment and program.constant_segment.offsets:
            raise FormatError("the constants are stored twice: inside the program and in a segment")
        for where, subsegments in [
            ("Program.constant_segment", program.constant_segment),
            *(
                (f"Program.mutable_data_segments[{i}]", item)
                for i, item in enumerate(program.mutable_data_segments)
            ),
        ]:
            if subsegments and subsegments.offsets:
                size = self._index(program.segments, subsegments.segment_index, where + ".segment_index").size
                if max(subsegments.offsets) > size:
                    raise FormatError(
                        f"{where} has an offset {max(subsegments.offsets)}, but its segment has {size} bytes"
                    )
        for index, item in enumerate(program.named_data):
            self._index(program.segments, item.segment_index, f"Program.named_data[{index}]")
        for index, plan in enumerate(program.execution_plan):
            self._check_plan(plan, f"method {plan.name or index!r}")

    def _check_plan(self, plan: Record, where: str) -> None:
        if plan.name is None:
            raise FormatError(f"{where} has no name")
        values = plan.values
        for index, value in enumerate(values):
            self._check_value(value.val, values, len(plan.non_const_buffer_sizes), f"{where}, value {index}")
        for direction in ("inputs", "outputs"):
            for index in getattr(plan, direction):
                self._index(values, index, f"{where}, {direction}")
        for index, delegate in enumerate(plan.delegates):
            self._check_delegate(delegate, f"{where}, delegate {index}")
        for chain in plan.chains:
            for index in (*chain.inputs, *chain.outputs):
                self._index(values, index, f"{where}, the chain's inputs and outputs")
            for index, instruction in enumerate(chain.instructions):
                self._check_instruction(instruction.instr_args, plan, chain, f"{where}, instruction {index}")

    def _check_value(self, value: Record | None, values: list[Any], arenas: int, where: str) -> None:
        kind = type(value).__name__
        if value is None:
            raise FormatError(f"{where} is empty")
        if kind == "Tensor":
            self._check_tensor(value, arenas, where)
        elif kind in _MEMBERS:
            for item in value.items:
                if item == -1 and kind == "OptionalTensorList":
                    continue
                member = type(self._index(values, item, where).val).__name__
                if member not in _MEMBERS[kind]:
                    raise FormatError(f"{where}: an {kind} cannot contain value {item} of type {member}")

    def _check_tensor(self, tensor: Record, arenas: int, where: str) -> None:
        rank = len(tensor.sizes)
        if any(size < 0 for size in tensor.sizes):
            raise FormatError(f"{where}: a tensor has the sizes {tensor.sizes}")
        if sorted(tensor.dim_order) != list(range(rank)):
            raise FormatError(f"{where}: dim order {list(tensor.dim_order)} does not order {rank} dimensions")
        if tensor.allocation_info and tensor.allocation_info.memory_id >= arenas:
            raise FormatError(f"{where}: planned buffer {tensor.allocation_info.memory_id} of {arenas}")
        extra = tensor.extra_tensor_info
        if tensor.data_buffer_idx == 0 or (
            extra and extra.location == SCHEMA.types["TensorDataLocation"].EXTERNAL
        ):
            return
        index = tensor.data_buffer_idx
        program = self._program
        if tensor.allocation_info:
            data_segment = extra.mutable_data_segments_idx if extra else 0
            items = self._index(program.mutable_data_segments, data_segment, f"{where}, mutable data segment")
        elif program.constant_buffer:
            storage = self._index(program.constant_buffer, index, f"{where}, constant").storage
            self._check_size(tensor, len(storage), where)
            return
        else:
            items = program.constant_segment
        start = self._index(items.offsets if items else [], index, f"{where}, constant")
        self._check_size(tensor, program.segments[items.segment_index].size - start, where)

    def _check_size(self, tensor: Record, available: int, where: str) -> None:
        if tensor_nbytes(tensor) > available:
            raise FormatError(
                f"{where}: its data has {available} bytes, but its sizes require {tensor_nbytes(tensor)}"
            )

    def _check_delegate(self, delegate: Record, where: str) -> None:
        if delegate.id is None or delegate.processed is None:
            raise FormatError(f"{where} has no name or no data")
        inline = delegate.processed.location == SCHEMA.types["DataLocation"].INLINE
        blobs = self._program.backend_delegate_data if inline else self._program.segments
        self._index(blobs, delegate.processed.index, where)

    def _check_instruction(self, call: Record, plan: Record, chain: Record, where: str) -> None:
        kind = type(call).__name__
        if kind == "KernelCall":
            operator = self._index(plan.operators, call.op_index, f"{where}, operator")
            if operator.name is None:
                raise FormatError(f"{where}: its operator has no name")
            indices = call.args
        elif kind == "DelegateCall":
            self._index(plan.delegates, call.delegate_index, f"{where}, delegate")
            indices = call.args
        elif kind == "MoveCall":
            indices = (call.move_from, call.move_to)
        elif kind == "JumpFalseCall":
            # The end of the chain is a valid destination.
            if not 0 <= call.destination_instruction <= len(chain.instructions):
                raise FormatError(
                    f"{where} jumps to {call.destination_instruction} of {len(chain.instructions)}"
                )
            indices = (call.cond_value_index,)
        elif kind == "FreeCall":
            indices = (call.value_index,)
        else:
            raise FormatError(f"{where} is empty")
        count = len(plan.values)
        for index in indices:
            if not 0 <= index < count:
                raise FormatError(f"{where}: value {index} of {count}")

    def _index(self, items: Sequence[Any], index: int, where: str) -> Any:
        if not 0 <= index < len(items):
            raise FormatError(f"{where}: index {index} of {len(items)}")
        return items[index]


def _bytes_view(item: Buffer) -> memoryview:
    view = memoryview(item)
    if view.nbytes == 0:
        return memoryview(b"")
    return view.cast("B")


def _aligned(size: int, alignment: int) -> int:
    return size + -size % alignment
