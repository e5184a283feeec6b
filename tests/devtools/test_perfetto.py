# SPDX-License-Identifier: BSD-3-Clause
# Traces for Perfetto, decoded as protobuf: every event begins and ends inside its enclosing event.

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.devtools.test_profile import _execution, _method
from torchette.devtools import perfetto
from torchette.runtime import Event


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Decodes the varint and length-delimited fields of a message."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while data[at] & 0x80:
            value |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
        at += 1
        return value | data[at - 1] << shift

    while at < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        else:
            assert key & 7 == 2
            size = number()
            assert at + size <= len(data)
            yield key >> 3, data[at : at + size]
            at += size


def message(data: int | bytes) -> dict[int, int | bytes]:
    assert isinstance(data, bytes)
    return dict(fields(data))


def slices(data: bytes) -> list[tuple[str, int, int, int]]:
    """Returns name, begin, end and depth of each slice, matched like in a viewer."""
    rows: list[tuple[str, int, int, int]] = []
    open_: list[tuple[str, int, int]] = []
    for number, packet in fields(data):
        record = message(packet)
        assert number == 1 and record[10] == 1
        if 60 in record:
            assert message(record[60]) == {1: 1, 2: b"net.pte: forward"} and record[13] == 1
            continue
        event, time = message(record[11]), record[8]
        assert event[11] == 1 and isinstance(time, int)
        if event[9] == 1:
            name = event[23]
            assert isinstance(name, bytes)
            open_.append((name.decode(), time, len(open_)))
        else:
            name, begin, depth = open_.pop()
            rows.append((name, begin, time, depth))
    assert not open_
    return sorted(rows, key=lambda row: (row[1], row[3]))


def test_slices_nest_like_events() -> None:
    load = Event(0, "Method::init", None, None, False, None, 500, 900)
    data = perfetto.trace(_method(), [load, *_execution(1, 1000)], name="net.pte")
    assert slices(data) == [
        ("Method::init", 0, 400, 0),
        ("Method::execute", 500, 600, 0),
        ("aten::add.out", 505, 525, 1),
        ("AcmeBackend", 530, 580, 1),
        ("part 4", 530, 555, 2),
        ("inner", 550, 555, 3),
        ("last", 570, 575, 2),
        ("aten::mul.out", 580, 600, 1),
    ]
    assert slices(perfetto.trace(_method(), [], name="net.pte")) == []


def test_lines_are_annotations() -> None:
    data = perfetto.trace(_method(), _execution(1, 0))
    assert b"net.py:7" in data and b"source" in data and b"instruction" in data


def test_the_perfetto_package_reads_it() -> None:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = protos.Trace()
    trace.ParseFromString(perfetto.trace(_method(), _execution(1, 0)))
    names = [packet.track_event.name for packet in trace.packet if packet.track_event.type == 1]
    assert names[:2] == ["Method::execute", "aten::add.out"]
