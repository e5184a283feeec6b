# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/packed_embedding.py.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.backends.engine.cases.linear import NARROW
from tests.backends.engine.draw import Draw
from torchette.backends.engine.pack import cut_last_panel, pack_linear, pack_nibbles, pack_quads

# Rows of the table, their depth, shape of the indices.
SHAPES: list[tuple[int, int, tuple[int, ...]]] = [
    (1, 1, (3,)), (5, 7, (2, 4)), (16, 9, (20,)), (31, 16, (1, 9)), (32, 3, ()), (99, 48, (5, 2, 3)), (40, 2, (0,)),
]  # fmt: skip


def packed_embedding(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for rows, depth, shape in SHAPES:
        packed = pack_linear(draw(rows, depth))
        for weight in (packed, cut_last_panel(packed, rows)):
            for dtype in (torch.float32, *NARROW):
                yield weight.to(dtype), draw.below(rows, *shape), rows


def scaled_embedding(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for rows, depth, groups in ((1, 1, 1), (5, 8, 1), (17, 11, 1), (40, 64, 2), (33, 96, 3), (16, 40, 5)):
        integers = draw.below(16, rows, depth).to(torch.int8) - 8
        scales = pack_linear(draw(rows, groups))
        for weight in (pack_nibbles(integers), pack_quads(integers * 9)):
            for shape in ((3,), (2, 4), ()):
                yield weight, scales, draw.below(rows, *shape), rows, depth
