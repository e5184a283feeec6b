# SPDX-License-Identifier: BSD-3-Clause
# The .pte writer and reader: round trips, the layout of the file, files and readers of ExecuTorch, and damaged files.

from __future__ import annotations

import dataclasses
import io
import math
import os
import random
import struct
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest

from torchette.devtools.inspect import describe
from torchette.errors import FormatError, ModelNotFoundError, TorchetteError
from torchette.format import flatbuffer, pte, schema

ROOT = Path(__file__).resolve().parents[2]


def small_program() -> Any:
    """x[2, 3] + constant, with one value of each kind."""
    tensor = pte.Tensor(scalar_type=pte.ScalarType.FLOAT, sizes=[2, 3], dim_order=[0, 1])
    planned = pte.AllocationDetails(memory_id=1, memory_offset_low=64)
    values = [
        dataclasses.replace(tensor, data_buffer_idx=1),
        dataclasses.replace(tensor, allocation_info=planned),
        pte.Int(-(2**63)),
        dataclasses.replace(
            tensor,
            data_buffer_idx=1,
            allocation_info=pte.AllocationDetails(1, 2**32 - 1, 3),
            shape_dynamism=pte.TensorShapeDynamism.DYNAMIC_BOUND,
            extra_tensor_info=pte.ExtraTensorInfo(fully_qualified_name="state.Größe"),
        ),
        pte.Double(math.inf),
        pte.Double(-0.0),
        pte.Double(0.0),
        pte.Bool(True),
        pte.Null(),
        pte.String("naïve"),
        pte.IntList([2, 2]),
        pte.DoubleList([0.5, -1.5]),
        pte.BoolList([True, False]),
        pte.TensorList([0, 1]),
        pte.OptionalTensorList([0, -1]),
        tensor,
    ]
    frame = pte.Frame("model.py", 12, "forward", "return x + self.c")
    plan = pte.ExecutionPlan(
        name="forward",
        container_meta_type=pte.ContainerMetadata("in", "out"),
        values=[pte.EValue(value) for value in values],
        inputs=[1],
        outputs=[3],
        chains=[
            pte.Chain(
                instructions=[
                    pte.Instruction(pte.KernelCall(0, [0, 1, 2, 3, 3])),
                    pte.Instruction(pte.MoveCall(3, 1)),
                    pte.Instruction(pte.JumpFalseCall(7, 4)),
                    pte.Instruction(pte.FreeCall(1)),
                ],
                stacktrace=[pte.FrameList([frame])] * 4,
            )
        ],
        operators=[pte.Operator("aten::add", "out")],
        non_const_buffer_sizes=[0, 2**40],
    )
    return pte.Program(execution_plan=[plan])


def small_file() -> bytes:
    return bytes(pte.write(small_program(), [b"", bytes(range(24))], [b"", bytes(24)]))


def test_read_returns_written_program() -> None:
    program = small_program()
    file = pte.read(small_file())
    written = dataclasses.asdict(program.execution_plan[0])
    read = dataclasses.asdict(file.program.execution_plan[0])
    for value in written["values"]:
        if "dim_order" in value["val"]:
            value["val"]["dim_order"] = bytes(value["val"]["dim_order"])
    assert read == written
    # equal doubles may differ in their bits (-0.0), so the test compares the bits
    doubles = [struct.pack("d", v.val.double_val) for v in file.program.execution_plan[0].values[4:7]]
    assert doubles == [struct.pack("d", number) for number in (math.inf, -0.0, 0.0)]
    assert type(file.program.execution_plan[0].values[0].val.scalar_type) is pte.ScalarType
    far = describe(file).methods[0].values[3].tensor
    assert far is not None and far.memory_offset == 2**34 - 1
    assert bytes(file.constant(1)) == bytes(range(24))
    assert bytes(file.mutable(1)) == bytes(24)
    assert program == small_program(), "write must not change the program"


