# SPDX-License-Identifier: BSD-3-Clause
# The arithmetic of Inspectors on synthetic dumps: identity of events, their times, values and locations.

from __future__ import annotations

import io
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from torchette.devtools import ETRecord
from torchette.devtools.inspector import Event, Inspector, PerfData, TimeScale, compare_results
from torchette.errors import (
    FormatError,
    InputError,
    InputTypeError,
    ModelNotFoundError,
    TorchetteError,
    UnsupportedError,
)
from torchette.exir.etrecord import GraphNode
from torchette.format import etdump

MS = 10**6


def timed(name: str, instruction: int, start: int, end: int, part: int = -1, text: str | None = None) -> Any:
    return etdump.Event(
        profile_event=etdump.ProfileEvent(
            name, 0, instruction, part, text, b"\7" if part >= 0 else b"", start, end
        )
    )


def tensor_event(
    instruction: int, offset: int, sizes: list[int], strides: list[int], output: bool = False
) -> Any:
    tensor = etdump.Tensor(etdump.ScalarType.FLOAT, sizes, strides, offset)
    value = etdump.Value(etdump.ValueType.Tensor, tensor=tensor, output=etdump.Bool(output))
    return etdump.Event(debug_event=etdump.DebugEvent(0, instruction, value, name="aten::add.out"))


def run(start: int, took: int, *more: Any, index: int = -1) -> Any:
    events = [
        timed("aten::add.out", 0, start, start + took),
        timed("DELEGATE_CALL", 1, start + took, start + 3 * took),
        timed("conv", 1, start + took, start + 2 * took, part=7),
        timed("", 1, start + 2 * took, start + 3 * took, text="relu #2"),
        *more,
        timed("Method::execute", -1, start, start + 4 * took),
    ]
    return etdump.RunData("Execute", index, [], events)


def dump(*runs: Any) -> bytes:
    load = etdump.RunData("Default", -1, [etdump.Allocator("temp")], [
        timed("Method::init", -1, 0, 5 * MS), etdump.Event(allocation_event=etdump.AllocationEvent(1, 64)),
    ])  # fmt: skip
    return etdump.dumps(etdump.ETDump(0, [load, *runs]))


THREE = dump(run(0, MS), run(9 * MS, 2 * MS), run(20 * MS, 3 * MS))


class Record(ETRecord):
    """A record with synthetic nodes."""

    def nodes(self, graph: str = "", method: str = "forward") -> list[GraphNode]:
        def node(name: str, op: str, handle: int, path: str, line: int) -> GraphNode:
            trace = f'File "/home/me/net.py", line {line}, in forward\n    y = f(x)'
            return GraphNode(
                name, op, handle, trace, {"L__self": ("", "Net"), f"L__self__{path}": (path, "Layer")}
            )

        return [
            node("add", "aten.add.Tensor", 1, "stem", 3),
            node("conv", "aten.convolution.default", 2, "body.conv", 5),
            node("relu", "aten.relu.default", 3, "body.relu", 6),
        ]


def record(operators: Any = None) -> ETRecord:
    return Record(
        edge_dialect_program=object(),
        _debug_handle_map={"forward": {"0": 1, "1": [2, 3]}},
        _delegate_map={"forward": {"1": {"name": "Acme", "delegate_map": {"7": [2], "relu": [3]}}}},
        _instruction_id_to_num_outs_map={"forward": {"1": 2}},
        operators=operators,
    )


def test_equal_runs_are_grouped() -> None:
    loading, block = Inspector(etdump_data=THREE).event_blocks
    assert (loading.name, block.name, loading.allocations) == ("Default", "Execute", [("temp", 64)])
    add, call, conv, relu, method_event = block.events
    assert (
        add.perf_data is not None
        and add.perf_data.raw == [1, 2, 3]
        and add.start_time == [0, 9 * MS, 20 * MS]
    )
    data = add.perf_data
    assert (data.p50, data.avg, data.min, data.max) == (2, 2, 1, 3) and data.p10 == pytest.approx(1.2)
    assert set(data.to_dict()) == {"raw", "p10", "p50", "p90", "avg", "min", "max"} and "3 runs" in repr(data)
    assert (conv.name, conv.part_name, conv.delegate_debug_identifier) == ("7", "conv", 7)
    assert (relu.name, relu.delegate_debug_identifier) == ("relu #2", "relu #2")
    assert [event.is_delegated_op for event in block.events] == [False, False, True, True, False]
    assert (call.instruction, method_event.instruction) == (1, None) and block.bundled_input_index is None
    assert conv.raw_delegate_debug_metadatas == [b"\7"] * 3 and add.raw_delegate_debug_metadatas == []


