# SPDX-License-Identifier: BSD-3-Clause
# Intermediate values of delegates: subgraphs are lowered again with additional outputs, which works for any backend.

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchette
from torchette.backends.null import preprocess
from torchette.devtools.diff import compare
from torchette.devtools.diff.taps import first_departing, tappable, tapped


class Sums(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = x + y
        b = a * x
        return b + a


INPUTS = (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0]))


def _lowered(compiled: Any) -> Any:
    (node,) = compiled.program.nodes()
    return getattr(node.graph.owning_module, node.args[0].target)


def test_values_inside_delegate() -> None:
    lowered = _lowered(torchette.compile(Sums(), INPUTS, backend="null"))
    outputs, values = tapped(lowered, INPUTS, tappable(lowered))
    x, y = INPUTS
    assert torch.equal(outputs[0], (x + y) * x + x + y)
    assert [tuple(value.tolist()) for value in values.values()] == [
        (11.0, 22.0, 33.0),
        (11.0, 44.0, 99.0),
        (22.0, 66.0, 132.0),
    ]
    assert first_departing(lowered, INPUTS) is None


def test_departing_operator_inside_delegate_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(preprocess.OPERATORS, "mul.Tensor", preprocess.OPERATORS["add.Tensor"])
    result = compare(Sums(), None, INPUTS, backend="null", search=False)
    assert result.first is not None
    assert (result.first.kind, result.first.operator) == ("backend", "NullBackend: aten.mul.Tensor")
    assert result.first.source.startswith("test_taps.py:")
    assert result.first.node == "mul"


def test_xnnpack() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    compiled = torchette.compile(module, (torch.randn(2, 8),), backend="xnnpack")
    lowered = _lowered(compiled)
    x = torch.randn(2, 8)
    _, values = tapped(lowered, [x], tappable(lowered))
    torch.testing.assert_close(next(iter(values.values())), module[0](x))
    assert compare(module, bytes(compiled), (x,), search=False).equal
