# SPDX-License-Identifier: BSD-3-Clause
# Calibration inputs that the captured model does not accept: each error names the input, the argument and the remedy.

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim, export

import torchette
from torchette.capture.calibration import check_calls
from torchette.errors import ExportError, InputError, InputTypeError, TorchetteError


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        return x * scale


X, SCALE = torch.randn(4, 3), torch.ones(3)
PROGRAM = export(
    Scaled(), (X,), {"scale": SCALE}, dynamic_shapes={"x": {0: Dim("n", min=2, max=8)}, "scale": None}
)
FAULTS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[TorchetteError], str]] = {
    "size": ((torch.randn(4, 5),), {"scale": SCALE}, InputError, r"x has shape \(4, 5\), expected \(2 to 8, 3\)"),
    "range": ((torch.randn(9, 3),), {"scale": SCALE}, InputError, r"x has shape \(9, 3\), expected \(2 to 8, 3\)"),
    "rank": ((X[0],), {"scale": SCALE}, InputError, r"x has shape \(3,\), expected"),
    "dtype": ((X,), {"scale": SCALE.double()}, InputTypeError, "scale has dtype torch.float64, expected torch.float32"),
    "array": ((np.zeros((4, 3)),), {"scale": SCALE}, InputTypeError, "x is of type ndarray, expected a tensor"),
    "missing": ((X,), {}, InputTypeError, r"1 positional, keywords \[\], 1 values, expected 1 positional, keywords \['scale'\]"),
    "additional": ((X, X), {"scale": SCALE}, InputTypeError, "2 positional"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_input_that_does_not_fit_is_named(fault: str) -> None:
    args, kwargs, error, message = FAULTS[fault]
    fitting = (torch.randn(7, 3),), {"scale": SCALE}
    check_calls(PROGRAM, [fitting])
    with pytest.raises(error, match="calibration input 1.*" + message):
        check_calls(PROGRAM, [fitting, (args, kwargs)])


def test_quantize_checks_all_inputs_before_it_measures() -> None:
    with pytest.raises(InputError, match=r"calibration input 1: input has shape \(2, 5\), expected \(2, 4\)"):
        torchette.quantize(nn.Linear(4, 4).eval(), [(torch.randn(2, 4),), (torch.randn(2, 5),)])


def test_dynamic_shapes_of_a_captured_graph_name_the_first_capture() -> None:
    graph = export(nn.Linear(4, 4), (torch.randn(2, 4),)).module()
    with pytest.raises(ExportError) as caught:
        torchette.compile(graph, (torch.randn(2, 4),), dynamic_shapes={"input": {0: Dim("n", min=2, max=8)}})
    assert "pass dynamic_shapes also to torchette.quantize" in str(caught.value)
