# SPDX-License-Identifier: BSD-3-Clause
# Random inputs of a method: shapes and dtypes of the file, unbounded dimensions, fixed and symbolic scalars.

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import torchette
from torchette.devtools.diff import compare
from torchette.devtools.inspect import describe
from torchette.devtools.random_inputs import input_texts, random_array, random_inputs


class Net(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, n: int, scale: float, flag: bool, none: None, ids: torch.Tensor
    ) -> torch.Tensor:
        return torch.relu(x)[ids].sum() * n * scale if flag else x


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    args = (torch.ones(40, 4), 5, 0.0, True, None, torch.zeros(3, dtype=torch.int64))
    shapes = ({0: torch.export.Dim("rows", min=32)}, torch.export.Dim.DYNAMIC, None, None, None, None)
    return torchette.compile(Net().eval(), args, dynamic_shapes=shapes).save(
        tmp_path_factory.mktemp("net") / "net.pte"
    )


def test_inputs_have_shapes_and_fixed_scalars_of_file(path: Path) -> None:
    (info,) = describe(path).methods
    values = random_inputs(info, seed=1)
    assert input_texts(info, values) == [
        "x float32[32, 4]",  # no upper bound, at least 32
        "args[1] 1",  # symbolic: an instruction reads it
        "args[2] 0.0",
        "args[3] True",
        "args[4] None",
        "ids int64[3]",
    ]
    assert set(np.unique(values[5])) <= {0, 1} and values[0].std() > 0.5
    assert np.array_equal(values[0], random_inputs(info, seed=1)[0])
    assert not np.array_equal(values[0], random_inputs(info, seed=2)[0])
    assert np.isfinite(torchette.load(path).methods["forward"].load().execute(values)[0])


def test_model_is_compared_on_random_inputs(path: Path) -> None:
    result = compare(Net().eval(), path, search=False)
    assert result.equal and result.random_inputs[:2] == ["x float32[32, 4]", "args[1] 1"]


def test_bfloat16_is_torch_tensor() -> None:
    tensor = random_array((2, 3), "bfloat16", np.random.default_rng(0))
    assert tensor.dtype == torch.bfloat16 and tensor.shape == (2, 3)
