# SPDX-License-Identifier: BSD-3-Clause
"""Methods of one program run on a backend in several threads concurrently, under the thread sanitizer."""

from __future__ import annotations

import subprocess
import warnings
from pathlib import Path

import pytest
import torch
from torch.export import export

from tests.backends.xnnpack_cases import HAS_LIBRARY
from tests.building import built
from torchette.backends.null import NullPartitioner
from torchette.backends.xnnpack import XnnpackPartitioner
from torchette.exir import to_edge_transform_and_lower

pytestmark = pytest.mark.safety


class _Sum(torch.nn.Module):
    def forward(self, x):
        return (x + x) * x


@pytest.mark.parametrize("partitioner", [NullPartitioner, XnnpackPartitioner])
def test_concurrent_methods_have_no_data_races(partitioner, tmp_path: Path) -> None:
    if partitioner is XnnpackPartitioner:
        if not HAS_LIBRARY:
            pytest.skip("our kernels share nothing between delegates")
        model, x = (
            # large enough that several threads pack it
            torch.nn.Sequential(
                torch.nn.Linear(8, 2048),
                torch.nn.ReLU(),
                torch.nn.Linear(2048, 2048),
                torch.nn.Linear(2048, 4),
            ),
            torch.ones(3, 8),
        )
    else:
        model, x = _Sum(), torch.ones(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        edge = to_edge_transform_and_lower(export(model.eval(), (x,)), partitioner=partitioner())
    edge.to_executorch().save(tmp_path / "program.pte")
    program = built("torchette_race_backends", tree="tsan")
    done = subprocess.run([program, tmp_path / "program.pte"], capture_output=True, text=True)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel")
    assert done.returncode == 0 and done.stdout == "0 failures\n", done.stdout + done.stderr[-6000:]