def test_scales_clocks_and_converters() -> None:
    def raw(data: bytes = THREE, **options: Any) -> list[list[float]]:
        events = Inspector(etdump_data=data, **options).event_blocks[1].events
        return [event.perf_data.raw for event in events if event.perf_data is not None]

    assert raw(target_time_scale=TimeScale.US)[0] == [1000, 2000, 3000]
    assert raw(source_time_scale=TimeScale.US, target_time_scale=TimeScale.S)[0] == [1, 2, 3]
    assert raw(source_time_scale=TimeScale.CYCLES, target_time_scale=TimeScale.CYCLES)[0][0] == MS
    converted = raw(delegate_time_scale_converter=lambda name, time: time / MS * (10 if name == "7" else 1))
    assert converted[0] == [1, 2, 3] and converted[2] == pytest.approx([10, 20, 30]) and converted[3][0] == 1
    with pytest.raises(InputError, match="cycles"):
        raw(source_time_scale=TimeScale.CYCLES)
    # a 32-bit clock that wrapped around, and a clock that ran backwards
    again = dump(etdump.RunData("Execute", -1, [], [timed("aten::add.out", 0, 2**32 - MS, MS)]))
    assert raw(again)[0] == [2]
    back = dump(etdump.RunData("Execute", -1, [], [timed("aten::add.out", 0, 2**40, 1)]))
    with pytest.raises(FormatError, match="before it starts"):
        raw(back)


def test_instruction_in_loop_is_one_event() -> None:
    loop = [timed("aten::add.out", 4, at * MS, (at + 1) * MS) for at in (30, 40, 50)]
    block = Inspector(etdump_data=dump(run(0, MS, *loop), run(90 * MS, MS, *loop[:1]))).event_blocks[1]
    (event,) = (event for event in block.events if event.instruction == 4)
    assert event.perf_data is not None and event.perf_data.raw == [3, 1]


def test_record_provides_modules_and_lines() -> None:
    inspector = Inspector(etdump_data=THREE, etrecord=record())
    add, call, conv, relu, method_event = inspector.event_blocks[1].events
    assert (add.op_types, add.module, add.source) == (["aten.add.Tensor"], "stem", "net.py:3")
    assert (conv.module, conv.source, conv.delegate_backend_name) == ("body.conv", "net.py:5", "Acme")
    assert (relu.module, relu.debug_handles) == ("body.relu", [3])
    assert (call.module, call.source, call.num_outputs) == ("body", "net.py:5 and 1 more", 2)
    assert list(call.stack_traces) == ["conv", "relu"] and call.handles == (2, 3)
    assert method_event.source == "" and method_event.op_types == []
    # the delegate's call is not counted in addition to its parts
    assert inspector.find_total_for_module("body") == 4 and inspector.find_total_for_module("relu") == 2
    assert inspector.find_total_for_module("L__self") == 6 and inspector.find_total_for_module("nobody") == 0
    ops = inspector.get_op_list("Execute")
    assert ops["aten.convolution.default"] == [call, conv]
    assert inspector.get_op_list("Execute", show_delegated_ops=False)["aten.convolution.default"] == [call]
    with pytest.raises(InputError, match="module"):
        Inspector(etdump_data=THREE).find_total_for_module("body")