@pytest.mark.parametrize("alignment", [1, 16, 128, 4096])
def test_layout_of_header_and_segments(alignment: int) -> None:
    """The values are those of the format: a 32-byte header at byte 8, and segments after the program."""
    constants = [b"", b"abc", b"", b"defgh"]
    data = bytes(pte.write(small_program(), constants, segment_alignment=alignment))
    magic, length, program_size, base, data_size = struct.unpack_from("<4sIQQQ", data, 8)
    assert data[4:8] == b"ET12"
    assert (magic, length) == (b"eh00", 32)
    start = max(alignment, 16)  # constants are aligned to 16 bytes in the file, not only in their segment
    assert base == -(-program_size // start) * start
    assert base + data_size == len(data)
    assert not any(data[program_size:base])
    program = flatbuffer.decode(pte.SCHEMA, memoryview(data)[:program_size])
    assert program.constant_buffer == []
    assert program.constant_segment == pte.SubsegmentOffsets(0, [0, 0, 16, 16])
    assert [(segment.offset, segment.size) for segment in program.segments] == [(0, 21)]
    assert data[base : base + 3] == b"abc" and data[base + 16 :] == b"defgh"


def test_delegates_and_named_data_have_segments() -> None:
    program = small_program()
    reference = pte.BackendDelegateDataReference(index=1)
    program.execution_plan[0].delegates = [
        pte.BackendDelegate("A", reference, [pte.CompileSpec("key", b"value")]),
        pte.BackendDelegate("B", pte.BackendDelegateDataReference(index=0)),
    ]
    shared = b"shared blob"
    arguments: Any = (program, [b"", bytes(24)], [b"", bytes(24)], [b"blob 0", b"blob 1"])
    file = pte.read(bytes(pte.write(*arguments, {"x": shared, "y": shared, "z": b"own"})))
    first, second = file.program.execution_plan[0].delegates
    assert (bytes(file.delegate(first)), bytes(file.delegate(second))) == (b"blob 1", b"blob 0")
    assert first.compile_specs == [pte.CompileSpec("key", b"value")]
    assert file.named() == {"x": shared, "y": shared, "z": b"own"}
    assert len(file.program.segments) == 6
    assert all(segment.offset % 128 == 0 for segment in file.program.segments)
    inline = pte.read(bytes(pte.write(*arguments, extract_delegate_segments=False)))
    first = inline.program.execution_plan[0].delegates[0]
    assert first.processed.location == pte.DataLocation.INLINE
    assert bytes(inline.delegate(first)) == b"blob 1"
    assert program.execution_plan[0].delegates[0].processed is reference, "write must not change the program"


def test_small_named_data_precede_large_named_data() -> None:
    sizes = {"a": 1 << 20, "b": 40, "c": (1 << 16) + 1, "d": 1 << 16, "e": 3 << 16}
    named = {name: bytes([size % 251]) * size for name, size in sizes.items()}
    file = pte.read(bytes(pte.write(small_program(), [b"", bytes(24)], [b"", bytes(24)], named_data=named)))
    program = file.program
    assert list(file.named().items()) == list(named.items())
    offsets = {item.key: program.segments[item.segment_index].offset for item in program.named_data}
    assert sorted(offsets, key=offsets.__getitem__) == ["b", "d", "a", "c", "e"]


def test_weights_are_not_copied() -> None:
    weights = bytearray(1000)
    file = pte.write(small_program(), [b"", weights], [b"", bytes(24)])
    assert any(memoryview(chunk).obj is weights for chunk in file.chunks)
    stream = io.BytesIO()
    file.write_to(stream)
    assert stream.getvalue() == bytes(file) and len(stream.getvalue()) == len(file)
    data = bytes(file)
    assert pte.read(data).constant(1).obj is data


def test_equal_parts_are_stored_once() -> None:
    program = small_program()
    size = len(pte.write(program))
    # each additional equal value or call needs four bytes in each list
    program.execution_plan[0].values *= 2
    program.execution_plan[0].chains[0].instructions *= 2
    assert len(pte.write(program)) - size <= 4 * (16 + 4) + 4


def test_bytes_do_not_depend_on_the_process() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from tests.format.test_pte import small_file; "
        "import hashlib; print(hashlib.sha256(small_file()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code, str(ROOT)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: setattr(plan, "name", 5), "ExecutionPlan cannot represent"),
        (lambda plan: setattr(plan, "inputs", [2**31]), "ExecutionPlan cannot represent"),
        (
            lambda plan: setattr(plan.values[0], "val", pte.Frame()),
            "EValue cannot represent.*a Frame is not one of",
        ),
        (lambda plan: setattr(plan.values[0].val, "dim_order", [256]), "Tensor cannot represent"),
        (lambda plan: setattr(plan.values[0].val, "dim_order", array("q", [0, 1])), "more than one byte"),
        (lambda plan: setattr(plan.values[0].val, "data_buffer_idx", -1), "Tensor cannot represent"),
    ],
)
def test_value_out_of_range_is_named(change: Any, message: str) -> None:
    program = small_program()
    change(program.execution_plan[0])
    with pytest.raises(FormatError, match=message):
        pte.write(program)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="power of two"):
        pte.write(small_program(), segment_alignment=48)
    with pytest.raises(ValueError, match="element 0"):
        pte.write(small_program(), [b"data"])


