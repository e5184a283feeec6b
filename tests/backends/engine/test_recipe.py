# SPDX-License-Identifier: BSD-3-Clause
# Selects the engine by ExecuTorch's interface (a recipe, or a partitioner for to_edge_transform_and_lower) or by its name.
from __future__ import annotations

import pytest
import torch
from torch import nn

import torchette
from torchette.backends.engine import CpuPartitioner, CpuRecipeType
from torchette.errors import InputError
from torchette.exir import to_edge_transform_and_lower
from torchette.export import ExportRecipe, export

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def test_recipe() -> None:
    session = export(model(), [(X,)], ExportRecipe.get_recipe(CpuRecipeType.FP32))
    assert list(session.get_executorch_program_manager().operators()) == ["cpu::linear.out"]


def test_recipe_has_no_options() -> None:
    with pytest.raises(InputError, match="cpu_fp32 has no option group_size"):
        ExportRecipe.get_recipe(CpuRecipeType.FP32, group_size=32)


def test_partitioner() -> None:
    program = torch.export.export(model(), (X,))
    lowered = to_edge_transform_and_lower(program, partitioner=[CpuPartitioner()]).to_executorch()
    assert list(lowered.operators()) == ["cpu::linear.out"]


@pytest.mark.parametrize(("backend", "namespace"), [("auto", "cpu"), ("cpu", "cpu"), ("portable", "aten")])
def test_backend_names_select_an_engine(backend: str, namespace: str) -> None:
    compiled = torchette.compile(model(), (X,), backend=backend)
    assert {name.partition("::")[0] for name in compiled.program.operators()} == {namespace}
    torch.testing.assert_close(compiled(X), model()(X))
