# SPDX-License-Identifier: BSD-3-Clause
# A program with two methods, which the C++ tests of this folder run.

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def two_methods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """relu(x @ ones) as `forward`, x + x as `twice`, whose input and output no plan has."""
    torch = pytest.importorskip("torch")
    from torchette.exir import ExecutorchBackendConfig, to_edge
    from torchette.exir.memory.plan_memory import MemoryPlanningPass

    class Forward(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x @ torch.ones(3, 4))

    class Twice(torch.nn.Module):
        def forward(self, x):
            return x + x

    methods = {
        "forward": torch.export.export(Forward(), (torch.ones(2, 3),)),
        "twice": torch.export.export(Twice(), (torch.ones(3),)),
    }
    unplanned = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    config = ExecutorchBackendConfig(
        memory_planning_pass={"forward": MemoryPlanningPass(), "twice": unplanned}
    )
    path = tmp_path_factory.mktemp("extension") / "two_methods.pte"
    to_edge(methods).to_executorch(config).save(str(path))
    return path
