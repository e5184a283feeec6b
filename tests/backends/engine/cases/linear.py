# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/linear.py.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.backends.engine.draw import Draw
from torchette.backends.engine.operators._library import ACTIVATIONS
from torchette.backends.engine.pack import cut_last_panel, pack_linear, pack_pairs

# Leading dimensions, inputs, outputs.
SHAPES: list[tuple[tuple[int, ...], int, int]] = [
    ((), 5, 7), ((1,), 1, 1), ((1,), 64, 40), ((1,), 33, 150), ((3,), 16, 16), ((15,), 15, 17), ((2, 7), 9, 33),
    ((2, 1, 3), 31, 48), ((29,), 20, 15), ((57,), 8, 130), ((4,), 800, 18), ((13,), 390, 300),
    ((0,), 6, 5), ((2, 0), 6, 5), ((3,), 0, 20),
]  # fmt: skip


# Of weights.
NARROW = (torch.bfloat16, torch.float16)


def linear(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for leading, inputs, outputs in SHAPES:
        for bias, residual in ((False, False), (True, False), (False, True), (True, True)):
            yield (
                draw(*leading, inputs), pack_linear(draw(outputs, inputs)), draw(outputs) if bias else None,
                draw(*leading, outputs) if residual else None, outputs, "none",
            )  # fmt: skip
    for activation in ACTIVATIONS:
        for rows, residual in ((1, False), (7, True)):
            x, packed = draw(rows, 21), cut_last_panel(pack_linear(draw(37, 21)), 37)
            yield x, packed, draw(37), draw(rows, 37) if residual else None, 37, activation
    for dtype in NARROW:
        for leading, inputs, outputs in [*SHAPES, ((6,), 70, 130), ((26,), 400, 70), ((2,), 40, 5)]:
            weight = pack_linear(draw(outputs, inputs).to(dtype))
            for packed in (weight, cut_last_panel(weight, outputs))[: 1 + (inputs > 0)]:
                yield draw(*leading, inputs), packed, draw(outputs), None, outputs, "relu"
    for leading, inputs, outputs in [*SHAPES, ((29,), 64, 150), ((13,), 1600, 40)]:
        if inputs % 2 == 0:
            x, packed = draw(*leading, inputs), pack_pairs(pack_linear(draw(outputs, inputs)))
            for residual in (None, draw(*leading, outputs)):
                yield x.bfloat16().float(), packed, draw(outputs), residual, outputs, "gelu"
