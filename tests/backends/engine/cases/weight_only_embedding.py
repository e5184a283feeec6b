# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/weight_only_embedding.py.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.backends.engine.draw import Draw
from torchette.backends.engine.pack import pack_rows

# Rows of the table, elements of a row, groups, shape of the indices.
SHAPES: list[tuple[int, int, int, tuple[int, ...]]] = [
    (1, 4, 1, (3,)), (5, 24, 3, (2, 4)), (31, 64, 1, (1, 9)), (7, 400, 1, ()), (99, 48, 2, (5, 2, 3)), (40, 8, 1, (0,)),
]  # fmt: skip


def weight_only_embedding(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for bits in (8, 4, 2):
        half = 1 << bits - 1
        for rows, depth, groups, shape in SHAPES:
            integers = (draw.below(2 * half, rows, depth) - half).char()
            scales, indices = draw(rows, groups).abs() * 0.02, draw.below(rows, *shape)
            yield pack_rows(integers, bits), scales, None, bits, indices
            yield pack_rows(integers, bits), scales, draw(rows, groups), bits, indices.int()
    yield draw.below(256, 9, 17).byte(), draw(9, 1), draw(9, 1) * 100, 8, draw.below(9, 4)
