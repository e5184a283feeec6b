# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file. Out: the same file with a receipt: hashes of all bytes, its origin, and the errors compared with
# eager execution. For a file with a receipt: the bytes that have changed.
"""The receipt of a .pte file, stored as named data that readers ignore.

>>> Path("net.pte").write_bytes(sign(Path("net.pte").read_bytes(), {"trained": "2026-03"}))
>>> read("net.pte").facts["torchette"]
'0.1.0'
>>> verify("net.pte")  # nothing has changed
[]

docs/format.md describes the bytes; docs/decisions/0014-receipts-hash-with-xxh64.md explains the design.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import math
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torchette.devtools.size import stored_pieces
from torchette.errors import FormatError, InputTypeError
from torchette.files import missing_file
from torchette.format import pte
from torchette.format.receipt import ENTRY, HASHED_FROM, HEAD, KEY, MARK, Entry, Receipt, provenance, rows
from torchette.format.schema import Record
from torchette.runtime import xxh64

__all__ = ["KEY", "Damage", "Entry", "Receipt", "provenance", "read", "rows", "sign", "verify"]

_SMALLEST, _LARGEST = 1 << 12, 1 << 20  # minimum and maximum bytes of a part; smaller tensors share a part
_ALIGNMENT = 16
_UNKNOWN = 1 << 40  # placeholder of the receipt's size, with the same encoded length


@dataclass(frozen=True)
class Damage:
    """A range of bytes that differs from the receipt."""

    file: str
    offset: int
    nbytes: int
    holds: list[str]  # names of the tensors, delegates and data in the range, or the purpose of the bytes

    def to_dict(self) -> dict[str, Any]:
        """Returns the damage as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        place = f"bytes {self.offset:,} to {self.offset + self.nbytes - 1:,}: " if self.nbytes else ""
        return f"{self.file}: {place}{', '.join(self.holds)}"


def sign(
    program: bytes, facts: Mapping[str, Any] | None = None, data_files: Sequence[str | os.PathLike[str]] = ()
) -> bytes:
    """Returns the file with a receipt, which replaces an existing receipt. Segments keep their alignment.

    Args:
        program: the bytes of a .pte file of Torchette or ExecuTorch.
        facts: the entries of the receipt, JSON values. Package versions are added.
        data_files: paths of the .ptd files with the program's weights.

    Raises:
        FormatError: if `program` is not a valid program.
        InputTypeError: if `facts` cannot be stored as JSON.
    """
    file = pte.read(program)
    record, segments = _without(file)
    versions = {"torchette": sys.modules["torchette"].__version__, "torch": _version("torch")}
    facts = {**versions, **(facts or {})}
    try:
        text = json.dumps(
            {name: value for name, value in facts.items() if value is not None}, allow_nan=False
        )
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"the values of a receipt must be JSON: {error}") from None
    outside = [_entry_of_data(Path(path).read_bytes()) for path in data_files]
    start = len(segments) + -len(segments) % _ALIGNMENT
    segments += bytes(start - len(segments))

    def with_receipt(size: int) -> Any:
        return replace(
            record,
            segments=[*record.segments, pte.DataSegment(start, size)],
            named_data=[*record.named_data, pte.NamedData(KEY, len(record.segments))],
        )

    alignment = _alignment(file, record)
    head = pte.head(with_receipt(_UNKNOWN), start + _UNKNOWN, alignment)
    bounds = _bounds(record, len(head), len(head) + start)
    size = HEAD.size + ENTRY.size * (len(bounds) - 1 + len(outside)) + len(text.encode())
    head = pte.head(with_receipt(size), start + size, alignment)
    contents = memoryview(bytes(head) + segments)
    parts = [Entry(b - a, xxh64(contents[a:b])) for a, b in itertools.pairwise(bounds)]
    body = b"".join(ENTRY.pack(*entry) for entry in (*parts, *outside)) + text.encode()
    counts = struct.pack("<II", len(parts), len(outside))
    return bytes(contents) + MARK + struct.pack("<Q", xxh64(counts + body)) + counts + body


def read(source: str | os.PathLike[str] | bytes | pte.PteFile) -> Receipt | None:
    """Returns the receipt of a .pte file, or None if it has none.

    Args:
        source: a path, bytes, or a parsed file.

    Raises:
        ModelNotFoundError: if the file does not exist.
        FormatError: if the file is not a program; code "damaged": if the receipt is damaged.
    """
    blob = _file(source).named().get(KEY)
    return None if blob is None else _parsed(blob)