def test_tables_need_no_pandas() -> None:
    script = (
        "import sys; sys.modules['pandas'] = sys.modules['torch'] = None\n"
        "from torchette.devtools import Inspector\n"
        "inspector = Inspector(etdump_data=sys.stdin.buffer.read())\n"
        "inspector.print_data_tabular()\n"
        "inspector.save_data_to_tsv(sys.stdout)\n"
        "try: inspector.to_dataframe()\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], input=THREE, capture_output=True, check=False)
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert (
        "p50 (ms)" in text
        and "DELEGATE_CALL" in text
        and "\t".join(["0", "Default", "Method::init", "5.0"]) in text
    )
    assert "pip install pandas" in text


def test_dataframes_have_executorch_columns() -> None:
    pytest.importorskip("pandas")
    frame = Inspector(etdump_data=THREE, etrecord=record()).to_dataframe()
    units = [f"{name} (ms)" for name in ("p10", "p50", "p90", "avg", "min", "max")]
    theirs = [
        "event_block_name", "event_name", "raw", *units, "op_types", "delegate_debug_identifier", "stack_traces",
        "module_hierarchy", "is_delegated_op", "delegate_backend_name", "debug_data", "start_time",
    ]  # fmt: skip
    assert list(frame.columns)[: len(theirs)] == theirs
    assert list(frame["p50 (ms)"]) == [5, 2, 4, 2, 2, 8]
    block = Inspector(etdump_data=THREE).event_blocks[1]
    assert "p50" in block.to_dataframe().columns and len(block.events[0].to_dataframe()) == 1
    parsed = Inspector(
        etdump_data=THREE, delegate_metadata_parser=lambda metadata: {"sum": sum(b"".join(metadata))}
    )
    assert list(parsed.to_dataframe(include_delegate_debug_data=True)["sum"].dropna()) == [21]


def test_metadata_parser_must_return_dict() -> None:
    inspector = Inspector(etdump_data=THREE, delegate_metadata_parser=lambda metadata: 5)  # type: ignore[arg-type, return-value]
    with pytest.raises(InputTypeError, match="returned int"):
        inspector.print_data_tabular(io.StringIO(), include_delegate_debug_data=True)


def test_values_come_from_the_debug_buffer() -> None:
    elements = np.arange(12, dtype=np.float32)
    events = [
        tensor_event(0, 8, [2, 3], [3, 1]),
        tensor_event(0, 0, [3, 2], [1, 3]),  # column-major
        tensor_event(-1, 40, [2], [1], output=True),
    ]
    data = dump(run(0, MS, *events, index=0), run(9 * MS, MS, *events, index=0))
    etrecord = record()
    etrecord._reference_outputs = {"forward": [[np.array([1.0, 2.0])]]}
    block = Inspector(etdump_data=data, debug_buffer=elements.tobytes(), etrecord=etrecord).event_blocks[1]
    first, second = block.events[0].debug_data
    np.testing.assert_array_equal(first, elements[2:8].reshape(2, 3))
    np.testing.assert_array_equal(second, elements[:6].reshape(2, 3).T)
    assert block.run_output is not None and block.run_output[0].tolist() == [10, 11]
    assert block.bundled_input_index == 0 and block.reference_output[0].tolist() == [1, 2]
    with pytest.warns(UserWarning, match="no debug buffer"):
        assert Inspector(etdump_data=data).event_blocks[1].events[0].debug_data == []
    with pytest.raises(FormatError, match="debug buffer, which has 30") as caught:
        Inspector(etdump_data=data, debug_buffer=elements.tobytes()[:30])
    assert caught.value.hints
    for sizes, strides in (([2**40], [0]), ([2], [-1]), ([2], [2**50])):
        bomb = dump(run(0, MS, tensor_event(0, 0, sizes, strides)))
        with pytest.raises(FormatError, match="debug buffer") as caught:
            Inspector(etdump_data=bomb, debug_buffer=elements.tobytes())
        assert "aten::add.out" in str(caught.value)
    other_events = [tensor_event(0, 12, [2, 3], [3, 1]), *events[1:]]
    with pytest.warns(UserWarning, match="different values"):
        Inspector(
            etdump_data=dump(run(0, MS, *events), run(9 * MS, MS, *other_events)),
            debug_buffer=elements.tobytes(),
        )


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        ([["aten::add.out"]], "DELEGATE_CALL at instruction 1, but the method has 1 instruction"),
        (
            [["aten::mul.out", "Acme"]],
            "aten::add.out at instruction 0, but the method has aten::mul.out there",
        ),
        (
            [["aten::add.out", "aten::relu.out"]],
            "DELEGATE_CALL at instruction 1, but the method has aten::relu.out there",
        ),
        ([], "chain 0"),
    ],
)
def test_record_of_another_program_raises(operators: Any, message: str) -> None:
    with pytest.raises(InputError, match="dump does not match method 'forward' of this record") as caught:
        Inspector(etdump_data=THREE, etrecord=record({"forward": operators}))
    assert message in str(caught.value) and caught.value.code == "other-program"


