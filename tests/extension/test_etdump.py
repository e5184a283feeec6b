# SPDX-License-Identifier: BSD-3-Clause
# Tests the dumps of ETDumpGen from a C++ program (on the heap, in buffers of many sizes, with values in a buffer and in a file) and
# from executor_runner.

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.building import built, run
from torchette.format import etdump

NAMES = ["aten::add.out", "aten::cumsum.out", "aten::mul.out"]
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip("torch")
    import torchette

    class Net(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return torch.cumsum(x + y, 0) * y

    path = tmp_path_factory.mktemp("etdump") / "net.pte"
    path.write_bytes(bytes(torchette.compile(Net(), (torch.ones(2, 3), torch.ones(2, 3)))))
    return path


@pytest.fixture(scope="module")
def dumps(model: Path) -> Path:
    """Returns the folder with the files that the program writes."""
    folder = model.parent / "dumps"
    folder.mkdir()
    assert run(built("torchette_etdump_test"), model, folder).stdout == "done\n"
    return folder


def profiles(run_data: Any) -> list[Any]:
    return [event.profile_event for event in run_data.events if event.profile_event is not None]


def values(run_data: Any) -> list[Any]:
    return [event.debug_event for event in run_data.events if event.debug_event is not None]


def elements(value: Any, data: bytes) -> np.ndarray:
    tensor = value.tensor
    assert tensor.scalar_type == etdump.ScalarType.FLOAT and tensor.strides == [3, 1]
    return np.frombuffer(data, np.float32, math.prod(tensor.sizes), tensor.offset).reshape(tensor.sizes)


def check_runs(dump: Any, executions: int) -> None:
    loading, *runs = dump.run_data
    assert loading.name == "Default" and [run_data.name for run_data in profiles(loading)] == ["Method::init"]
    assert [allocator.name for allocator in loading.allocators] == ["temp"]
    assert [run_data.name for run_data in runs] == ["Execute"] * executions
    before = profiles(loading)[0].end_time
    for run_data in runs:
        assert run_data.bundled_input_index == -1
        *kernels, method_event = profiles(run_data)
        assert [event.name for event in kernels] == NAMES
        assert [(event.chain_index, event.instruction_id) for event in kernels] == [(0, 0), (0, 1), (0, 2)]
        assert (method_event.name, method_event.chain_index, method_event.instruction_id) == (
            "Method::execute",
            -1,
            -1,
        )
        times = [
            before,
            method_event.start_time,
            *(t for event in kernels for t in (event.start_time, event.end_time)),
            method_event.end_time,
        ]
        assert times == sorted(times)
        before = method_event.end_time


def test_runs_are_in_the_file(dumps: Path) -> None:
    check_runs(etdump.load(dumps / "heap.etdp"), 3)
    check_runs(etdump.load(dumps / "again.etdp"), 1)


def test_small_buffer_contains_a_valid_dump(dumps: Path) -> None:
    sizes = {}
    for path in dumps.glob("static-*.etdp"):
        size, dropped = map(int, path.stem.split("-")[1:])
        dump = etdump.load(path)
        num_events = sum(len(run_data.events) + len(run_data.allocators) for run_data in dump.run_data)
        sizes[size] = num_events
        if dropped == 0:
            check_runs(dump, 2)
        else:
            # The dump contains the first events.
            assert num_events + dropped == 10
            there = [event.name for event in profiles(dump.run_data[-1]) if dump.run_data[1:]]
            assert there == [*NAMES, "Method::execute"][: len(there)]
    assert min(sizes.values()) == 0 and max(sizes.values()) == 10
    assert [sizes[size] for size in sorted(sizes)] == sorted(sizes.values()), "more room holds more events"


def test_dump_contains_all_kinds_of_events(dumps: Path) -> None:
    block, empty = etdump.load(dumps / "told.etdp").run_data
    data = (dumps / "told.bin").read_bytes()
    assert (block.name, block.bundled_input_index) == ("block", 4)
    assert (empty.name, empty.bundled_input_index, empty.events) == ("empty", -1, [])
    assert [allocator.name for allocator in block.allocators] == ["temp", "other"]
    (allocation,) = [event.allocation_event for event in block.events if event.allocation_event]
    assert (allocation.allocator_id, allocation.allocation_size) == (2, 100)
    number, text, both, call = profiles(block)
    assert (number.delegate_debug_id_int, number.delegate_debug_id_str) == (3, None)
    assert number.delegate_debug_metadata == b"meta" and number.name is None
    assert (text.delegate_debug_id_int, text.delegate_debug_id_str, text.name) == (-1, "by name", None)
    assert (both.delegate_debug_id_int, both.name) == (5, "conv")
    assert (both.start_time, both.end_time) == (1000, 1010)
    assert call.name == "DELEGATE_CALL" and call.delegate_debug_id_int == -1
    assert {(logged.chain_index, logged.instruction_id) for logged in (number, text, both, call)} == {(1, 7)}
    tensor, pair, integer, truth, real, scalar, output = values(block)
    assert tensor.delegate_debug_id_int == 1 and tensor.debug_entry.output is None
    assert tensor.debug_entry.tensor.sizes == [3, 2] and tensor.debug_entry.tensor.strides == [2, 1]
    assert pair.delegate_debug_id_str == "pair"
    first, second = pair.debug_entry.tensor_list.tensors
    assert (first.sizes, second.sizes) == ([3, 2], [6])
    assert np.frombuffer(data, np.float32, 6, first.offset).tolist() == X.ravel().tolist()
    assert np.frombuffer(data, np.float32, 6, second.offset).tolist() == [1] * 6
    assert integer.debug_entry.int_value.int_val == 41
    assert truth.debug_entry.bool_value.bool_val is True
    assert real.debug_entry.double_value.double_val == 0.25
    assert scalar.debug_entry.int_value.int_val == -3 and scalar.name == "DELEGATE_CALL"
    assert scalar.debug_entry.output is None
    assert output.debug_entry.output.bool_val is True and output.chain_index == 2**64 - 1


def test_values_are_those_of_the_instructions(dumps: Path) -> None:
    expected = [X + 1, np.cumsum(X + 1, 0), np.cumsum(X + 1, 0), np.cumsum(X + 1, 0)]
    _, *runs = etdump.load(dumps / "values.etdp").run_data
    data = (dumps / "values.bin").read_bytes()
    for run_data in runs:
        logged = values(run_data)
        assert [event.name for event in logged] == [*NAMES, None]
        assert [event.debug_entry.output for event in logged] == [None, None, None, etdump.Bool(True)]
        for event, expected_values in zip(logged, expected, strict=True):
            np.testing.assert_array_equal(elements(event.debug_entry, data), expected_values)


def test_values_beyond_the_buffer_are_dropped(dumps: Path) -> None:
    _, *runs = etdump.load(dumps / "outputs.etdp").run_data
    data = (dumps / "outputs.bin").read_bytes()
    assert [len(values(run_data)) for run_data in runs] == [1, 1, 0]
    assert [[event.name for event in profiles(run_data)] for run_data in runs] == [["Method::execute"]] * 3
    for run_data in runs[:2]:
        np.testing.assert_array_equal(elements(values(run_data)[0].debug_entry, data), np.cumsum(X + 1, 0))


def test_an_event_belongs_to_one_dump(dumps: Path) -> None:
    for name in ("late", "later"):
        (run_data,) = etdump.load(dumps / f"{name}.etdp").run_data
        assert run_data.events == []


def test_executor_runner(model: Path, tmp_path: Path) -> None:
    X.tofile(tmp_path / "x.bin")
    runner = [built("executor_runner"), "--model_path", model, "--inputs", f"{tmp_path / 'x.bin'},"]
    path, data = tmp_path / "a.etdp", tmp_path / "a.bin"
    run(*runner, "--etdump_path", path, "--num_executions", "3")
    check_runs(etdump.load(path), 3)
    run(*runner, "--etdump_path", path, "--dump_intermediate_outputs", f"--debug_output_path={data}")
    logged = values(etdump.load(path).run_data[1])
    assert len(logged) == 4
    np.testing.assert_array_equal(elements(logged[3].debug_entry, data.read_bytes()), np.cumsum(X + 1, 0))
    run(
        *(*runner, "--etdump_path", path, "--dump_outputs", "--num_executions", "2"),
        *(f"--debug_output_path={data}", "--debug_buffer_size", "24"),
    )
    _, first, second = etdump.load(path).run_data
    assert [len(values(first)), len(values(second))] == [1, 0] and data.stat().st_size == 24


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--etdump_path", "/none/at/all"], "cannot write"),
        (["--dump_outputs"], "need --etdump_path"),
        (["--etdump_path", "a", "--trace_path", "b"], "cannot be combined with"),
        (["--etdump_path", "a", "--dump_outputs", "--debug_buffer_size", "0"], "integer of at least 1"),
        (["--etdump_path", "a", "--dump_outputs", "--debug_output_path", "/none/b"], "cannot write"),
    ],
)
def test_invalid_runner_options_are_errors(
    model: Path, words: list[str], message: str, tmp_path: Path
) -> None:
    done = run(built("executor_runner"), "--model_path", model, *words, status=2, cwd=tmp_path)
    assert message in done.stderr


def test_dump_contains_the_index_of_the_bundled_case(model: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torchette.devtools.bundle import BundledProgram, MethodTestCase, MethodTestSuite

    x, y = torch.from_numpy(X), torch.ones(2, 3)
    cases = [MethodTestCase((x * i, y), (torch.cumsum(x * i + y, 0),)) for i in range(2)]
    bundle = BundledProgram(model.read_bytes(), [MethodTestSuite("forward", cases)])
    (tmp_path / "a.bpte").write_bytes(bundle.serialize())
    path = tmp_path / "a.etdp"
    run(
        built("executor_runner"),
        "--model_path",
        tmp_path / "a.bpte",
        "--testset_idx",
        "1",
        "--etdump_path",
        path,
    )
    assert [run_data.bundled_input_index for run_data in etdump.load(path).run_data] == [-1, 1]
