# SPDX-License-Identifier: BSD-3-Clause
"""The .ptd file: named bytes, such as weights that programs share.

`write` returns the bytes of a file from layouts and buffers of tensors; `read` is the reverse. The record classes are
those of `torchette/schema/flat_tensor.fbs`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torchette.errors import FormatError
from torchette.format import flatbuffer
from torchette.format.schema import load

if TYPE_CHECKING:
    from typing_extensions import Buffer

SCHEMA = load(Path(__file__).parent.parent / "schema" / "flat_tensor.fbs")

# After the root offset and the file identifier: magic, length of the header, offset and size of the flatbuffer, offset
# of the first segment, size of all segments. The flatbuffer's own offsets count from the start of the file.
_HEADER = struct.Struct("<4sIQQQQ8x")
_HEADER_AT = 8
_HEADER_MAGIC = b"FH01"
_HEADER_LENGTH = 40


class NamedBytes(NamedTuple):
    """Bytes, and a TensorLayout record if they are the data of a tensor."""

    data: Any
    layout: Any = None


def layout(scalar_type: int, sizes: list[int], dim_order: bytes | None = None) -> Any:
    """Returns a TensorLayout record. The default dim order is that of a contiguous tensor."""
    order = bytes(range(len(sizes))) if dim_order is None else dim_order
    return SCHEMA.types["TensorLayout"](SCHEMA.types["ScalarType"](scalar_type), sizes, order)


def write(named: Mapping[str, NamedBytes], *, segment_alignment: int = 128) -> bytes:
    """Returns the bytes of a .ptd file. Names with equal bytes share a segment.

    Args:
        named: the buffer of each name, C-contiguous.
        segment_alignment: alignment of segments in bytes, a power of two.

    Raises:
        ValueError: the alignment is not a power of two.
    """
    if segment_alignment < 1 or segment_alignment & (segment_alignment - 1):
        raise ValueError(f"an alignment must be a power of two, got {segment_alignment}")
    types = SCHEMA.types
    records, segments, chunks = [], [], []
    stored: dict[bytes, int] = {}
    size = 0
    for key, item in named.items():
        data = bytes(item.data)
        if data not in stored:
            chunks += [bytes(-size % segment_alignment), data]
            size += -size % segment_alignment
            segments.append(types["DataSegment"](size, len(data)))
            size += len(data)
            stored[data] = len(segments) - 1
        records.append(types["NamedData"](key, stored[data], item.layout))
    head = flatbuffer.encode(SCHEMA, types["FlatTensor"](0, segments, records), reserve=_HEADER.size)
    base = len(head) + -len(head) % segment_alignment
    _HEADER.pack_into(
        head, _HEADER_AT, _HEADER_MAGIC, _HEADER_LENGTH, _HEADER.size, len(head) - _HEADER.size, base, size
    )
    return bytes(head) + bytes(base - len(head)) + b"".join(chunks)


def read(data: Buffer) -> dict[str, NamedBytes]:
    """Returns the contents of a .ptd file by name, without copies. Raises FormatError."""
    view = memoryview(data).cast("B")
    if len(view) < _HEADER_AT + _HEADER_LENGTH or bytes(view[4:8]) != SCHEMA.identifier:
        raise FormatError(f"not a .ptd file: bytes 4 to 7 should be {SCHEMA.identifier.decode()}")
    magic, length, offset, flatbuffer_size, base, size = struct.unpack_from("<4sIQQQQ", view, _HEADER_AT)
    if magic != _HEADER_MAGIC or length < _HEADER_LENGTH:
        raise FormatError("not a .ptd file: its header is damaged")
    if offset + flatbuffer_size > len(view) or base + size > len(view):
        raise FormatError(
            f"the data file is truncated: it has {len(view)} bytes, but its header requires more"
        )
    record = flatbuffer.decode(SCHEMA, view[: offset + flatbuffer_size])
    contents: dict[str, NamedBytes] = {}
    for item in record.named_data:
        if item.segment_index >= len(record.segments):
            raise FormatError(
                f"{item.key} refers to segment {item.segment_index}, but the file has {len(record.segments)}"
            )
        segment = record.segments[item.segment_index]
        if segment.offset + segment.size > size:
            raise FormatError(f"the segment of {item.key} exceeds the data file")
        start = base + segment.offset
        contents.setdefault(item.key, NamedBytes(view[start : start + segment.size], item.tensor_layout))
    return contents
