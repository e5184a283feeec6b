# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/attention.py.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.backends.engine.draw import Draw

# Batch, queries, heads, depth; keys, heads of keys and values, depth of a value.
SHAPES: list[tuple[tuple[int, int, int, int], tuple[int, int, int]]] = [
    ((1, 1, 1, 1), (1, 1, 1)),
    ((1, 5, 1, 8), (5, 1, 8)),
    ((2, 7, 3, 16), (9, 3, 12)),
    ((1, 16, 4, 17), (16, 2, 17)),  # grouped heads
    ((1, 33, 2, 10), (15, 1, 33)),
    ((2, 1, 6, 32), (40, 2, 32)),  # one query
    ((1, 1, 3, 9), (300, 1, 20)),  # more keys than a block
    ((1, 4, 1, 15), (270, 1, 15)),
    ((1, 140, 2, 8), (280, 1, 8)),  # more queries than a block
    ((1, 2, 4, 24), (65, 4, 5)),
    ((1, 3, 2, 4), (1, 2, 4)),
    ((0, 3, 2, 4), (5, 2, 4)),
]


def attention(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for (batch, queries, heads, depth), (keys, groups, width) in SHAPES:

        def tensors(heads_first: bool) -> list[torch.Tensor]:
            place = (groups, keys) if heads_first else (keys, groups)  # noqa: B023
            query = [draw(batch, queries, heads, depth)]  # noqa: B023
            return [*query, draw(batch, *place, depth), draw(batch, *place, width)]  # noqa: B023

        scale = depth**-0.5
        yield *tensors(False), None, scale, False, False
        yield *tensors(True), None, 1.0, False, True
        yield *tensors(False), None, scale, True, False
        yield *tensors(True), draw(keys), scale, True, True
        # Some rows see no key.
        yield *tensors(False), draw.bools(queries, keys, true=0.4), scale, False, False
        yield *tensors(False), draw.bools(batch, 1, queries, keys, true=0.8), scale, False, False
        yield *tensors(True), draw.bools(batch, 1, 1, keys, true=0.8), -scale, True, True
        yield *tensors(False), draw(batch, heads, queries, keys), scale, False, False
        yield *tensors(False), draw(1, heads, 1, keys), scale, False, False
        yield *tensors(False), draw.bools(queries, 1, true=0.7), scale, False, False
        yield *tensors(True), draw(queries, 1), scale, True, True
        hidden = draw.bools(1, 1, queries, keys, true=0.3)
        for nothing in (float("-inf"), torch.finfo(torch.float32).min):
            added = torch.zeros(hidden.shape).masked_fill(hidden, nothing)
            yield *tensors(False), added, scale, False, False
    far = torch.full((6,), 90.0)  # exp of the scores overflows to infinity
    yield draw(1, 6, 1, 4) * 40, draw(1, 6, 1, 4) * 40, draw(1, 6, 1, 4), far, 1.0, False, False


def bfloat16_attention(draw: Draw) -> Iterator[tuple[Any, ...]]:
    """Processors with instructions for pairs of bfloat16 use them for a depth of 32 or more and an even depth."""
    yield from attention(draw)
    for queries, keys, depth, width in (
        (20, 40, 32, 16), (9, 31, 34, 7), (33, 17, 62, 33), (120, 300, 64, 64), (12, 257, 33, 20), (30, 1, 48, 5),
    ):  # fmt: skip
        for causal in (False, True):
            query, key, value = draw(1, queries, 4, depth), draw(1, keys, 2, depth), draw(1, keys, 2, width)
            yield query, key, value, None, depth**-0.5, causal, False
            yield query, key, value, draw.bools(queries, keys, true=0.7), depth**-0.5, causal, False
