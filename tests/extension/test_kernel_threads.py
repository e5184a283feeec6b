# SPDX-License-Identifier: BSD-3-Clause
"""Tests the thread pool for loops of kernels under the thread sanitizer: methods in parallel, chains in parallel with loops, and
the number of threads of a loop."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import torchette
from tests.building import built
from torchette.exir import ExecutorchBackendConfig

pytestmark = pytest.mark.safety


class _Towers(nn.Module):
    """Two chains of convolutions and a join."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3, groups=24))
        self.right = nn.Sequential(nn.Conv2d(3, 24, 5), nn.SiLU())
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm((self.left(x) + self.right(x)).flatten(2).transpose(1, 2))
        return self.head(nn.functional.scaled_dot_product_attention(y, y, y))


def test_kernel_threads_have_no_data_races(tmp_path: Path) -> None:
    paths = []
    for chains in (1, 2):
        config = ExecutorchBackendConfig(parallel=chains)
        model = torchette.compile(_Towers().eval(), (torch.ones(1, 3, 20, 20),), backend="cpu", config=config)
        paths.append(model.save(tmp_path / f"{chains}.pte"))
    program = built("torchette_race_kernels", tree="tsan")
    done = subprocess.run([program, *paths], capture_output=True, text=True)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel")
    assert done.returncode == 0 and ", 0 failures" in done.stdout, done.stdout + done.stderr[-6000:]