def verify(
    source: str | os.PathLike[str] | bytes, data_files: Sequence[str | os.PathLike[str]] = ()
) -> list[Damage]:
    """Compares a program and its data files with the receipt. Returns the damaged ranges.

    Raises:
        ModelNotFoundError: if a file does not exist.
        FormatError: if the file is not a program; code "no-receipt": if it has no receipt; code "damaged": if the
            damage prevents reading it.
    """
    name = "the program" if isinstance(source, bytes) else os.fspath(source)
    file = _file(source)
    blob = file.named().get(KEY)
    if blob is None:
        raise FormatError(
            f"{name} has no receipt, so its integrity cannot be checked",
            hints=["compile it with torchette.compile(..., verify=True), which stores one"],
            code="no-receipt",
        )
    receipt = _parsed(blob)
    damages, at = [], 0
    for entry in receipt.parts:
        part = file.buffer[at : at + entry.nbytes]
        if len(part) < entry.nbytes or xxh64(part) != entry.hash:
            damages.append(Damage(name, at, entry.nbytes, _holds(file, at, entry.nbytes)))
        at += entry.nbytes
    if at + len(blob) != len(file.buffer):
        end = at + len(blob)
        damages.append(Damage(name, end, len(file.buffer) - end, ["bytes after the end of the file"]))
    for path in data_files:
        if not Path(path).is_file():
            raise missing_file(path)
        entry = _entry_of_data(Path(path).read_bytes())
        if entry not in receipt.data_files:
            holds = ["not a data file of the receipt"]
            damages.append(Damage(os.fspath(path), 0, entry.nbytes, holds))
    return damages


def _file(source: pte.PteFile | bytes | bytearray | memoryview | str | os.PathLike[str]) -> pte.PteFile:
    if isinstance(source, pte.PteFile):
        return source
    return (
        pte.read(source)
        if isinstance(source, (bytes, bytearray, memoryview))
        else pte.load_file(Path(source))
    )


def _parsed(blob: memoryview) -> Receipt:
    try:
        mark, stored, parts, files = HEAD.unpack_from(blob)
        if mark == MARK and stored == xxh64(blob[HASHED_FROM:]):
            end = HEAD.size + ENTRY.size * (parts + files)
            entries = [Entry(*entry) for entry in ENTRY.iter_unpack(blob[HEAD.size : end])]
            facts = json.loads(bytes(blob[end:]))
            if len(entries) == parts + files and isinstance(facts, dict):
                return Receipt(entries[:parts], entries[parts:], facts)
    except (struct.error, ValueError):
        pass
    raise FormatError(
        "the receipt itself is damaged", hints=["copy or download the file again"], code="damaged"
    )


def _without(file: pte.PteFile) -> tuple[Any, bytes]:
    """Returns the program's record and the bytes of its segments, without a receipt."""
    record = file.program
    area = (
        file.buffer[file.segment_base : file.segment_base + file.segment_data_size]
        if file.segment_base
        else b""
    )
    old = next((item for item in record.named_data if item.key == KEY), None)
    if old is None:
        return record, bytes(area)
    named = [item for item in record.named_data if item.key != KEY]
    stored = record.segments
    if old.segment_index == len(stored) - 1:
        area, stored = area[: stored[-1].offset], stored[:-1]
        area = area[: max((segment.offset + segment.size for segment in stored), default=0)]
    return replace(record, named_data=named, segments=stored), bytes(area)


def _alignment(file: pte.PteFile, record: Record) -> int:
    """Returns an alignment that all segments of the record have in the file."""
    starts = [file.segment_base + segment.offset for segment in record.segments]
    common = math.gcd(file.segment_base, *starts) or _ALIGNMENT
    return max(common & -common, _ALIGNMENT)


def _bounds(record: Record, base: int, end: int) -> list[int]:
    """Returns the boundaries of the hashed parts. They are at tensors and segments, so that damage can be named."""
    starts = {base, end}
    for segment in record.segments:
        starts.add(base + segment.offset)
    for subsegments in (record.constant_segment, *record.mutable_data_segments):
        if subsegments and subsegments.offsets:
            first = base + record.segments[subsegments.segment_index].offset
            starts |= {first + offset for offset in subsegments.offsets}
    bounds = [0]
    for start in sorted(starts):
        if start - bounds[-1] >= _SMALLEST or (start in (base, end) and start > bounds[-1]):
            bounds += range(bounds[-1] + _LARGEST, start, _LARGEST)
            bounds.append(start)
    return bounds


def _holds(file: pte.PteFile, offset: int, nbytes: int) -> list[str]:
    if offset < file.program_size:
        return ["the program: methods, values, instructions"]
    names = dict.fromkeys(
        piece.tensor or piece.delegate or piece.part
        for start, piece in stored_pieces(file)
        if start < offset + nbytes and offset < start + piece.nbytes
    )
    return list(names) or ["padding"]


def _entry_of_data(data: bytes) -> Entry:
    """Returns the entry of a data file: a hash of the hashes of its pieces, which include the bytes before each
    piece.
    """
    view, checksum = memoryview(data), 0
    for at in range(0, len(view), _LARGEST):
        checksum = xxh64(struct.pack("<QQ", checksum, xxh64(view[at : at + _LARGEST])))
    return Entry(len(view), checksum)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
