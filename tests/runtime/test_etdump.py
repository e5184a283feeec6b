# SPDX-License-Identifier: BSD-3-Clause
# ETDumps from Python: load_program(enable_etdump=True) and the names of ExecuTorch.

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

import torchette
from torchette.devtools.bundle import BundledModule, BundledProgram, MethodTestCase, MethodTestSuite
from torchette.errors import FormatError, InputError
from torchette.format import etdump
from torchette.runtime import Runtime


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x + y, 0) * y


ARGS = (torch.arange(6.0).reshape(2, 3), torch.full((2, 3), 2.0))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("etdump") / "net.pte"
    path.write_bytes(bytes(torchette.compile(Net(), ARGS)))
    return path


def names(run: Any) -> list[str]:
    return [event.profile_event.name for event in run.events if event.profile_event]


def test_events_and_values(model: Path, tmp_path: Path) -> None:
    program = Runtime.get().load_program(model, enable_etdump=True, debug_buffer_size=10_000)
    method = program.load_method("forward")
    (result,) = method.execute(ARGS)
    program.write_etdump_result_to_file(tmp_path / "a.etdp", tmp_path / "a.bin")
    loading, run = etdump.load(tmp_path / "a.etdp").run_data
    assert names(loading) == ["Method::init"]
    assert names(run) == ["aten::add.out", "aten::cumsum.out", "aten::mul.out", "Method::execute"]
    data = (tmp_path / "a.bin").read_bytes()
    logged = [event.debug_event.debug_entry for event in run.events if event.debug_event]
    assert [value.output for value in logged] == [None, None, None, etdump.Bool(True)]
    expected = [ARGS[0] + ARGS[1], torch.cumsum(ARGS[0] + ARGS[1], 0), result, result]
    for value, tensor in zip(logged, expected, strict=True):
        array = np.frombuffer(data, np.float32, 6, value.tensor.offset).reshape(value.tensor.sizes)
        np.testing.assert_array_equal(array, tensor)
    # the next dump is a new one, with an empty buffer
    method.execute(ARGS)
    program.write_etdump_result_to_file(str(tmp_path / "b.etdp"), str(tmp_path / "b.bin"))
    (run,) = etdump.load(tmp_path / "b.etdp").run_data
    assert run.name == "Execute" and (tmp_path / "b.bin").stat().st_size == len(data)
    with pytest.raises(InputError, match="nothing to write"):
        program.write_etdump_result_to_file(tmp_path / "c.etdp")
    assert not (tmp_path / "c.etdp").exists()


def test_no_values_without_a_debug_buffer(model: Path, tmp_path: Path) -> None:
    program = Runtime.get().load_program(model.read_bytes(), enable_etdump=True)
    program.load_method("forward").execute(ARGS)
    program.write_etdump_result_to_file(tmp_path / "a.etdp", tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == b""
    _, run = etdump.load(tmp_path / "a.etdp").run_data
    assert len(run.events) == 4


def test_values_that_do_not_fit_are_dropped_with_warning(model: Path, tmp_path: Path) -> None:
    program = Runtime.get().load_program(model, enable_etdump=True, debug_buffer_size=100)
    program.load_method("forward").execute(ARGS)
    with pytest.warns(RuntimeWarning, match="2 events or values"):
        program.write_etdump_result_to_file(tmp_path / "a.etdp", tmp_path / "a.bin")
    _, run = etdump.load(tmp_path / "a.etdp").run_data
    assert len(run.events) == 6


def test_wrong_use(model: Path, tmp_path: Path) -> None:
    runtime = Runtime.get()
    for size in (-1, 1.5, True, 1 << 62):
        with pytest.raises(InputError, match="debug buffer"):
            runtime.load_program(model, enable_etdump=True, debug_buffer_size=size)
    with pytest.raises(InputError, match="not enough memory for a debug buffer"):
        runtime.load_program(model, enable_etdump=True, debug_buffer_size=1 << 60)
    with pytest.raises(InputError, match="enable_etdump=True"):
        runtime.load_program(model, debug_buffer_size=10)
    program = runtime.load_program(model)
    assert not program.has_etdump()
    with pytest.raises(InputError, match="enable_etdump=True"):
        program.write_etdump_result_to_file(tmp_path / "a.etdp")
    with pytest.raises(InputError, match="one tracer"):
        runtime.load_program(model, enable_etdump=True).load_method("forward", tracing=True)


def test_threads_write_one_etdump_in_sequence(model: Path, tmp_path: Path) -> None:
    program = Runtime.get().load_program(model, enable_etdump=True)
    methods = [program.load_method("forward") for _ in range(3)]

    def work(method: Any) -> None:
        for _ in range(50):
            method.execute(ARGS)

    threads = [Thread(target=work, args=(method,)) for method in methods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    program.write_etdump_result_to_file(tmp_path / "a.etdp")
    runs = etdump.load(tmp_path / "a.etdp").run_data
    assert [run.name for run in runs] == ["Default"] * 3 + ["Execute"] * 150
    assert all(len(run.events) == 4 for run in runs[3:])


def test_executorch_names(model: Path, tmp_path: Path) -> None:
    from torchette.extension.pybindings.portable_lib import (
        _load_for_executorch,
        _load_for_executorch_from_buffer,
        _load_for_executorch_from_bundled_program,
    )

    bundle = BundledProgram(
        model.read_bytes(), [MethodTestSuite("forward", [MethodTestCase(ARGS, Net()(*ARGS))])]
    )
    loaded = BundledModule(bundle.serialize())
    modules = [
        _load_for_executorch(str(model), enable_etdump=True, debug_buffer_size=1000),
        _load_for_executorch_from_buffer(model.read_bytes(), enable_etdump=True),
        _load_for_executorch_from_bundled_program(loaded, enable_etdump=True),
    ]
    path = tmp_path / "a.etdp"
    for module in modules:
        assert module.has_etdump()
        module.verify_result_with_bundled_expected_output(loaded, "forward", 0)
        module.write_etdump_result_to_file(str(path), str(tmp_path / "a.bin"))
        assert [run.bundled_input_index for run in etdump.load(path).run_data] == [0, 0]
    assert not _load_for_executorch(str(model)).has_etdump()
    with pytest.raises(FormatError, match="is not a data file"):
        _load_for_executorch_from_buffer(model.read_bytes(), b"")
