# SPDX-License-Identifier: BSD-3-Clause
# Layers with and without full panels of units, with one or many steps, with one sequence or one for each thread.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.backends.engine.cases.linear import NARROW
from tests.backends.engine.draw import Draw
from torchette.backends.engine.pack import pack_gate_bias, pack_gates

# steps, batch, inputs, units
_SIZES = (
    (1, 1, 1, 1), (1, 1, 8, 16), (7, 1, 10, 16), (5, 2, 12, 20), (16, 1, 32, 64), (3, 40, 9, 5), (6, 2, 3, 4),
    (40, 3, 24, 100), (2, 1, 400, 400), (4, 6, 33, 130),
)  # fmt: skip


def _layers(draw: Draw, gates: int) -> Iterator[tuple[Any, ...]]:
    sizes = ((*size, dtype) for dtype in (torch.float32, *NARROW) for size in _SIZES)
    for case, (steps, batch, inputs, units, dtype) in enumerate(sizes):
        batch_first, scale = case % 2 == 1, units**-0.5
        x = draw(*((batch, steps) if batch_first else (steps, batch)), inputs)
        weights = [
            pack_gates((draw(gates * units, depth) * scale).to(dtype), gates) for depth in (inputs, units)
        ]
        biases = [pack_gate_bias(draw(gates * units), gates) if case % 3 else None for _ in range(2)]
        yield x, [draw(batch, units) for _ in range(2)], weights, biases, case % 4 >= 2, batch_first


def lstm(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for x, states, weights, biases, reverse, batch_first in _layers(draw, 4):
        yield x, *states, *weights, biases[0], reverse, batch_first


def gru(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for x, states, weights, biases, reverse, batch_first in _layers(draw, 3):
        yield x, states[0], *weights, *biases, reverse, batch_first
