# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte or .ptd file. Out: the purpose of each of its bytes; the sizes sum to the size of the file.
"""Sizes of the parts of a file: `sizes` divides a file into pieces, `Sizes.by` sums the pieces by a property.

>>> sizes("net.pte").by("dtype")
{'float32': 13987328, '(instructions)': 1204, ...}
"""

from __future__ import annotations

import heapq
import itertools
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from torchette import notebook
from torchette.devtools import xnnpack_graph
from torchette.devtools.inspect import (
    DTYPES,
    Description,
    InstructionInfo,
    MethodInfo,
    Table,
    describe,
    source_line,
)
from torchette.errors import FormatError
from torchette.files import file_error
from torchette.format import flatbuffer, ptd, pte, receipt
from torchette.format.schema import Schema

# Properties that `Sizes.by` accepts.
PROPERTIES = ("part", "tensor", "module", "dtype", "operator", "delegate")

_EXTENDED = (b"eh00", b"FH01")  # magic of an extended header; the length follows


# The part that each FlatBuffers table of the program belongs to; other tables are part "methods".
_PARTS = {
    "header": "Program DataSegment SubsegmentOffsets NamedData FlatTensor",
    "instructions": "Chain Instruction KernelCall DelegateCall MoveCall JumpFalseCall FreeCall",
    "values": "EValue Null Int Bool Double String IntList DoubleList BoolList TensorList OptionalTensorList "
    "Tensor AllocationDetails ExtraTensorInfo TensorLayout",
    "source lines": "Frame FrameList",
}
_PART_OF = {table: part for part, tables in _PARTS.items() for table in tables.split()}


@dataclass(frozen=True)
class Piece:
    """Bytes of a file with one purpose. A property that does not apply is empty."""

    nbytes: int
    part: str  # header, methods, instructions, values, source lines, weights, delegates, named data, padding, ...
    tensor: str = ""  # name, or the index of the stored constant
    dtype: str = ""
    module: str = (
        ""  # path of the module that a weight belongs to; without names, the line that first uses it
    )
    operator: str = ""  # the first operator that uses a weight, or the delegate's backend
    delegate: str = ""  # method, index and backend


@dataclass
class Sizes:
    """A file divided into pieces that do not overlap and cover the whole file."""

    nbytes: int
    pieces: list[Piece] = field(default_factory=list)

    def by(self, what: str) -> dict[str, int]:
        """Returns the bytes by a property, largest first; they sum to `nbytes`.

        Pieces without the property are summed by part; their key is the part in parentheses.

        Args:
            what: one of `PROPERTIES`.
        """
        totals: Counter[str] = Counter()
        for piece in self.pieces:
            totals[getattr(piece, what) or f"({piece.part})"] += piece.nbytes
        return dict(totals.most_common())

    def table(self, what: str = "part", top: int | None = None) -> Table:
        """Returns a table of the sizes; with `top`, of the `top` largest."""
        rows: list[tuple[Any, ...]] = [
            (name, size, f"{size / self.nbytes:.1%}" if self.nbytes else "")
            for name, size in self.by(what).items()
        ]
        if top is not None and len(rows) > top:
            remaining = sum(size for _, size, _ in rows[top:])
            left_out = f"… {len(rows) - top} more rows; --top {len(rows)} shows all"
            rows[top:] = [(left_out, remaining, f"{remaining / self.nbytes:.1%}")]
        return Table(f"{self.nbytes:,} bytes by {what}", (what, "bytes", "share"), rows)

    def to_dict(self) -> dict[str, Any]:
        """Returns `nbytes`, the sums by each property, and the pieces, as plain values."""
        return {
            "nbytes": self.nbytes,
            **{f"by_{key}": self.by(key) for key in PROPERTIES},
            "pieces": [asdict(piece) for piece in self.pieces],
        }

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return notebook.tables([self.table(), self.table("module")])


