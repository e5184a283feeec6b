# SPDX-License-Identifier: BSD-3-Clause
# .etdp files: round trips and errors. tests/interop tests files of ExecuTorch.
from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from torchette.errors import FormatError, ModelNotFoundError, TorchetteError
from torchette.format import etdump


def tensor(*sizes: int, offset: int = 0) -> Any:
    strides = [1] * len(sizes)
    for i in reversed(range(len(sizes) - 1)):
        strides[i] = strides[i + 1] * sizes[i + 1]
    return etdump.Tensor(etdump.ScalarType.FLOAT, list(sizes), strides, offset)


def logged(value: Any, instruction: int = 3) -> Any:
    return etdump.Event(debug_event=etdump.DebugEvent(0, instruction, value, name="aten::add.out"))


def dump() -> Any:
    kinds = etdump.ValueType
    timed = etdump.ProfileEvent("aten::add.out", 0, 3, -1, None, b"", 2**63, 2**63 + 17)
    part = etdump.ProfileEvent("conv", 0, 4, 7, None, b"\1\2", 5, 6)
    values = [
        etdump.Value(kinds.Tensor, tensor=tensor(2, 3, offset=64), output=etdump.Bool(True)),
        etdump.Value(kinds.TensorList, tensor_list=etdump.TensorList([tensor(), tensor(0)])),
        etdump.Value(kinds.Int, int_value=etdump.Int(-5)),
        etdump.Value(kinds.Double, double_value=etdump.Double(0.5)),
        etdump.Value(kinds.Bool, bool_value=etdump.Bool(True)),
    ]
    events = [etdump.Event(profile_event=event) for event in (timed, part)]
    events.append(etdump.Event(allocation_event=etdump.AllocationEvent(1, 2**40)))
    loading = etdump.RunData("Default", -1, [etdump.Allocator("temp")], [])
    return etdump.ETDump(0, [loading, etdump.RunData("Execute", 2, [], events + [logged(v) for v in values])])


@pytest.mark.parametrize("size_prefixed", [True, False])
def test_round_trip_preserves_dump(size_prefixed: bool, tmp_path: Path) -> None:
    data = etdump.dumps(dump(), size_prefixed=size_prefixed)
    assert etdump.load(data) == etdump.load(bytearray(data)) == dump()
    (tmp_path / "a.etdp").write_bytes(data)
    assert etdump.load(tmp_path / "a.etdp") == etdump.load(str(tmp_path / "a.etdp")) == dump()


def test_unused_end_of_device_buffer_is_ignored() -> None:
    assert etdump.load(etdump.dumps(dump()) + bytes(100)) == dump()


def test_non_etdump_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"none\.etdp"):
        etdump.load(tmp_path / "none.etdp")
    with pytest.raises(FormatError, match="folder"):
        etdump.load(tmp_path)
    for content, message in [
        (b"", "0 bytes"),
        (b"\0" * 4 + b"ET12" + b"\0" * 20, "a program"),
        (b"\0" * 4 + b"FT01" + b"\0" * 20, "a data file"),
        (b"PK\3\4 a zip file", "not an .etdp file"),
        (etdump.dumps(dump())[:-1], "truncated"),
    ]:
        path = tmp_path / "bad.etdp"
        path.write_bytes(content)
        with pytest.raises(FormatError, match=message) as caught:
            etdump.load(path)
        assert str(path) in str(caught.value) and caught.value.hints


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (etdump.Event(), "run 1, event 8 is not one of"),
        (
            etdump.Event(etdump.ProfileEvent("a"), etdump.AllocationEvent(1, 1)),
            "run 1, event 8 is not one of",
        ),
        (etdump.Event(debug_event=etdump.DebugEvent()), "event 8 has no value"),
        (logged(etdump.Value(etdump.ValueType.Int)), "type Int without int_value"),
        (logged(etdump.Value(etdump.ValueType.Tensor, tensor=tensor(2, -1))), "sizes"),
        (
            logged(etdump.Value(etdump.ValueType.Tensor, tensor=etdump.Tensor(6, [2], [1, 1]))),
            "1 dimensions with 2 strides",
        ),
    ],
)
def test_ambiguous_event_is_refused(event: Any, message: str) -> None:
    record = dump()
    record.run_data[1].events.append(event)
    with pytest.raises(FormatError, match=message):
        etdump.load(etdump.dumps(record))


def test_value_out_of_field_range_is_refused() -> None:
    record = dump()
    record.run_data[1].bundled_input_index = 2**40
    with pytest.raises(FormatError, match="RunData"):
        etdump.dumps(record)


def test_every_truncation_is_refused() -> None:
    data = etdump.dumps(dump())
    for size in range(len(data)):
        with pytest.raises(FormatError):
            etdump.load(data[:size])


def test_mutations_raise_only_torchette_errors() -> None:
    data = etdump.dumps(dump())
    dice = random.Random(0)
    refused = 0
    for _ in range(2000):
        mutated = bytearray(data)
        for _ in range(dice.choice((1, 1, 2, 8))):
            mutated[dice.randrange(len(mutated))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        try:
            repr(etdump.load(bytes(mutated)))
        except TorchetteError:
            refused += 1
    assert refused > 200, "the mutations do not reach what is checked"
