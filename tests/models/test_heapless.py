# SPDX-License-Identifier: BSD-3-Clause
# The C++ runtime runs every reference model from static memory of exactly the billed size. The program ends if malloc
# is called. Its results equal eager; with one byte less in any pool, it returns an error that states the required size.

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import torchette
from tests.building import built
from tests.models import artifacts, branching
from tests.models.artifacts import each_kind_of_model
from tests.sweep import sweep
from torchette.backends.null import NullPartitioner
from torchette.devtools.device_memory import Bill, bills
from torchette.exir import ExecutorchBackendConfig, to_edge
from torchette.exir.memory.plan_memory import MemoryPlanningPass


@pytest.fixture(scope="module")
def heapless() -> Path:
    return built("torchette_heapless")


class Heapless:
    """Runs the program with a model's file, its inputs and given pool sizes."""

    def __init__(self, program: Path, file: bytes, inputs: list[np.ndarray], folder: Path) -> None:
        self._command = [program, folder / "model.pte", folder / "inputs", folder / "outputs"]
        self._command[1].write_bytes(file)
        self._command[2].write_bytes(b"".join(array.tobytes() for array in inputs))

    def __call__(self, method: int, temp: int | str, *planned: int) -> tuple[bytes, str]:
        """Returns the outputs and the messages; the outputs are empty if the program fails. `temp` is "-" without a
        temp allocator, or "heap" without one on a platform with memory."""
        command = [*self._command, *map(str, (method, temp, *planned))]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stderr
        return (self._command[3].read_bytes() if done.returncode == 0 else b"", done.stderr)

    def loads(self, method: int, *planned: int) -> tuple[bool, str]:
        """Returns whether the method can be loaded, and the messages."""
        command = [*self._command[:2], "-", self._command[3], *map(str, (method, 0, *planned))]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode == 0, done.stderr


def _prepared(name: str, heapless: Path, folder: Path) -> tuple[Heapless, Bill]:
    file = artifacts.our_file(name)
    (bill,) = bills(file)
    return Heapless(heapless, file, [tensor.numpy() for tensor in artifacts.args(name)], folder), bill


@each_kind_of_model
def test_billed_bytes_are_sufficient_and_minimal(name: str, heapless: Path, tmp_path: Path) -> None:
    run, bill = _prepared(name, heapless, tmp_path)
    assert bill.temp is not None and not bill.temp.unknown
    method, most, least = bill.method, bill.temp.most, bill.temp.least
    for temp in {most, least}:
        output, messages = run(method, temp, *bill.planned)
        assert output, messages
        expected = artifacts.eager(name)
        result = np.frombuffer(output, np.float32).reshape(expected.shape).copy()
        artifacts.assert_equal_to_eager(result, name)

    # torchette/devtools/device_memory.py and method_load.cpp must agree on every allocation.
    output, messages = run(method - 1, most, *bill.planned)
    assert not output and f"at least {method} are needed\n" in messages, messages
    if least:
        output, messages = run(method, least - 1, *bill.planned)
        assert not output and f"at least {least} are needed\n" in messages, messages
        assert f"instruction {bill.temp.instruction} " in messages
    for index, size in enumerate(bill.planned):
        planned = [*bill.planned[:index], size - 1, *bill.planned[index + 1 :]]
        output, messages = run(method, most, *planned)
        assert (
            not output and f"planned buffer {index} has {size - 1} bytes, the method needs {size}" in messages
        )


def _assert_loads_in_the_billed_bytes(heapless: Path, file: bytes, folder: Path) -> None:
    (bill,) = bills(file, temp=False)
    program = Heapless(heapless, file, [], folder)
    loads, messages = program.loads(bill.method, *bill.planned)
    assert loads, messages
    loads, messages = program.loads(bill.method - 1, *bill.planned)
    assert not loads and f"at least {bill.method} are needed\n" in messages, messages


