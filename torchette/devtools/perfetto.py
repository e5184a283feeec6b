# SPDX-License-Identifier: BSD-3-Clause
# In: the events of a method's executions. Out: a trace in Perfetto's binary format.
"""Traces in Perfetto's own format: protobuf messages of perfetto.protos.Trace, TrackEvents on one track.

The fields used, with their field numbers: Trace.packet 1; TracePacket.timestamp 8, trusted_packet_sequence_id 10,
track_event 11, sequence_flags 13, track_descriptor 60; TrackDescriptor.uuid 1, name 2; TrackEvent.debug_annotations 4,
type 9, track_uuid 11, categories 22, name 23; DebugAnnotation.int_value 4, string_value 6, name 10.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchette.devtools.inspect import MethodInfo, source_line
from torchette.devtools.profile import instruction, origin
from torchette.devtools.work import work
from torchette.runtime import Event

_BEGIN, _END = 1, 2  # values of TrackEvent.type
_TRACK, _SEQUENCE = 1, 1


def trace(method: MethodInfo, events: Sequence[Event], name: str = "") -> bytes:
    """Returns the trace of all events, including loading. Times are nanoseconds since the first event.

    Args:
        method: description of the method, from `describe`.
        events: events, from `Method.take_events`.
        name: prefix of the track's name, such as the name of the file.
    """
    start = min((event.begin for event in events), default=0)
    title = f"{name}: {method.name}" if name else method.name
    packets = [_packet(_number(13, 1) + _message(60, _number(1, _TRACK) + _text(2, title)))]
    open_: list[int] = []  # end times of the enclosing events

    def close(until: int | None) -> None:
        while open_ and (until is None or open_[-1] <= until):
            packets.append(_event(open_.pop() - start, _number(9, _END)))

    for event in events:
        close(event.begin)
        # The clock's resolution can make an event end after its enclosing event: clamp it.
        end = min(event.end, open_[-1]) if open_ else event.end
        packets.append(_event(event.begin - start, _number(9, _BEGIN) + _about(method, event)))
        open_.append(max(end, event.begin))
    close(None)
    return b"".join(packets)


def _about(method: MethodInfo, event: Event) -> bytes:
    name, category = event.name, "method"
    notes = [_message(4, _text(10, "execution") + _number(4, event.block))]
    if event.chain is not None and event.instruction is not None:
        info = instruction(method, event.chain, event.instruction)
        category = "backend" if event.in_delegate else info.kind
        name = info.op if info.kind == "delegate" and not event.in_delegate else name
        notes.append(_message(4, _text(10, "instruction") + _number(4, info.index)))
        where = origin(info, event.part)
        for key, value in (("module", where.module), ("source", source_line(where.source))):
            if value:
                notes.append(_message(4, _text(10, key) + _text(6, value)))
        cost = None if event.in_delegate else work(method, info)
        for key, count in (cost._asdict() if cost else {}).items():
            if count:
                notes.append(_message(4, _text(10, key) + _number(4, count)))
    if event.part is not None:
        notes.append(_message(4, _text(10, "part") + _number(4, event.part)))
    return b"".join([_text(22, category), _text(23, name or f"part {event.part}"), *notes])


def _event(time: int, fields: bytes) -> bytes:
    return _packet(_number(8, time) + _message(11, fields + _number(11, _TRACK)))


def _packet(fields: bytes) -> bytes:
    return _message(1, fields + _number(10, _SEQUENCE))


# ---- protobuf wire format: a field is a tag (number and type), then a varint, or a length and bytes ----


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode("utf-8", "replace"))
