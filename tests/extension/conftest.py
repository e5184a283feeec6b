# SPDX-License-Identifier: BSD-3-Clause
# Fixtures with the programs that the tests of this folder run.

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def two_methods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a program with the methods `forward`, relu(x @ ones), and `twice`, x + x, without planned inputs and outputs."""
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


@pytest.fixture(scope="session")
def counter(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Returns the program of counter.Counter and its data file."""
    torch = pytest.importorskip("torch")
    from tests.extension.counter import Counter, X
    from torchette.exir import ExecutorchBackendConfig, to_edge

    folder = tmp_path_factory.mktemp("counter")
    exported = torch.export.export(Counter().eval(), (X,))
    program = to_edge(exported).to_executorch(ExecutorchBackendConfig(external_constants=True))
    program.save(str(folder / "counter.pte"))
    program.write_tensor_data_to_file(str(folder))
    return [folder / "counter.pte", *folder.glob("*.ptd")]


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the program of counter.Rows, exported with 3. ExecuTorch compiles it, because Torchette's results are row-major."""
    torch = pytest.importorskip("torch")
    exir = pytest.importorskip("executorch.exir")
    from tests.extension.counter import Rows

    path = tmp_path_factory.mktemp("rows") / "rows.pte"
    exported = torch.export.export(Rows(), (torch.ones(1, 2, 2, 2), 3))
    path.write_bytes(exir.to_edge(exported).to_executorch().buffer)
    return path
