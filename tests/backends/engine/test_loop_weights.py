# SPDX-License-Identifier: BSD-3-Clause
# Tests that the engine packs the weights of layers in branches and loop bodies, as in the main graph.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import torchette


class Body(nn.Module):
    """Layers of all kinds that have packed weights: [batch, 4, 16] -> the same shape."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(16, 24), nn.Linear(24, 16, bias=False)
        self.convolution = nn.Conv1d(4, 4, 3, padding=1)
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.register_buffer("mask", torch.rand(4, 4) > 0.5)
        self.mask.fill_diagonal_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x).relu()) + self.convolution(x)
        z = self.norm(x + y)
        return z + self.attention(z, z, z, attn_mask=self.mask, need_weights=False)[0]


class Loop(nn.Module):
    """Runs `Body` below a control-flow operator, and its first layer also in the main graph."""

    def __init__(self, run: Callable[[Body, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.body, self.run = Body(), run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self.body, x) + self.body.second(self.body.first(x))


def _while_loop(body: Body, x: torch.Tensor) -> Any:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, body(x)), (torch.tensor(0), x))[1]


def _cond(body: Body, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: body(x), lambda x: body.norm(x) * 2, (x,))


def _map(body: Body, x: torch.Tensor) -> Any:
    return torch_map(lambda row: body(row[None])[0], x)


def _scan(body: Body, x: torch.Tensor) -> Any:
    def step(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = body((carry + row)[None])[0]
        return total, total.clone()

    return scan(step, torch.zeros_like(x[0]), x)[1]


def _nested(body: Body, x: torch.Tensor) -> Any:
    def step(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return i + 1, torch.cond(i > 0, lambda x: body(x), lambda x: body.norm(x), (x,))

    return while_loop(lambda i, x: i < 3, step, (torch.tensor(0), x))[1]


@pytest.mark.parametrize("run", [_while_loop, _cond, _map, _scan, _nested])
def test_layers_are_packed(run: Callable[[Body, torch.Tensor], torch.Tensor]) -> None:
    model, x = Loop(run).eval(), torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(1))
    compiled = torchette.compile(model, (x,))
    for value in (x, -x):
        torch.testing.assert_close(compiled(value), model(value), rtol=1e-4, atol=1e-5)
    operators = set(compiled.program.operators())
    assert not operators & {"aten::linear.out", "aten::addmm.out", "aten::mm.out", "aten::convolution.out"}
    assert {"cpu::linear.out", "cpu::attention.out"} <= operators
    # The packed weights replace the original ones, and the main graph reads the same.
    weights = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert compiled.nbytes < weights + 12_000


def test_tied_table_is_read_in_a_loop() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(32, 16)

        def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            def step(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return i + 1, x + self.table(tokens)

            x = while_loop(lambda i, x: i < 2, step, (torch.tensor(0), x))[1]
            return nn.functional.linear(x, self.table.weight)

    model, inputs = Tied().eval(), (torch.randn(3, 16), torch.tensor([1, 5, 31]))
    compiled = torchette.compile(model, inputs)
    torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    assert "cpu::packed_embedding.out" in compiled.program.operators()