def sizes(source: str | Path | bytes | pte.PteFile) -> Sizes:
    """Divides a .pte or .ptd file of Torchette or ExecuTorch into pieces.

    Args:
        source: path, bytes, or a file that was already read.

    Returns:
        The pieces, which cover the whole file.

    Raises:
        ModelNotFoundError: the file does not exist.
        FormatError: the file is damaged.
    """
    if isinstance(source, (str, Path)):
        try:
            with open(source, "rb") as file:
                is_data = file.read(8)[4:8] == ptd.SCHEMA.identifier
        except (FileNotFoundError, IsADirectoryError) as error:
            raise file_error(error) from None
        source = Path(source).read_bytes() if is_data else pte.load_file(source)
    if not isinstance(source, pte.PteFile):
        if bytes(source[4:8]) == ptd.SCHEMA.identifier:
            return _sizes_of_data(memoryview(source).cast("B"))
        source = pte.read(source)
    return _tiled(
        source.buffer, stored_pieces(source), _tables(pte.SCHEMA, source.buffer[: source.program_size])
    )


# A claim: the offset of the first byte, and the piece. If claims overlap, the first one owns the bytes.
_Claim = tuple[int, Piece]


def _sizes_of_data(view: memoryview) -> Sizes:
    named = ptd.read(view)
    content = [
        (
            _start(item.data, view),
            Piece(
                len(item.data),
                "named data",
                name if item.layout else "",
                DTYPES.get(item.layout.scalar_type.name, "") if item.layout else "",
                name.rpartition(".")[0] if item.layout else "",
            ),
        )
        for name, item in named.items()
        if len(item.data)
    ]
    first = min((start for start, _ in content), default=len(view))
    return _tiled(view, content, _tables(ptd.SCHEMA, view[:first]))


def _tiled(view: memoryview, content: Iterable[_Claim], tables: Iterable[_Claim]) -> Sizes:
    """Assigns each byte of the file to a claim: contents first, then tables; the remaining bytes are padding."""
    size = len(view)
    claims = [*content, *tables, (0, Piece(size, "padding"))]
    edges = sorted({edge for start, piece in claims for edge in (start, min(start + piece.nbytes, size))})
    order = sorted(range(len(claims)), key=lambda index: claims[index][0])
    owned_bytes: Counter[int] = Counter()
    active: list[int] = []
    following = 0
    for start, end in itertools.pairwise(edges):
        while following < len(order) and claims[order[following]][0] <= start:
            heapq.heappush(active, order[following])
            following += 1
        while claims[active[0]][0] + claims[active[0]][1].nbytes <= start:
            heapq.heappop(active)
        owned_bytes[active[0]] += end - start
    return Sizes(
        size, [replace(claims[index][1], nbytes=owned_bytes[index]) for index in sorted(owned_bytes)]
    )


def _start(part: memoryview, buffer: memoryview) -> int:
    """Returns the offset of `part` in `buffer`. `part` is a view of `buffer` that is not empty."""
    address = [np.frombuffer(view, np.uint8).__array_interface__["data"][0] for view in (part, buffer)]
    result: int = address[0] - address[1]
    return result


def _tables(schema: Schema, view: memoryview) -> Iterator[_Claim]:
    extended = bytes(view[8:12]) in _EXTENDED
    yield 0, Piece(8 + int.from_bytes(view[12:16], "little") * extended, "header")
    for span in flatbuffer.spans(schema, view):
        yield span.start, Piece(span.nbytes, _PART_OF.get(span.table, "methods"))


