# SPDX-License-Identifier: BSD-3-Clause
# Tests the memory of planned buffers: which parts of large state and of tensors of dynamic shape become resident.

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from torchette.exir import ExecutorchBackendConfig, to_edge  # noqa: E402
from torchette.exir.config import DynamicMemoryPlanningMode  # noqa: E402
from torchette.exir.memory.plan_memory import MemoryPlanningPass  # noqa: E402
from torchette.runtime import Runtime  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

ROWS, WIDTH = 1 << 16, 256  # a state of 64 MiB
STATE = ROWS * WIDTH * 4

# Prints the anonymous resident bytes that each line of the program adds to those before the first line.
_MEASURE = """
import re, sys
import numpy as np
from torchette.runtime import Runtime

def resident():
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1])

path, names = sys.argv[1], sys.argv[2].split(",")
program = Runtime.get().load_program(path)
row, position = np.ones((1, 256), np.float32), np.array([3])
first = resident()
"""


def resident(path: Path, lines: str, *names: str) -> list[int]:
    """Runs lines of Python that print resident bytes, in a new process."""
    script = _MEASURE + lines
    command = [sys.executable, "-c", script, str(path), ",".join(names)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    return [int(each) for each in re.findall(r"-?\d+", output)]


class Cache(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(ROWS, WIDTH))


class Write(Cache):
    def forward(self, row, position):
        self.cache.index_copy_(0, position, row)
        return row + 1


class Read(Cache):
    def forward(self, row, position):
        return self.cache.index_select(0, position) + row


def example() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(1, WIDTH), torch.tensor([3])


def two_methods(path: Path) -> Path:
    methods = {
        name: torch.export.export(each, example()) for name, each in (("write", Write()), ("read", Read()))
    }
    config = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True))
    path.write_bytes(to_edge(methods).to_executorch(config).buffer)
    return path


def test_unused_positions_of_a_cache_are_not_resident(tmp_path: Path) -> None:
    path = torchette.compile(Write().eval(), example(), backend="portable").save(tmp_path / "cache.pte")
    lines = """
method = program.load_method("forward")
print(resident() - first)
method.execute((row, position))
print(resident() - first)
method.reset()
print(resident() - first)
"""
    assert path.stat().st_size < STATE / 8
    loaded, used, reset = resident(path, lines)
    assert loaded < STATE / 8
    assert used < STATE / 8
    assert reset < STATE / 8


def test_methods_that_share_a_cache_do_not_touch_it_at_load(tmp_path: Path) -> None:
    path = two_methods(tmp_path / "shared.pte")
    lines = """
write = program.load_method("write")
write.execute((row, position))
read = program.load_method("read")
print(int(read.execute((row, position))[0][0, 0]), resident() - first)
read.reset()
print(int(read.execute((row, position))[0][0, 0]), resident() - first)
"""
    assert path.stat().st_size < STATE / 8
    before, loaded, after, reset = resident(path, lines)
    assert (before, after) == (2, 1)
    assert loaded < STATE / 8
    assert reset < STATE / 8


@pytest.mark.parametrize("first", [0, 7])
def test_large_state_is_shared_and_reset(first: float) -> None:
    """The buffers are larger than the arenas of the heap."""

    class Bias(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.full((1 << 17,), float(first)))

    class Add(Bias):
        def forward(self, x):
            self.state.add_(x)
            return self.state + 0

    class Sum(Bias):
        def forward(self, x):
            return self.state.sum() + x

    methods = {
        name: torch.export.export(each, (torch.ones(1),)) for name, each in (("add", Add()), ("sum", Sum()))
    }
    config = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True))
    program = Runtime.get().load_program(to_edge(methods).to_executorch(config).buffer)
    add = program.load_method("add")
    assert set(add.execute((torch.ones(1),))[0].tolist()) == {first + 1}
    total = program.load_method("sum")
    assert total.execute((torch.zeros(1),))[0].tolist() == [(first + 1) * (1 << 17)]
    assert set(add.execute((torch.ones(1),))[0].tolist()) == {first + 2}
    add.reset()
    assert total.execute((torch.zeros(1),))[0].tolist() == [first * (1 << 17)]


def test_planned_memory_of_maximum_sizes_is_resident_as_far_as_a_call_uses_it(tmp_path: Path) -> None:
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Sigmoid())]
    config = ExecutorchBackendConfig(dynamic_memory_planning_mode=DynamicMemoryPlanningMode.UPPER_BOUND)
    shapes = ({0: torch.export.Dim("rows", min=1, max=ROWS)},)
    model = torchette.compile(
        torch.nn.Sequential(*layers).eval(), (torch.ones(16, WIDTH),), dynamic_shapes=shapes, config=config
    )
    assert model.planned_bytes >= 2 * STATE
    lines = """
method = program.load_method("forward")
results = [method.execute((np.ones((16, 256), np.float32),)) for _ in range(4)]
print(resident() - first)
"""
    (used,) = resident(model.save(tmp_path / "dynamic.pte"), lines)
    # Huge pages would make 2 MiB of each tensor resident.
    assert used < 2 << 20
