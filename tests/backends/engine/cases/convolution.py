# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/convolution.py.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.backends.engine.cases.linear import NARROW
from tests.backends.engine.draw import Draw
from torchette.backends.engine.operators._library import ACTIVATIONS
from torchette.backends.engine.pack import pack_convolution, pack_pairs

Sizes = tuple[int, ...]
# Batch, channels, outputs, groups; sizes of the image, the kernel, stride, padding, dilation.
WINDOWS: list[tuple[tuple[int, int, int, int], Sizes, Sizes, Sizes, Sizes, Sizes]] = [
    ((1, 3, 8, 1), (9, 7), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((2, 4, 17, 1), (6, 5), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 20, 33, 1), (5, 4), (1, 1), (1, 1), (0, 0), (1, 1)),  # pointwise
    ((1, 7, 16, 1), (5, 4), (1, 1), (2, 2), (0, 0), (1, 1)),
    ((1, 5, 9, 1), (5, 4), (1, 1), (1, 1), (1, 1), (1, 1)),
    ((2, 6, 34, 2), (7, 8), (3, 3), (1, 2), (1, 0), (2, 1)),
    ((2, 8, 12, 4), (5, 5), (1, 1), (1, 1), (0, 0), (1, 1)),
    ((1, 16, 15, 1), (11, 9), (5, 3), (1, 1), (2, 1), (1, 3)),
    ((1, 2, 3, 1), (4, 30), (2, 7), (3, 2), (0, 3), (1, 2)),
    ((1, 1, 1, 1), (1, 1), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((3, 5, 18, 1), (4, 4), (4, 4), (4, 4), (0, 0), (1, 1)),  # patches
    ((2, 9, 20, 1), (13,), (3,), (1,), (1,), (1,)),
    ((1, 8, 6, 2), (15,), (4,), (2,), (3,), (2,)),
    ((1, 3, 10, 1), (4, 5, 6), (3, 2, 3), (1, 2, 1), (1, 0, 1), (1, 1, 1)),
    ((2, 4, 4, 4), (3, 5, 3), (2, 3, 1), (2, 1, 1), (0, 1, 0), (1, 2, 1)),
    ((1, 50, 40, 1), (9, 9), (3, 3), (1, 1), (1, 1), (1, 1)),  # a depth of more than one part
    ((0, 3, 5, 1), (5, 5), (3, 3), (1, 1), (0, 0), (1, 1)),
    # Windows inside a long row are read in place, unless taps are apart and the depth has several parts.
    ((2, 8, 20, 1), (90,), (3,), (1,), (1,), (1,)),
    ((3, 12, 17, 1), (150,), (5,), (2,), (4,), (3,)),
    ((1, 80, 16, 1), (120,), (5,), (1,), (8,), (4,)),
    ((2, 4, 6, 1), (107,), (4,), (3,), (0,), (1,)),
    ((2, 6, 5, 1), (60,), (2,), (1,), (7,), (1,)),
    ((1, 150, 9, 1), (70,), (4,), (1,), (3,), (1,)),
]  # fmt: skip


def _places(image: Sizes, kernel: Sizes, where: list[Sizes]) -> list[int]:
    """Returns the number of windows along each dimension."""
    return [
        (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
        for size, taps, stride, padding, dilation in zip(image, kernel, *where, strict=True)
    ]


def convolution(draw: Draw) -> Iterator[tuple[Any, ...]]:
    def case(
        window: Any, bias: bool, residual: bool, activation: str, dtype: torch.dtype = torch.float32
    ) -> tuple[Any, ...]:
        (batch, channels, outputs, groups), image, kernel, *where = window
        places = _places(image, kernel, where)
        return (
            draw(batch, *image, channels),
            pack_convolution(draw(outputs, channels // groups, *kernel).to(dtype), groups),
            draw(outputs) if bias else None,
            draw(batch, *places, outputs) if residual else None,
            *map(list, where), outputs, activation,
        )  # fmt: skip

    for window in WINDOWS:
        yield case(window, False, False, "none")
        yield case(window, True, True, "relu")
    for activation in ACTIVATIONS:
        yield case(WINDOWS[1], True, activation == "relu6", activation)
    winograd = ((1, 64, 48, 1), (9, 9), (3, 3), (1, 1), (1, 1), (1, 1))
    for dtype in NARROW:
        for window in (*WINDOWS, winograd):
            yield case(window, True, False, "relu", dtype)
        yield case(WINDOWS[2], True, activation != "relu6", activation)
    for window in (*WINDOWS, winograd):
        x, weight, *others = case(window, True, True, "relu")
        if weight.shape[-2] % 2 == 0:
            yield x.bfloat16().float(), pack_pairs(weight), *others


def convolution_into(draw: Draw) -> Iterator[tuple[Any, ...]]:
    winograd = ((1, 64, 48, 1), (9, 9), (3, 3), (1, 1), (1, 1), (1, 1))
    for index, ((batch, channels, outputs, groups), image, kernel, *where) in enumerate((*WINDOWS, winograd)):
        places = _places(image, kernel, where)
        first, after = index % 3 * 8, index % 4 * 5
        for into in (None, draw(batch, *places, first + outputs + after)):
            if into is None:
                first_output, total = 0, outputs  # the kernel does not write the other channels
            else:
                first_output, total = first, first + outputs + after
            yield (
                into,
                draw(batch, *image, channels),
                pack_convolution(draw(outputs, channels // groups, *kernel), groups),
                draw(outputs) if index % 2 else None,
                *map(list, where), outputs, "silu" if index % 5 == 0 else "relu", first_output, total,
            )  # fmt: skip


# Channels, outputs; sizes of the image, the kernel, stride, padding, dilation.
PLANAR: list[tuple[tuple[int, int, int], Sizes, Sizes, Sizes, Sizes, Sizes]] = [
    ((1, 3, 8), (9, 7), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((2, 3, 33), (12, 13), (7, 7), (2, 2), (3, 3), (1, 1)),
    ((1, 4, 16), (16, 16), (4, 4), (4, 4), (0, 0), (1, 1)),
    ((2, 1, 5), (6, 5), (1, 1), (1, 1), (0, 0), (1, 1)),
    ((1, 3, 20), (30, 40), (3, 17), (1, 3), (2, 8), (2, 1)),
    ((1, 2, 7), (9, 9), (3, 3), (1, 1), (2, 2), (2, 2)),
    ((2, 1, 18), (50,), (10,), (4,), (0,), (1,)),
    ((0, 3, 5), (5, 5), (3, 3), (1, 1), (0, 0), (1, 1)),
    # The rows under a row of the result have 128 * 2**25 = 2**32 elements, which a 32-bit size_t cannot hold.
    ((1, 128, 5), (2,), (2,), (2**24 - 1,), (2**24 - 1,), (1,)),
]


def planar_convolution(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for (batch, channels, outputs), image, kernel, *where in PLANAR:
        places = _places(image, kernel, where)
        for extra, dtype in (
            (False, torch.float32),
            (True, torch.float32),
            *((True, dtype) for dtype in NARROW),
        ):
            yield (
                draw(batch, channels, *image),
                pack_convolution(draw(outputs, 1, channels, *kernel).to(dtype), 1),
                draw(outputs) if extra else None,
                draw(batch, *places, outputs) if extra else None,
                *map(list, where), outputs, "relu" if extra else "none",
            )  # fmt: skip
