# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/cached_attention.py.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.backends.engine.draw import Draw

# New tokens, heads, depth; positions, heads of keys and values, depth of a value; the first token's position.
SHAPES: list[tuple[tuple[int, int, int], tuple[int, int, int], int]] = [
    ((1, 1, 1), (1, 1, 1), 0),
    ((1, 2, 8), (9, 2, 8), 5),
    ((1, 9, 16), (40, 3, 16), 39),  # three heads share
    ((1, 4, 17), (600, 1, 20), 570),  # blocks of keys
    ((2, 6, 9), (300, 2, 33), 260),  # rows of two tokens in one step
    ((3, 2, 10), (20, 2, 12), 17),
    ((5, 7, 16), (64, 7, 16), 0),
    ((33, 4, 24), (128, 2, 24), 95),
    ((150, 2, 8), (700, 1, 8), 400),  # more queries than a block
    ((7, 8, 12), (50, 1, 5), 30),
]


def cached_attention(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for (tokens, heads, depth), (positions, groups, width), first in SHAPES:

        def tensors() -> list[torch.Tensor]:
            query_and_keys = [draw(1, tokens, heads, depth), draw(positions, groups, depth)]  # noqa: B023
            return [*query_and_keys, draw(positions, groups, width), torch.tensor([first])]  # noqa: B023

        scale = depth**-0.5
        yield *tensors(), None, scale, 0, 0.0
        yield *tensors(), draw(heads) * 3, scale, 0, 0.0
        for window in (1, 6, 260, -1, -6, -260):
            yield *tensors(), None, scale, window, 0.0
        yield *tensors(), draw(heads), 1.0, 5, 2.5
    for tokens, heads, groups, depth, first in ((1, 9, 3, 64, 300), (1, 4, 1, 17, 700), (40, 6, 2, 20, 290)):
        for window, sinks, cap in ((0, None, 0.0), (150, draw(heads), 2.5), (-150, None, 0.0)):
            half = [draw(first + tokens + 2, groups, width).half() for width in (depth, 33)]
            yield draw(1, tokens, heads, depth), *half, torch.tensor([first]), sinks, 0.3, window, cap
    zero = torch.tensor([0])
    yield draw(1, 0, 2, 4), draw(5, 2, 4), draw(5, 2, 4), zero, None, 1.0, 0, 0.0
    # Positions after the last token are not read.
    stale = draw(20, 2, 4)
    stale[8:] = 1e30
    yield draw(1, 3, 2, 4), stale, draw(20, 2, 4), torch.tensor([5]), None, 1.0, 0, 0.0


def int8_cached_attention(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for (tokens, heads, depth), (positions, groups, width), first in SHAPES:
        for window, sinks, cap in ((0, None, 0.0), (6, draw(heads), 2.5), (-6, None, 0.0)):
            integers = [
                (draw(positions, groups, size) * 50).clamp(-127, 127).char() for size in (depth, width)
            ]
            scales = [draw(positions, groups, 2).abs() * 0.02 for _ in range(2)]
            yield (
                draw(1, tokens, heads, depth), *integers, *scales, torch.tensor([first]), sinks, depth**-0.5, window, cap,
            )  # fmt: skip
