# SPDX-License-Identifier: BSD-3-Clause
# Tests ExecuTorch's names of the Python bindings: each function that loads a program, and the functions of the result.

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torchette.extension.pybindings import portable_lib
from torchette.extension.pybindings.data_loader import PyDataLoader

from torchette.errors import FormatError, InputError, RuntimeLoadError
from torchette.exir import ExecutorchBackendConfig, to_edge
from torchette.format import etdump
from torchette.runtime import Runtime, Verification


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Two(nn.Module):
    def forward(self) -> torch.Tensor:
        return torch.full((2,), 2.0)


X = torch.linspace(-1, 1, 8).reshape(2, 4)
EXPECTED = Net()(X).detach()


def files(folder: Path, external: bool) -> tuple[str, str]:
    """Returns a program with a method of one input and a method without inputs, and its data file."""
    exported = {"forward": torch.export.export(Net(), (X,)), "two": torch.export.export(Two(), ())}
    program = to_edge(exported).to_executorch(ExecutorchBackendConfig(external_constants=external))
    program.save(folder / "net.pte")
    program.write_tensor_data_to_file(folder)
    return str(folder / "net.pte"), str(next(folder.glob("*.ptd"), ""))


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return files(tmp_path_factory.mktemp("whole"), False)[0]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return files(tmp_path_factory.mktemp("parts"), True)


def test_a_tensor_alone_is_the_only_input(model_file: str) -> None:
    module = portable_lib._load_for_executorch(model_file)
    for inputs in (X, [X], (X,)):
        for call in (module, module.forward, lambda inputs: module.run_method("forward", inputs)):
            (result,) = call(inputs)
            assert isinstance(result, torch.Tensor)
            torch.testing.assert_close(result, EXPECTED)
    (array,) = module(X.numpy())
    assert isinstance(array, np.ndarray)
    assert module.method_names() == ["forward", "two"]


def test_results_are_torch_tensors_without_inputs(model_file: str) -> None:
    (result,) = portable_lib._load_for_executorch(model_file).run_method("two")
    assert isinstance(result, torch.Tensor) and result.tolist() == [2, 2]


def test_weights_come_from_a_path_or_from_bytes(parts: tuple[str, str]) -> None:
    program, data = parts
    contents, weights = Path(program).read_bytes(), Path(data).read_bytes()
    loaded = (
        portable_lib._load_for_executorch(program, data),
        portable_lib._load_for_executorch(program, data_path=data),
        portable_lib._load_for_executorch_from_buffer(contents, weights),
        portable_lib._load_program(program, data_path=data).load_method("forward"),
        portable_lib._load_program_from_buffer(contents, data_path=data).load_method("forward"),
        Runtime.get().load_program(program, data_path=data).load_method("forward").execute,
    )
    for method in loaded:
        torch.testing.assert_close(method([X])[0], EXPECTED)
    with pytest.raises(RuntimeLoadError, match="data_files"):
        portable_lib._load_for_executorch(program)(X)
    with pytest.raises(FormatError):
        portable_lib._load_for_executorch_from_buffer(contents, weights[:40])


def test_verification_level_is_used(model_file: str) -> None:
    damaged = bytearray(Path(model_file).read_bytes())
    damaged[4:8] = b"XXXX"
    for level in (Verification.Minimal, Verification.InternalConsistency):
        portable_lib._load_for_executorch(model_file, program_verification=level)
        with pytest.raises(FormatError):
            portable_lib._load_for_executorch_from_buffer(bytes(damaged), program_verification=level)
    with pytest.raises(FormatError, match="no receipt"):
        portable_lib._load_for_executorch(model_file, program_verification=Verification.Integrity)


def test_a_method_runs_in_three_steps(model_file: str) -> None:
    program = portable_lib._load_program(model_file)
    assert [program.get_method_name(i) for i in range(program.num_methods())] == ["forward", "two"]
    with pytest.raises(RuntimeError, match="the program has 2 methods"):
        program.get_method_name(2)
    method = program.load_method("forward")
    with pytest.raises(InputError, match="has not run"):
        method.get_outputs()
    method.set_inputs([X])
    method.execute()
    torch.testing.assert_close(method.get_outputs()[0], EXPECTED)
    assert method.method_meta().input_tensor_meta(0).sizes() == (2, 4)
    assert program.method_meta("two").num_inputs() == 0


def test_state_is_a_tensor() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    config = ExecutorchBackendConfig(emit_mutable_buffer_names=True)
    program = to_edge(torch.export.export(Counter(), (torch.ones(2),))).to_executorch(config)
    method = portable_lib._load_program_from_buffer(program.buffer).load_method("forward")
    method([torch.ones(2)])
    assert torch.equal(method.get_attribute("count"), torch.ones(2))


def test_etdump_is_written(model_file: str, tmp_path: Path) -> None:
    module = portable_lib._load_for_executorch(model_file, None, True, 1 << 16)
    module(X)
    module.write_etdump_result_to_file(str(tmp_path / "net.etdp"), str(tmp_path / "values.bin"))
    assert etdump.load(tmp_path / "net.etdp").run_data[0].events
    assert any(Path(tmp_path / "values.bin").read_bytes())
    # As in ExecuTorch, debug_buffer_size without enable_etdump has no effect.
    assert not portable_lib._load_for_executorch(model_file, debug_buffer_size=64).has_etdump()


def test_runtime_lists_backends_and_operators(model_file: str) -> None:
    assert "aten::add.out" in portable_lib._get_operator_names()
    for name in portable_lib._get_registered_backend_names():
        assert portable_lib._is_available(name)
    assert not portable_lib._is_available("NoSuchBackend")
    before = portable_lib._threadpool_get_thread_count()
    portable_lib._unsafe_reset_threadpool(1)
    assert portable_lib._threadpool_get_thread_count() == 1
    portable_lib._unsafe_reset_threadpool(before)


def test_plan_execute_runs_again_with_the_last_inputs(tmp_path: Path) -> None:
    program, _ = files(tmp_path, False)
    module = portable_lib._load_for_executorch(program)
    with pytest.raises(InputError, match=r"'forward' has no inputs yet: it requires 1 input"):
        module.plan_execute("forward")
    module.forward([X])
    (again,) = module.plan_execute("forward")
    torch.testing.assert_close(again, EXPECTED)


def test_a_data_loader_is_a_program_to_load(tmp_path: Path) -> None:
    program, data = files(tmp_path, True)
    loader = PyDataLoader(program)
    module = portable_lib._load_for_executorch_from_data_loader(loader, data_path=data, enable_etdump=True)
    torch.testing.assert_close(module.forward([X])[0], EXPECTED)
    assert module.has_etdump()


def test_single_input_needs_no_list(tmp_path: Path) -> None:
    program, _ = files(tmp_path, False)
    method = Runtime.get().load_program(program).load_method("forward")
    torch.testing.assert_close(method.execute(X)[0], EXPECTED)
    np.testing.assert_allclose(method.execute(X.numpy())[0], EXPECTED, rtol=1e-5)
    with pytest.raises(
        InputError, match=r"the second argument is the observer[\s\S]*put all inputs into one list"
    ):
        method.execute(X, X)
