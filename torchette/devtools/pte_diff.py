# SPDX-License-Identifier: BSD-3-Clause
# In: two .pte files. Out: one row per difference; no rows if they execute the same instructions with the same weights.
"""Differences between two .pte files: `compare`.

Instructions are aligned by their operators, like lines of text. The weights of aligned instructions are compared.
Weights need no names, and an inserted layer does not make the layers after it differ.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torchette import notebook
from torchette.devtools.inspect import (
    Description,
    InstructionInfo,
    MethodInfo,
    Table,
    TensorInfo,
    ValueInfo,
    describe,
    source_line,
)
from torchette.devtools.size import members, sizes
from torchette.devtools.validate import largest_difference
from torchette.format import pte, receipt

# Kinds of rows, in their order.
KINDS = (
    "method",
    "signature",
    "operator",
    "instruction",
    "argument",
    "tensor",
    "weight",
    "memory",
    "delegate",
    "named data",
    "size",
    "bytes",
)
_AUTOJUNK = 2000  # number of instructions above which frequent operators no longer anchor the alignment


@dataclass(frozen=True)
class Row:
    """A difference. A side that lacks the item is None."""

    kind: str  # one of `KINDS`
    name: str  # the item that differs
    a: Any
    b: Any
    more: Mapping[str, float] = field(default_factory=dict)  # details, such as the largest difference

    @property
    def text(self) -> str:
        """`more` as text."""
        return ", ".join(f"{name} {value:,}" if value == int(value) else f"{name} {value:.3g}"
                         for name, value in self.more.items() if np.isfinite(value)) or (
            "not finite" if self.more else "")  # fmt: skip


@dataclass
class Differences:
    """The differences between two files."""

    a: str
    b: str
    rows: list[Row]

    @property
    def equal(self) -> bool:
        """Whether there are no differences."""
        return not self.rows

    def to_dict(self) -> dict[str, Any]:
        """Returns `equal`, the file names and the rows as plain values. Values that are not finite are strings."""
        rows = [asdict(row) for row in self.rows]
        for row in rows:
            row["more"] = {k: v if np.isfinite(v) else str(v) for k, v in row["more"].items()}
        return {"a": self.a, "b": self.b, "equal": self.equal, "differences": rows}

    def tables(self) -> Iterator[Table]:
        """Yields a table for each kind of difference."""
        for kind in KINDS:
            rows: list[tuple[Any, ...]] = [
                (row.name, *("-" if side is None else side for side in (row.a, row.b)), row.text)
                for row in self.rows
                if row.kind == kind
            ]
            if rows:
                yield Table(f"{kind}: {len(rows)} differ", (kind, "A", "B", ""), rows)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables())) or f"{self.a} and {self.b} are equal"

    def _repr_html_(self) -> str:
        return notebook.tables(self.tables(), f"{self.a} and {self.b}: {len(self.rows)} differences")


@dataclass
class _Side:
    file: pte.PteFile
    description: Description

    @classmethod
    def of(cls, source: str | Path | bytes) -> _Side:
        file = pte.load_file(source) if isinstance(source, (str, Path)) else pte.read(source)
        return cls(file, describe(file))

    def stored(self, tensor: TensorInfo) -> memoryview:
        assert tensor.data is not None
        read = self.file.constant if tensor.storage == "constant" else self.file.mutable
        return read(tensor.data)[: tensor.nbytes]


def compare(a: str | Path | bytes, b: str | Path | bytes) -> Differences:
    """Compares two .pte files of Torchette or ExecuTorch.

    Args:
        a: path or bytes of the first file.
        b: path or bytes of the second file.

    Returns:
        The differences, sorted by kind.

    Raises:
        ModelNotFoundError: a file does not exist.
        FormatError: a file is damaged.
    """
    names = [str(side) if isinstance(side, (str, Path)) else name for side, name in ((a, "A"), (b, "B"))]
    left, right = _Side.of(a), _Side.of(b)
    if left.file.buffer == right.file.buffer:
        return Differences(names[0], names[1], [])
    rows = list(_rows(left, right))
    if all(row.kind == "size" for row in rows):
        rows.append(_first_byte(left.file.buffer, right.file.buffer))
    return Differences(names[0], names[1], sorted(rows, key=lambda row: KINDS.index(row.kind)))


def _rows(left: _Side, right: _Side) -> Iterator[Row]:
    ours, theirs = ({m.name: m for m in side.description.methods} for side in (left, right))
    yield from _entries("method", [dict.fromkeys(side, "there") for side in (ours, theirs)])
    for name in ours.keys() & theirs.keys():
        yield from _method_rows(left, right, ours[name], theirs[name])
    named = [side.file.named() for side in (left, right)]
    blobs = [{name: bytes(blob) for name, blob in side.items() if name != receipt.KEY} for side in named]
    yield from _entries("named data", blobs, show=lambda blob: f"{len(blob):,} bytes")
    yield from _entries(
        "named data", [{receipt.KEY: "there"} if receipt.KEY in side else {} for side in named]
    )
    parts = [sizes(side.file) for side in (left, right)]
    yield from _entries(
        "size", [{"whole file": file_sizes.nbytes, **file_sizes.by("part")} for file_sizes in parts]
    )


def _entries(
    kind: str,
    sides: Sequence[Mapping[str, Any]],
    prefix: str = "",
    show: Callable[[Any], Any] = lambda value: value,
) -> Iterator[Row]:
    """Yields a row for each key with different values."""
    a, b = sides
    for key in dict.fromkeys((*a, *b)):
        if key not in a or key not in b or a[key] != b[key]:
            one, other = (show(side[key]) if key in side else None for side in sides)
            by = {"by": other - one} if isinstance(one, int) and isinstance(other, int) else {}
            yield Row(kind, prefix + key, one, other, by)


def _method_rows(left: _Side, right: _Side, a: MethodInfo, b: MethodInfo) -> Iterator[Row]:
    prefix = f"{a.name}: "
    signatures = [
        {
            f"{direction} {number}": f"{port.name} {port.text}"
            for direction, ports in (("input", method.inputs), ("output", method.outputs))
            for number, port in enumerate(ports)
        }
        | {"input tree": method.input_tree or "", "output tree": method.output_tree or ""}
        for method in (a, b)
    ]
    yield from _entries("signature", signatures, prefix)
    yield from _entries("operator", [a.operators, b.operators], prefix)
    memory = [{f"@{buffer.id}": buffer.nbytes for buffer in method.planned_buffers} for method in (a, b)]
    yield from _entries("memory", memory, prefix)
    yield from _delegate_rows(left, right, a, b)
    for tag, i, j, k, m in _aligned(a, b):
        if tag == "equal":
            for first, second in zip(a.instructions[i:j], b.instructions[k:m], strict=True):
                yield from _instruction_rows(left, right, a, b, first, second)
            continue
        one, other = (_sequence(instructions) for instructions in (a.instructions[i:j], b.instructions[k:m]))
        yield Row("instruction", f"{prefix}{i if i < j else f'before {i}'}", one, other)


def _sequence(instructions: list[InstructionInfo]) -> str | None:
    shown = ", ".join(item.op for item in instructions[:4])
    return (shown + (f" and {len(instructions) - 4} more" if len(instructions) > 4 else "")) or None


def _aligned(a: MethodInfo, b: MethodInfo) -> Iterator[tuple[str, int, int, int, int]]:
    """Yields `difflib` opcodes that align the operators."""
    ours, theirs = ([item.op for item in method.instructions] for method in (a, b))
    if ours == theirs:
        yield "equal", 0, len(ours), 0, len(theirs)
        return
    autojunk = max(len(ours), len(theirs)) > _AUTOJUNK
    yield from difflib.SequenceMatcher(None, ours, theirs, autojunk=autojunk).get_opcodes()


def _delegate_rows(left: _Side, right: _Side, a: MethodInfo, b: MethodInfo) -> Iterator[Row]:
    delegates = []
    for side, method in ((left, a), (right, b)):
        plan = next(plan for plan in side.file.program.execution_plan if plan.name == method.name)
        delegates.append(
            {
                f"{number}": (
                    delegate.id,
                    bytes(side.file.delegate(delegate)),
                    [(spec.key, bytes(spec.value)) for spec in delegate.compile_specs],
                )
                for number, delegate in enumerate(plan.delegates)
            }
        )

    def show(delegate: tuple[str, bytes, list[Any]]) -> str:
        return f"{delegate[0]}, {len(delegate[1]):,} bytes"

    yield from _entries("delegate", delegates, f"{a.name}: ", show)


def _instruction_rows(
    left: _Side, right: _Side, a: MethodInfo, b: MethodInfo, first: InstructionInfo, second: InstructionInfo
) -> Iterator[Row]:
    line = source_line(first.source)
    place = f"{a.name} {first.index} {first.op}" + (f" ({line})" if line else "")
    one, other = (
        None if instruction.destination is None else instruction.destination - instruction.index
        for instruction in (first, second)
    )
    if one != other:
        yield Row("argument", f"{place}, jump by", one, other)
    for direction in ("inputs", "outputs"):
        indices = [
            list(members(method, getattr(item, direction))) for method, item in ((a, first), (b, second))
        ]
        if len(indices[0]) != len(indices[1]):
            yield Row("argument", f"{place}, {direction}", len(indices[0]), len(indices[1]))
            continue
        for number, (i, j) in enumerate(zip(*indices, strict=True)):
            where = f"{place}, {direction[:-1]} {number}"
            yield from _value_rows(left, right, a.values[i], b.values[j], where, _plain(a, i), _plain(b, j))


def _plain(method: MethodInfo, index: int) -> Any:
    """Returns the value of an argument that is not a tensor. A list of integers stores indices of its items."""
    value = method.values[index]
    return [method.values[item].value for item in value.value] if value.kind == "int_list" else value.value


def _value_rows(
    left: _Side, right: _Side, one: ValueInfo, other: ValueInfo, where: str, plain_a: object, plain_b: object
) -> Iterator[Row]:
    if one.tensor is None or other.tensor is None:
        if one.kind != other.kind or plain_a != plain_b:
            yield Row("argument", where, str(one.tensor or plain_a), str(other.tensor or plain_b))
        return
    name = one.tensor.name or other.tensor.name
    where = f"{name} ({where})" if name else where
    if str(one.tensor) != str(other.tensor):
        yield Row("tensor", where, str(one.tensor), str(other.tensor))
    elif one.tensor.storage != other.tensor.storage:
        yield Row("tensor", where, one.tensor.storage, other.tensor.storage)
    elif one.tensor.data is not None:
        ours, theirs = left.stored(one.tensor), right.stored(other.tensor)
        if ours != theirs:
            text = str(one.tensor)
            yield Row("weight", where, text, text, _distance(ours, theirs, one.tensor.dtype))


def _distance(a: memoryview, b: memoryview, dtype: str) -> dict[str, float]:
    """Returns the figures that describe how far two stored tensors differ."""
    one, other = _numbers(a, dtype), _numbers(b, dtype)
    apart = (one != other) & ~(np.isnan(one) & np.isnan(other))
    return {
        "elements that differ": int(apart.sum()),
        "of": one.size,
        "largest difference": largest_difference(one, other),
        "of the largest value": float(np.abs(one).max(initial=0.0)),
    }


def _numbers(data: memoryview, dtype: str) -> np.ndarray:
    """Returns the elements as float64; the bytes, if numpy has no such dtype."""
    if dtype == "bfloat16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    try:
        return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).astype(np.float64)
    except TypeError:
        return np.frombuffer(data, np.uint8).astype(np.float64)


def _first_byte(a: memoryview, b: memoryview) -> Row:
    """Returns the first byte that differs, for files that are otherwise equal, such as in the order of tables."""
    shared = min(len(a), len(b))
    differs = np.flatnonzero(np.frombuffer(a[:shared], np.uint8) != np.frombuffer(b[:shared], np.uint8))
    at = int(differs[0]) if len(differs) else shared
    one, other = (bytes(side[at : at + 8]).hex(" ") for side in (a, b))
    return Row("bytes", f"from byte {at:,}", one, other)
