# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/depthwise.py.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.backends.engine.draw import Draw
from torchette.backends.engine.operators._library import ACTIVATIONS
from torchette.backends.engine.pack import pack_depthwise

Sizes = tuple[int, ...]
# Batch, channels; sizes of the image, the kernel, stride, padding, dilation.
WINDOWS: list[tuple[tuple[int, int], Sizes, Sizes, Sizes, Sizes, Sizes]] = [
    ((1, 1), (5, 5), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 16), (7, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 17), (8, 12), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((1, 33), (9, 21), (5, 5), (1, 2), (2, 2), (1, 1)),
    ((1, 15), (6, 11), (3, 5), (1, 1), (2, 4), (2, 2)),
    ((1, 40), (4, 4), (7, 7), (1, 1), (3, 3), (1, 1)),  # larger than the image
    ((1, 20), (3, 30), (1, 1), (1, 1), (0, 0), (1, 1)),
    ((1, 3), (4, 3), (2, 2), (3, 3), (2, 3), (1, 1)),  # positions with a window of padding only
    ((2, 18), (19,), (3,), (1,), (1,), (1,)),
    ((1, 5), (16,), (4,), (2,), (3,), (3,)),
    ((1, 19), (4, 5, 9), (3, 2, 3), (1, 2, 1), (1, 0, 1), (1, 1, 1)),
    ((0, 6), (5, 5), (3, 3), (1, 1), (1, 1), (1, 1)),
]  # fmt: skip


def depthwise(draw: Draw) -> Iterator[tuple[Any, ...]]:
    def case(window: Any, bias: bool, residual: bool, activation: str) -> tuple[Any, ...]:
        (batch, channels), image, kernel, *where = window
        places = [
            (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
            for size, taps, stride, padding, dilation in zip(image, kernel, *where, strict=True)
        ]
        return (
            draw(batch, *image, channels),
            pack_depthwise(draw(channels, 1, *kernel)),
            draw(channels) if bias else None,
            draw(batch, *places, channels) if residual else None,
            *map(list, where), activation,
        )  # fmt: skip

    for window in WINDOWS:
        yield case(window, False, False, "none")
        yield case(window, True, True, "relu")
    for activation in ACTIVATIONS:
        yield case(WINDOWS[2], True, activation == "relu6", activation)
        yield case(WINDOWS[8], False, activation != "relu6", activation)


def depthwise_into(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for index, ((batch, channels), image, kernel, *where) in enumerate(WINDOWS):
        places = [
            (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
            for size, taps, stride, padding, dilation in zip(image, kernel, *where, strict=True)
        ]
        source, first, after = index % 3 * 4, index % 4 * 8, index % 2 * 3
        weight, bias = pack_depthwise(draw(channels, 1, *kernel)), draw(channels) if index % 2 else None
        options = (weight, bias, *map(list, where), channels, source, "silu" if index % 3 == 0 else "relu")
        x, total = draw(batch, *image, source + channels + 2), first + channels + after
        yield draw(batch, *places, total), x, *options, first, total
        yield None, x, *options, 0, channels
        if tuple(places) == tuple(image):
            first = source + channels
            yield (
                draw(batch, *image, first + channels + after),
                None,
                *options,
                first,
                first + channels + after,
            )
