# SPDX-License-Identifier: BSD-3-Clause
# One program in several threads, and one execution on several threads: the results are those of one thread.

from __future__ import annotations

import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from torchette.errors import ExecutionError, InputError  # noqa: E402
from torchette.exir import ExecutorchBackendConfig  # noqa: E402
from torchette.runtime import Program, Runtime  # noqa: E402


class Towers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(128, 128), torch.nn.Linear(128, 128)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        left, right = torch.relu(self.left(x)), torch.sigmoid(self.right(x))
        return left @ left.t() + right @ right.t() + self.calls


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    model = torchette.compile(
        Towers().eval(), (torch.ones(32, 128),), config=ExecutorchBackendConfig(parallel=2)
    )
    assert any("2 chains" in note for note in model.report().notes("split_chains"))
    return Runtime.get().load_program(model.program.buffer)


def _inputs(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((32, 128), dtype=np.float32)


def test_eight_threads_with_a_method_each(program: Program) -> None:
    expected = [program.load_method("forward").execute([_inputs(i)])[0] for i in range(8)]

    def serve(i: int) -> bool:
        method = program.load_method("forward", threads=1 + i % 2)
        first = method.execute([_inputs(i)])[0]
        later = [method.execute([_inputs(i)])[0] for _ in range(10)]
        counted = all(np.allclose(each, first + 1 + k, atol=1e-3) for k, each in enumerate(later))
        return np.array_equal(first, expected[i]) and counted

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(serve, range(8)))


def test_methods_share_weights(tmp_path: Path) -> None:
    """The weights have 64 MB. Each further method needs only its planned memory."""
    file = tmp_path / "wide.pte"
    torchette.compile(torch.nn.Linear(4096, 4096).eval(), (torch.ones(1, 4096),)).save(file)
    program, x = Runtime.get().load_program(file), np.ones((1, 4096), np.float32)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    first = program.load_method("forward")
    expected = np.array(first.execute([x])[0])
    before = resident()
    with ThreadPoolExecutor(8) as pool:
        methods = list(pool.map(lambda _: program.load_method("forward"), range(8)))
        results = list(pool.map(lambda method: np.array(method.execute([x])[0]), methods))
    assert all(np.array_equal(result, expected) for result in results)
    assert resident() - before < 16 << 20


def test_two_threads_compute_equal_bits(program: Program) -> None:
    one, two = program.load_method("forward"), program.load_method("forward", threads=2)
    for seed in range(50):
        assert np.array_equal(one.execute([_inputs(seed)])[0], two.execute([_inputs(seed)])[0])
    two.reset()
    assert np.array_equal(
        two.execute([_inputs(0)])[0], program.load_method("forward").execute([_inputs(0)])[0]
    )


def test_cancelled_threaded_execution_does_not_affect_next(program: Program) -> None:
    method = program.load_method("forward", threads=2)
    method.cancel()
    with pytest.raises(ExecutionError, match="cancelled"):
        method.execute([_inputs(0)])
    method.reset()
    assert np.array_equal(
        method.execute([_inputs(0)])[0], program.load_method("forward").execute([_inputs(0)])[0]
    )


def test_zero_threads_is_refused(program: Program) -> None:
    with pytest.raises(InputError, match="threads must be an integer of at least 1, got 0"):
        program.load_method("forward", threads=0)


FORK = """
import os, sys, threading, time
import numpy as np
import torchette
from torchette.errors import ExecutionError

path, rounds = sys.argv[1], int(sys.argv[2])
model, x = torchette.load(path, threads=2), np.ones((32, 128), np.float32)
running = True

def run():
    while running:
        model(x)

thread = threading.Thread(target=run)
thread.start()
outcomes = []
for i in range(rounds):
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        try:
            (model if i % 2 else torchette.load(path, threads=2))(x)
        except ExecutionError as error:
            os._exit(3 if "load the method again in the child" in str(error) else 4)
        os._exit(0)
    end = time.time() + 120
    while (status := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.time() > end:
            os.kill(child, 9)
        time.sleep(0.005)
    outcomes.append(os.waitstatus_to_exitcode(status[1]))
running = False
thread.join()
print(*outcomes)
"""


def test_forked_child_does_not_wait_for_parent_threads(tmp_path: Path) -> None:
    path = tmp_path / "towers.pte"
    config = ExecutorchBackendConfig(parallel=2)
    torchette.compile(Towers().eval(), (torch.ones(32, 128),), config=config).save(path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, path, "30"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    outcomes = [int(one) for one in done.stdout.split()]
    assert len(outcomes) == 30 and set(outcomes) <= {0, 3} and set(outcomes[::2]) == {0}
