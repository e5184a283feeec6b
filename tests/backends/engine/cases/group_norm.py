# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/group_norm.py.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.backends.engine.draw import Draw

# Batch, image, channels; groups.
SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((1, 4, 5, 8), 2), ((2, 7, 3, 17), 17), ((1, 6, 6, 33), 3), ((2, 5, 5, 64), 32), ((1, 30, 40, 20), 1),
    ((3, 11, 12), 4), ((1, 2, 3, 4, 24), 6), ((2, 1, 1, 10), 5), ((0, 4, 4, 6), 2),
]  # fmt: skip


def group_norm(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for sizes, groups in SHAPES:
        channels = sizes[-1]
        yield draw(*sizes), draw(channels), draw(channels), groups, 1e-5
        yield draw(*sizes), draw(channels), None, groups, 1e-6
        yield draw(*sizes), None, draw(channels), groups, 1e-3
        yield draw(*sizes), None, None, groups, 1e-5
    yield draw(1, 9, 9, 12) + 20, draw(12), draw(12), 3, 1e-5  # a mean that is larger than the spread
