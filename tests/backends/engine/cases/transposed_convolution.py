# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/transposed_convolution.py.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.backends.engine.draw import Draw
from torchette.backends.engine.operators._library import ACTIVATIONS
from torchette.backends.engine.pack import pack_transposed_convolution

Sizes = tuple[int, ...]
# Batch, channels, outputs, groups; sizes of the image, the kernel, stride, padding, dilation, output padding.
WINDOWS: list[tuple[tuple[int, int, int, int], Sizes, Sizes, Sizes, Sizes, Sizes, Sizes]] = [
    ((1, 3, 8, 1), (4, 5), (2, 2), (2, 2), (0, 0), (1, 1), (0, 0)),
    ((2, 5, 17, 1), (5, 7), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    ((1, 20, 33, 1), (6, 4), (4, 4), (2, 2), (1, 1), (1, 1), (0, 0)),
    ((1, 4, 15, 1), (3, 9), (3, 5), (1, 3), (2, 1), (2, 1), (0, 2)),
    ((1, 6, 16, 1), (4, 4), (1, 1), (1, 1), (0, 0), (1, 1), (0, 0)),
    ((2, 6, 34, 2), (5, 3), (3, 3), (3, 2), (1, 0), (1, 2), (2, 1)),
    ((1, 8, 4, 4), (3, 3), (2, 2), (3, 3), (0, 0), (1, 1), (1, 0)),  # positions that no tap reaches
    ((1, 1, 1, 1), (1, 1), (3, 3), (2, 2), (1, 1), (1, 1), (0, 0)),
    ((1, 70, 130, 1), (3, 4), (4, 4), (2, 2), (1, 1), (1, 1), (0, 0)),  # a filter of more than one block
    ((2, 9, 20, 1), (13,), (4,), (2,), (1,), (1,), (0,)),
    ((1, 8, 6, 2), (7,), (5,), (3,), (2,), (2,), (2,)),
    ((1, 3, 10, 1), (3, 4, 5), (2, 3, 2), (2, 1, 2), (0, 1, 0), (1, 1, 1), (1, 0, 0)),
    ((0, 3, 5, 1), (5, 5), (3, 3), (1, 1), (0, 0), (1, 1), (0, 0)),
    # Rows of several strips.
    ((1, 4, 20, 1), (300,), (8,), (4,), (2,), (1,), (3,)),
    ((1, 8, 16, 1), (130,), (3,), (5,), (3,), (2,), (1,)),
    ((2, 4, 10, 2), (2, 200), (3, 5), (2, 3), (1, 2), (1, 1), (1, 0)),
]  # fmt: skip


def transposed_convolution(draw: Draw) -> Iterator[tuple[Any, ...]]:
    def case(window: Any, bias: bool, residual: bool, activation: str) -> tuple[Any, ...]:
        (batch, channels, outputs, groups), image, kernel, *where = window
        places = [
            (size - 1) * stride - 2 * padding + dilation * (taps - 1) + 1 + extra
            for size, taps, stride, padding, dilation, extra in zip(image, kernel, *where, strict=True)
        ]
        return (
            draw(batch, *image, channels),
            pack_transposed_convolution(draw(channels, outputs // groups, *kernel), groups),
            draw(outputs) if bias else None,
            draw(batch, *places, outputs) if residual else None,
            *map(list, where), outputs, activation,
        )  # fmt: skip

    for window in WINDOWS:
        yield case(window, False, False, "none")
        yield case(window, True, True, "relu")
    for activation in ACTIVATIONS:
        yield case(WINDOWS[1], True, activation == "relu6", activation)
