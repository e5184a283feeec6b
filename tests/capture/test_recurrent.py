# SPDX-License-Identifier: BSD-3-Clause
# Recurrent layers are captured without running them: any number of steps, and a number that varies.

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import torchette


class Layer(nn.Module):
    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.layer = kind(4, 6, batch_first=True, **options)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


LAYERS = {
    "lstm": (nn.LSTM, {"bidirectional": True, "num_layers": 2, "proj_size": 3}),
    "gru": (nn.GRU, {"bidirectional": True}),
    "rnn": (nn.RNN, {"num_layers": 2}),
    "rnn with relu": (nn.RNN, {"nonlinearity": "relu"}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_number_of_steps_and_the_batch_may_vary(name: str) -> None:
    kind, options = LAYERS[name]
    model = Layer(kind, **options).eval()
    shapes = ({0: Dim("batch", min=1, max=4), 1: Dim("steps", min=1, max=300)},)
    compiled = torchette.compile(model, (torch.randn(2, 7, 4),), dynamic_shapes=shapes)
    for batch, steps in ((2, 7), (1, 1), (4, 300), (3, 20)):
        x = torch.randn(batch, steps, 4)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)


def test_thousands_of_steps_are_captured_and_lowered_once() -> None:
    model, sizes = Layer(nn.LSTM).eval(), []
    for steps in (40, 4000):
        compiled = torchette.compile(model, (torch.randn(1, steps, 4),))
        sizes.append(len(compiled.program.buffer))
    assert abs(sizes[1] - sizes[0]) < 256
    x = torch.randn(1, 4000, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_torch_is_unchanged_outside_of_a_capture() -> None:
    op = torch.ops.aten.lstm.input
    before = dict(op.py_kernels)
    with pytest.raises(torchette.TorchetteError):
        torchette.compile(Layer(nn.LSTM).eval(), (torch.randn(1, 3, 5),))
    assert op.py_kernels == before