@pytest.mark.parametrize("name", sweep(branching.CASES, "cond", "scan", "nested_while", "map_in_cond"))
def test_control_flow_loads_in_the_billed_bytes(name: str, heapless: Path, tmp_path: Path) -> None:
    module, inputs = branching.build(name)
    _assert_loads_in_the_billed_bytes(heapless, torchette.compile(module, inputs[0]).program.buffer, tmp_path)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("digits", "keyword_spotting")],
)
def test_the_peers_files_load_in_the_billed_bytes(name: str, heapless: Path, tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    _assert_loads_in_the_billed_bytes(heapless, artifacts.peer_file(name), tmp_path)


class _Delegated(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh((x + y) * y) * y + x


def test_method_pool_memory_of_backends_is_billed(heapless: Path, tmp_path: Path) -> None:
    inputs = (torch.ones(3, 5), torch.ones(3, 5))
    model = torchette.compile(_Delegated(), inputs, backend=NullPartitioner())
    (bill,) = bills(model.program.buffer)
    (elsewhere,) = bills(model.program.buffer, "riscv64", temp=False)
    assert bill.backends == ["NullBackend"] * 2 and bill.backends_counted
    assert not elsewhere.backends_counted and elsewhere.method < bill.method
    _assert_loads_in_the_billed_bytes(heapless, model.program.buffer, tmp_path)


def test_a_model_in_strips_runs_in_the_billed_bytes(heapless: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 4, 3, 4, 1)
    )
    x = torch.randn(1, 3, 32, 32)
    planned = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass())
    (total,) = bills(torchette.compile(module.eval(), (x,), config=planned).program.buffer)
    ram = total.ram - sum(total.planned) // 2
    model = torchette.compile(module, (x,), config=planned, device=torchette.Device(ram=ram, fit=True))
    (bill,) = bills(model.program.buffer)
    assert bill.temp is not None and bill.ram <= ram
    run = Heapless(heapless, model.program.buffer, [x.numpy()], tmp_path)
    output, messages = run(bill.method, bill.temp.most, *bill.planned)
    assert output, messages
    result = torch.frombuffer(bytearray(output), dtype=torch.float32).reshape(1, 4, 8, 8)
    torch.testing.assert_close(result, module(x), rtol=1e-4, atol=1e-5)
    output, messages = run(bill.method - 1, bill.temp.most, *bill.planned)
    assert not output and f"at least {bill.method} are needed\n" in messages
    output, messages = run(bill.method, bill.temp.most, *[size - 1 for size in bill.planned])
    assert not output and f"the method needs {bill.planned[0]}" in messages


def test_optional_scratch_memory_is_denied_with_one_byte_less(heapless: Path, tmp_path: Path) -> None:
    run, bill = _prepared("resnet18", heapless, tmp_path)
    if bill.temp is None or bill.temp.least == bill.temp.most:
        pytest.skip("on this CPU no kernel has a slower algorithm with less memory")
    _, messages = run(bill.method, bill.temp.most, *bill.planned)
    assert "too small" not in messages
    output, messages = run(bill.method, bill.temp.most - 1, *bill.planned)
    assert output and f"at least {bill.temp.most} are needed\n" in messages


class _Scratch(torch.nn.Module):
    """Operators with kernels that use scratch memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.grouped = torch.nn.Conv2d(8, 8, 3, stride=2, groups=4)
        self.transposed = torch.nn.ConvTranspose2d(8, 4, 3, stride=2)
        self.line = torch.nn.Conv1d(8, 8, 3)
        self.norm = torch.nn.GroupNorm(2, 8)
        self.linear = torch.nn.Linear(24, 16)
        self.lstm = torch.nn.LSTM(24, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x[0]
        square = rows[0, :, :16]
        functional = torch.nn.functional
        return (
            self.conv(x),
            self.grouped(x),
            self.transposed(x),
            self.line(rows[:, 0].unsqueeze(0)),
            self.norm(x),
            self.linear(rows),
            self.lstm(rows)[0],
            rows.transpose(1, 2) @ rows,
            square.t() @ square.t(),
            torch.softmax(x.transpose(1, 3), 1),
            functional.scaled_dot_product_attention(x, x, x),
            functional.interpolate(x, scale_factor=1.5, mode="bicubic"),
            functional.interpolate(x, size=(5, 7), mode="bilinear", antialias=True),
            *torch.sort(x.transpose(1, 3), 1),
            *torch.topk(x, 5),
            *torch.kthvalue(x, 3),
            torch.median(x),
            torch.cumsum(x, 1),
            torch.fft.rfft(x, dim=-1).abs(),
            torch.linalg.inv_ex(square @ square.t() + torch.eye(16))[0],
        )


def _scratch_program(backend: str) -> bytes:
    x = torch.randn(1, 8, 16, 24)
    planned = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass())
    if backend == "engine":
        return torchette.compile(_Scratch().eval(), (x,), config=planned).program.buffer
    return to_edge(torch.export.export(_Scratch().eval(), (x,))).to_executorch(planned).buffer


@pytest.mark.parametrize("backend", ["engine", "portable"])
def test_without_a_temp_allocator_kernels_find_scratch_memory(
    backend: str, heapless: Path, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    x = torch.randn(1, 8, 16, 24)
    file = _scratch_program(backend)
    (bill,) = bills(file)
    assert bill.temp is not None and bill.temp.most > 10_000
    run = Heapless(heapless, file, [x.numpy()], tmp_path)
    tail = bill.method + bill.temp.most + 64
    for method, temp in ((bill.method, "heap"), (tail, "-")):
        output, messages = run(method, temp, *bill.planned)
        assert output, messages
        at = 0
        for expected in _Scratch().eval()(x):
            result = torch.frombuffer(
                bytearray(output[at : at + expected.nbytes]), dtype=expected.dtype
            ).reshape(expected.shape)
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
            at += expected.nbytes
        assert at == len(output)
    output, messages = run(bill.method, "-", *bill.planned)
    assert not output and "no scratch memory" in messages


def test_faults_are_errors_without_a_heap(heapless: Path, tmp_path: Path) -> None:
    run, bill = _prepared("digits", heapless, tmp_path)
    (tmp_path / "model.pte").write_bytes(artifacts.our_file("digits")[:-5000])
    output, messages = run(bill.method, 0, *bill.planned)
    assert not output and "error 0x23" in messages