# --- ExecuTorch


@pytest.fixture(params=["stateful", "initialised", "dynamic", "bare", "convolutions", "delegated", "mixed"])
def peer_bytes(request: pytest.FixtureRequest) -> bytes:
    pytest.importorskip("executorch.exir")
    from tests.format.peer_files import peer_file

    return peer_file(request.param)


def rewritten(data: bytes) -> bytes:
    """Returns the same program and data, written by Torchette."""
    file = pte.read(data)
    program = file.program
    constants = [file.constant(index) for index in range(len(program.constant_segment.offsets))]
    mutable = [
        file.mutable(index) for item in program.mutable_data_segments for index in range(len(item.offsets))
    ]
    delegates = [delegate for plan in program.execution_plan for delegate in plan.delegates]
    blobs = [file.delegate(delegate) for delegate in delegates]
    for index, delegate in enumerate(delegates):
        delegate.processed = pte.BackendDelegateDataReference(pte.DataLocation.INLINE, index)
    return bytes(pte.write(program, constants, mutable, blobs, file.named()))


def test_executorch_reads_torchette_file(peer_bytes: bytes) -> None:
    from executorch.exir._serialize._program import deserialize_pte_binary

    file = rewritten(peer_bytes)
    assert len(file) < len(peer_bytes) + 32, "the extended header is always there"
    original, read = deserialize_pte_binary(peer_bytes), deserialize_pte_binary(file)
    assert read.program == original.program
    assert read.mutable_data == original.mutable_data


def test_executorch_runs_torchette_file(peer_bytes: bytes) -> None:
    import torch
    from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer as load

    shapes = [
        (tuple(value.sizes), value.scalar_type)
        for plan in [pte.read(peer_bytes).program.execution_plan[0]]
        for value in [plan.values[index].val for index in plan.inputs]
    ]
    torch.manual_seed(1)
    inputs = [
        torch.ones(shape, dtype=torch.int64) if scalar_type == pte.ScalarType.LONG else torch.randn(shape)
        for shape, scalar_type in shapes
    ]
    file = rewritten(peer_bytes)  # a variable, since ExecuTorch's program does not keep its bytes alive
    original, program = load(peer_bytes), load(file)
    for expected, actual in zip(original.forward(inputs), program.forward(inputs), strict=True):
        assert torch.equal(expected, actual)
    assert program.run_method("version", ()) == [3]


def test_reads_inline_constants(peer_bytes: bytes) -> None:
    """The format before segments: no extended header, constants in `constant_buffer`."""
    new = pte.read(peer_bytes)
    if new.program.mutable_data_segments or new.program.constant_segment.offsets == [0]:
        pytest.skip("without constants, or with initial values, which such files do not support")
    from executorch.exir._serialize._flatbuffer_program import _program_to_flatbuffer
    from executorch.exir._serialize._program import deserialize_pte_binary

    program = deserialize_pte_binary(peer_bytes).program
    assert program.constant_buffer
    old = pte.read(_program_to_flatbuffer(program).data)
    assert old.program.segments == [] and old.segment_base == 0
    for index in range(len(new.program.constant_segment.offsets)):
        assert old.constant(index) == new.constant(index)
    plans = [describe(file).to_dict()["methods"] for file in (old, new)]
    assert plans[0] == plans[1]


# --- damaged files


def test_non_pte_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"missing\.pte"):
        pte.load_file(tmp_path / "missing.pte")
    for content, message in [
        (b"", "0 bytes"),
        (b"PK\3\4 a zip file", "not a .pte file"),
        (b"\0" * 4 + b"FT01", "ptd"),
    ]:
        path = tmp_path / "bad.pte"
        path.write_bytes(content)
        with pytest.raises(FormatError, match=message) as caught:
            pte.load_file(path)
        assert str(path) in str(caught.value)


def test_every_truncation_is_refused() -> None:
    data = small_file()
    for size in range(len(data)):
        with pytest.raises(FormatError):
            pte.read(data[:size])


