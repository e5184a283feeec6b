# SPDX-License-Identifier: BSD-3-Clause
# Recurrent layers of torch become operators of the engine. The results equal eager.
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchette
from torchette.backends.engine.passes.recurrent import place_recurrent
from torchette.capture import capture
from torchette.exir.graph import calls

STEPS = torch.randn(20, 3, 12, generator=torch.Generator().manual_seed(0))
LAYERS = {
    "one layer": {},
    "without biases": {"bias": False},
    "both directions": {"bidirectional": True},
    "two layers, batch first": {"num_layers": 2, "batch_first": True, "bidirectional": True},
}


def layer(kind: Any, how: dict) -> nn.Module:
    torch.manual_seed(0)
    return kind(12, 20, **how).eval().requires_grad_(False)


@pytest.mark.parametrize("how", LAYERS)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_layer_equals_eager(kind: Any, how: str) -> None:
    module = layer(kind, LAYERS[how])
    program = place_recurrent(capture(module, (STEPS,), None, None, "forward"))
    names = [node.target for node in calls(program) if str(node.target).startswith("cpu.")]
    directions = 2 if module.bidirectional else 1
    assert names == [getattr(torch.ops.cpu, kind.__name__.lower()).default] * module.num_layers * directions
    result, expected = torchette.compile(module, (STEPS,), backend="cpu")(STEPS), module(STEPS)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_any_length(kind: Any) -> None:
    module = layer(kind, {"batch_first": True})
    sizes = {0: torch.export.Dim("batch", max=32), 1: torch.export.Dim("steps", max=64)}
    compiled = torchette.compile(module, (STEPS,), dynamic_shapes=(sizes,), backend="cpu")
    for x in (STEPS, STEPS[:2, :1].contiguous(), STEPS.repeat(1, 20, 1)[:5]):
        torch.testing.assert_close(compiled(x), module(x))


def test_given_state() -> None:
    module, state = layer(nn.LSTM, {}), (torch.ones(1, 3, 20), torch.full((1, 3, 20), -0.5))
    compiled = torchette.compile(module, (STEPS, state), backend="cpu")
    torch.testing.assert_close(compiled(STEPS, state), module(STEPS, state))


@pytest.mark.parametrize("module", [layer(nn.LSTM, {"proj_size": 8}), layer(nn.RNN, {})])
def test_unsupported_layers_become_loops(module: nn.Module) -> None:
    program = place_recurrent(capture(module, (STEPS,), None, None, "forward"))
    assert not [node for node in calls(program) if str(node.target).startswith("cpu.")]
    compiled = torchette.compile(module, (STEPS,), backend="cpu")
    operators = set(compiled.program.operators())
    assert "cpu::linear.out" in operators and not operators & {"aten::linear.out", "aten::mm.out"}
    torch.testing.assert_close(compiled(STEPS), module(STEPS))