def test_the_method_is_found() -> None:
    right, wrong = [["aten::add.out", "Acme"]], [["aten::mul.out"]]
    etrecord = record({"forward": wrong, "encode": right})
    for handle_map in (etrecord._debug_handle_map, etrecord._delegate_map):
        handle_map["encode"] = handle_map["forward"]  # type: ignore[index]
    etrecord._edge = {"forward": None, "encode": None}
    inspector = Inspector(etdump_data=THREE, etrecord=etrecord)
    assert inspector.method == "encode" and inspector.event_blocks[1].events[0].module == "stem"
    with pytest.raises(InputError, match="method 'forward'"):
        Inspector(etdump_data=THREE, etrecord=etrecord, method="forward")
    with pytest.raises(InputError, match="no method 'decode'"):
        Inspector(etdump_data=THREE, etrecord=etrecord, method="decode")


def test_record_without_operators_is_checked_by_names_and_indices() -> None:
    """The form of ExecuTorch's records."""
    other_dump = dump(etdump.RunData("Execute", -1, [], [timed("native_call_mul.out", 0, 0, 5)]))
    with pytest.raises(InputError, match="none of the names of 1 kernel"):
        Inspector(etdump_data=other_dump, etrecord=record())
    longer = dump(run(0, MS, timed("native_call_add.out", 9, 0, 5)))
    with pytest.raises(InputError, match="instruction 9, but the record ends with 1"):
        Inspector(etdump_data=longer, etrecord=record())


def test_invalid_arguments_raise(tmp_path: Any) -> None:
    for kwargs in ({}, {"etdump_path": "a", "etdump_data": b""}):
        with pytest.raises(InputError, match="one dump"):
            Inspector(**kwargs)
    with pytest.raises(InputTypeError, match="etrecord"):
        Inspector(etdump_data=THREE, etrecord=3)  # type: ignore[arg-type]
    for kwargs in (
        {"etrecord": tmp_path / "none"},
        {"debug_buffer_path": tmp_path / "none"},
        {"program": tmp_path / "none"},
    ):
        with pytest.raises(ModelNotFoundError, match="none"):
            Inspector(etdump_data=THREE, **kwargs)
    with pytest.raises(FormatError):
        Inspector(etdump_data=THREE[:-1])
    inspector = Inspector(etdump_data=THREE)
    assert inspector.get_exported_program() is None
    with pytest.raises(InputError, match="requires a record"):
        inspector.calculate_numeric_gap("MSE")
    for call in (inspector.get_vgf_neural_statistics, lambda: inspector.write_tensorboard_artifact("x")):
        with pytest.raises(UnsupportedError):
            call()


def test_mutated_dumps_raise_only_our_errors() -> None:
    data = dump(
        run(0, MS, tensor_event(0, 8, [2, 3], [3, 1])), run(5, MS, tensor_event(0, 8, [2, 3], [3, 1]))
    )
    buffer, dice, refused = bytes(64), random.Random(0), 0
    for _ in range(600):
        mutated = bytearray(data)
        for _ in range(dice.choice((1, 1, 2, 8))):
            mutated[dice.randrange(len(mutated))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        try:
            str(Inspector(etdump_data=bytes(mutated), debug_buffer=buffer, etrecord=record()))
        except TorchetteError:
            refused += 1
        except UserWarning:
            pass
    assert refused > 100, "the mutations do not reach what is checked"


def test_results_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = np.array([1.0, 2.0, 2.0]), np.array([1.0, 2.0, 5.0])
    comparison = compare_results([first, 3], [second, 3])
    assert comparison == {"snr": [0.0, None], "mse": [3.0, None], "cosine_similarity": [0.91, None]}
    assert "mse" in capsys.readouterr().out
    assert compare_results([first], [first], metrics=["snr"]) == {"snr": [float("inf")]}
    for runtime_outputs, message in (
        ([first], "1 output cannot be compared with 2"),
        ([first, second], "cannot be compared|sizes"),
    ):
        with pytest.raises(InputError, match=message):
            compare_results([first, first[:2]], runtime_outputs)
    with pytest.raises(InputError, match="psnr"):
        compare_results([first], [first], metrics=["psnr"])
    assert PerfData([1.0]).p90 == 1


def test_event_of_several_modules_has_common_module() -> None:
    stacks = {path: {path: (path, "Linear")} for path in ("layers.0.mlp.up", "layers.1.mlp.up")}
    assert Event("call", module_hierarchy=stacks).module == "layers"