def test_mutations_raise_only_torchette_errors() -> None:
    data = small_file()
    dice = random.Random(0)
    refused = 0
    for _ in range(2000):
        mutated = bytearray(data)
        for _ in range(dice.choice((1, 1, 2, 8))):
            mutated[dice.randrange(len(mutated))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        try:
            str(describe(bytes(mutated)))
        except TorchetteError:
            refused += 1
    assert refused > 200, "the mutations do not reach what is checked"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan.inputs.append(99), "method 'forward', inputs: index 99 of 16"),
        (
            lambda plan: setattr(plan.chains[0].instructions[0].instr_args, "op_index", 1),
            "operator: index 1 of 1",
        ),
        (lambda plan: plan.chains[0].instructions[0].instr_args.args.append(-1), "value -1 of 16"),
        (
            lambda plan: setattr(plan.chains[0].instructions[2].instr_args, "destination_instruction", 5),
            "jumps to 5",
        ),
        (lambda plan: setattr(plan.values[0].val, "sizes", [2, -3]), r"sizes \[2, -3\]"),
        (lambda plan: setattr(plan.values[0].val, "sizes", [2, 4]), "has 24 bytes, but its sizes require 32"),
        (lambda plan: setattr(plan.values[0].val, "dim_order", [0, 0]), r"dim order \[0, 0\]"),
        (lambda plan: setattr(plan.values[0].val, "data_buffer_idx", 2), "constant: index 2 of 2"),
        (lambda plan: setattr(plan.values[1].val.allocation_info, "memory_id", 2), "planned buffer 2 of 2"),
        (lambda plan: setattr(plan.values[13].val, "items", [13]), "TensorList cannot contain value 13"),
        (lambda plan: setattr(plan.values[3], "val", None), "value 3 is empty"),
    ],
)
def test_indices_are_checked(change: Any, message: str) -> None:
    program = small_program()
    change(program.execution_plan[0])
    with pytest.raises(FormatError, match=message):
        pte.read(bytes(pte.write(program, [b"", bytes(24)], [b"", bytes(24)])))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda program: setattr(program.segments[0], "size", 10**6), "segment 0 ends at byte 1000000"),
        (
            lambda program: setattr(program.constant_segment, "segment_index", 9),
            "segment_index: index 9 of 2",
        ),
        (lambda program: setattr(program.constant_segment, "offsets", [0, 10**6]), "has an offset 1000000"),
        (lambda program: program.constant_buffer.append(pte.Buffer(b"again")), "stored twice"),
        (
            lambda program: program.named_data.append(pte.NamedData("name", 2)),
            r"named_data\[0\]: index 2 of 2",
        ),
    ],
)
def test_segments_are_checked(change: Any, message: str) -> None:
    file = pte.read(small_file())
    change(file.program)
    head = flatbuffer.encode(pte.SCHEMA, file.program, reserve=32)
    base = len(head) + -len(head) % 128
    struct.pack_into("<4sIQQQ", head, 8, b"eh00", 32, len(head), base, file.segment_data_size)
    with pytest.raises(FormatError, match=message):
        pte.read(bytes(head) + bytes(base - len(head)) + small_file()[file.segment_base :])


def test_strings_end_with_zero() -> None:
    """C++ readers may rely on it."""
    data = small_file()
    assert data.count(b"forward\0") == 1
    with pytest.raises(FormatError, match="does not end with a zero byte"):
        pte.read(data.replace(b"forward\0", b"forward!"))


def test_overlapping_vectors_are_refused() -> None:
    """In a 40 KB file, 5,000 vectors of 5,000 elements share their bytes: 25 million elements unless the file is refused."""
    tiny = schema.parse('file_identifier "TINY"; table T { v: [int]; } table R { t: [T]; } root_type R;')
    count = 5000
    vtable = struct.pack("<HHH", 6, 8, 4)
    data = bytearray(struct.pack("<I4s", 16, b"TINY") + vtable + b"\0\0")
    tables = 28 + 4 * count
    numbers = tables + 8 * count
    data += struct.pack("<iI", 16 - 8, 4) + struct.pack("<I", count)
    data += struct.pack(f"<{count}I", *[tables + 8 * i - (28 + 4 * i) for i in range(count)])
    for i in range(count):
        at = tables + 8 * i
        data += struct.pack("<iI", at - 8, numbers + 4 * i - (at + 4))
    data += struct.pack("<I", count) * (2 * count + 1)
    with pytest.raises(FormatError, match="overlaps"):
        flatbuffer.decode(tiny, memoryview(data))