def stored_pieces(file: pte.PteFile) -> Iterator[_Claim]:
    """Yields a claim for each stored tensor, delegate, and named data item."""
    description = describe(file)
    users = {method.name: _first_users(method) for method in description.methods}
    methods = {method.name: method for method in description.methods}
    for info in description.constants:
        blob = file.constant(info.index) if info.kind == "constant" else file.mutable(info.index)
        blob = blob[: info.nbytes]
        if not len(blob):
            continue
        key = info.kind, info.index
        method = next((name for name, stored_tensors in users.items() if key in stored_tensors), None)
        user = users[method][key] if method else None
        name = info.names[0] if info.names else ""
        module = name.rpartition(".")[0] if name else _module_or_line(methods.get(method or ""), user)
        yield (
            _start(blob, file.buffer),
            Piece(
                len(blob),
                "weights" if info.kind == "constant" else "initial values",
                name or _stored_name(info.kind, info.index),
                info.dtype,
                module,
                user.op if user else "",
            ),
        )
    for plan in file.program.execution_plan:
        for index, delegate in enumerate(plan.delegates):
            blob = file.delegate(delegate)
            if len(blob):
                name = f"{plan.name}: {delegate.id} {index}"
                yield (
                    _start(blob, file.buffer),
                    Piece(len(blob), "delegates", operator=delegate.id, delegate=name),
                )
    delegated = _delegated(file, description)
    for name, blob in file.named().items():
        if len(blob):
            known = delegated.get(name, Piece(0, "named data", name))
            piece = Piece(0, "receipt") if name == receipt.KEY else known
            yield _start(blob, file.buffer), replace(piece, nbytes=len(blob))
    used = {(info.kind, info.index) for info in description.constants}
    for kind, part, read, stored in (
        ("constant", "weights", file.constant, file.program.constant_segment),
        *(
            ("initial", "initial values", file.mutable, item)
            for item in file.program.mutable_data_segments[:1]
        ),
    ):
        for index in range(len(stored.offsets) if stored else 0):
            if (kind, index) not in used and len(blob := read(index)):
                yield (
                    _start(blob, file.buffer),
                    Piece(len(blob), part, f"{_stored_name(kind, index)}, unused"),
                )
    for segment in description.segments:
        if segment.holds == "nothing":
            yield segment.offset, Piece(segment.nbytes, "unused segments")


def _stored_name(kind: str, index: int) -> str:
    """Returns a name for a stored tensor that has no name in the file."""
    return f"{'weight' if kind == 'constant' else kind} {index}"


def _delegated(file: pte.PteFile, description: Description) -> dict[str, Piece]:
    """Returns the weights that XNNPACK delegates read, by name, described by the first node that reads them."""
    pieces: dict[str, Piece] = {}
    named = file.named()
    for plan, method in zip(file.program.execution_plan, description.methods, strict=True):
        calls = [call.instr_args for chain in plan.chains for call in chain.instructions]
        for instruction, call in zip(method.instructions, calls, strict=True):
            if instruction.kind != "delegate" or instruction.op != xnnpack_graph.BACKEND:
                continue
            try:
                graph = xnnpack_graph.read(file.delegate(plan.delegates[call.delegate_index]), named)
            except (FormatError, IndexError, struct.error):
                continue  # damaged; its weights are described by their names only
            modules = {part.handle: part.module for part in instruction.parts}
            delegate = f"{plan.name}: {instruction.op} {call.delegate_index}"
            for node in graph.nodes:
                for value in (graph.values[number] for number in node.inputs):
                    if value.constant:
                        tensor = f"{value.dtype}{value.sizes} {value.constant[:8]}"
                        module = modules.get(node.handle, instruction.module)
                        piece = Piece(0, "weights", tensor, value.dtype, module, instruction.op, delegate)
                        pieces.setdefault(value.constant, piece)
    return pieces


def _first_users(method: MethodInfo) -> dict[tuple[str, int], InstructionInfo]:
    """Maps each stored tensor that the method uses to the first instruction that uses it."""
    users: dict[tuple[str, int], InstructionInfo] = {}
    for instruction in method.instructions:
        for index in members(method, instruction.inputs):
            tensor = method.values[index].tensor
            if tensor is not None and tensor.data is not None:
                kind = "constant" if tensor.storage == "constant" else "initial"
                users.setdefault((kind, tensor.data), instruction)
    return users


def members(method: MethodInfo, indices: Iterable[int]) -> Iterator[int]:
    """Yields these indices of values; a list of tensors is replaced by its items."""
    for index in indices:
        if index < 0:
            continue
        value = method.values[index]
        if value.kind in ("tensor_list", "optional_tensor_list"):
            yield from (item for item in value.value if item >= 0)
        else:
            yield index


def _module_or_line(method: MethodInfo | None, instruction: InstructionInfo | None) -> str:
    """Returns the module path of an instruction, or else its source line, or "" if the file contains neither."""
    if method is None or instruction is None:
        return ""
    return instruction.module or source_line(instruction.source)
