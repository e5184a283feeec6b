# SPDX-License-Identifier: BSD-3-Clause
# Runs chains of a method in parallel in C++: with all kernels, and without kernels under the thread sanitizer.

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.building import built, run

pytestmark = pytest.mark.usefixtures("portable_plan")

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from torchette.backends.null import NullPartitioner  # noqa: E402
from torchette.exir import ExecutorchBackendConfig  # noqa: E402
from torchette.exir.delegation.cost import cost  # noqa: E402


class Squares(torch.nn.Module):
    def forward(self, x, y):
        return x * x, y * y


class Towers(torch.nn.Module):
    """A stem, two parallel towers of many layers, and a join."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.towers = torch.nn.ModuleList(
            torch.nn.Sequential(
                *(layer for _ in range(4) for layer in (torch.nn.Conv2d(16, 16, 3, padding=1), act))
            )
            for act in (torch.nn.ReLU(), torch.nn.Sigmoid())
        )

    def forward(self, x):
        x = self.stem(x)
        return torch.cat([tower(x) for tower in self.towers], 1).mean((2, 3))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("parallel")
    delegates, kernels = folder / "delegates.pte", folder / "kernels.pte"
    # Two shapes, because a delegate of the null backend supports one.
    inputs = (torch.ones(3, 50), torch.ones(2, 70))
    torchette.compile(
        Squares(), inputs, backend=NullPartitioner(), config=ExecutorchBackendConfig(parallel=2)
    ).save(delegates)
    torch.manual_seed(0)
    torchette.compile(
        Towers().eval(), (torch.randn(1, 3, 24, 24),), config=ExecutorchBackendConfig(parallel=2)
    ).save(kernels)
    return delegates, kernels


def test_parallel_chains_are_bitwise_equal(programs: tuple[Path, Path]) -> None:
    output = run(built("torchette_parallel_test"), *programs).stdout
    assert re.search(r"\d{2,} checks, 0 failures", output)


@pytest.mark.safety
def test_parallel_chains_have_no_data_races(programs: tuple[Path, Path]) -> None:
    program = built("torchette_race_chains", tree="tsan")
    done = subprocess.run([program, programs[0]], capture_output=True, text=True)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel")
    assert done.returncode == 0 and "0 failures" in done.stdout, done.stdout + done.stderr


def test_cost_of_a_call_counts_multiplications_and_elements() -> None:
    program = torch.export.export(torch.nn.Linear(8, 4).eval(), (torch.ones(2, 8),))
    node = next(node for node in program.graph.nodes if node.op == "call_function")
    assert cost(node) == 2 * 8 * 4 + 2 * 8 + 8 * 4 + 4 + 2 * 4
