# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/image_pool.py.

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from tests.backends.engine.draw import Draw

Pair = tuple[int, int]
# Batch, height, width, channels; the kernel, stride, padding.
WINDOWS: list[tuple[tuple[int, int, int, int], Pair, Pair, Pair]] = [
    ((1, 6, 6, 16), (2, 2), (2, 2), (0, 0)),
    ((2, 7, 9, 17), (3, 3), (2, 2), (1, 1)),
    ((1, 5, 8, 33), (3, 2), (1, 3), (1, 0)),
    ((1, 5, 5, 1), (5, 5), (1, 1), (2, 2)),
    ((1, 4, 10, 3), (2, 3), (3, 2), (1, 1)),
    ((2, 1, 1, 20), (1, 1), (1, 1), (0, 0)),
    ((0, 4, 4, 5), (2, 2), (2, 2), (0, 0)),
]  # fmt: skip


def max_pool(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for sizes, kernel, stride, padding in WINDOWS:
        for ceil_mode in (False, True):
            yield draw(*sizes), list(kernel), list(stride), list(padding), [1, 1], ceil_mode
    yield draw(1, 9, 8, 5), [3, 2], [1, 2], [1, 1], [2, 3], False
    special = draw(1, 6, 6, 19)
    special[draw.bools(1, 6, 6, 19, true=0.05)] = float("nan")
    special[draw.bools(1, 6, 6, 19, true=0.1)] = float("-inf")
    special[:, 2:, 3:, 4] = float("-inf")
    yield special, [2, 2], [2, 2], [0, 0], [1, 1], False
    yield special, [3, 3], [1, 1], [1, 1], [1, 1], False
    yield draw(2, 4, 5, 6, 18), [2, 3, 2], [1, 2, 2], [1, 0, 1], [1, 1, 2], True


def avg_pool(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for sizes, kernel, stride, padding in WINDOWS:
        for ceil_mode, counted in itertools.product((False, True), repeat=2):
            yield draw(*sizes), list(kernel), list(stride), list(padding), ceil_mode, counted, None
    yield draw(1, 6, 7, 18), [3, 2], [2, 2], [1, 1], True, True, 5
    yield draw(1, 6, 7, 18), [3, 2], [2, 2], [1, 1], False, False, -1
    yield draw(2, 4, 5, 6, 18), [2, 3, 2], [1, 2, 2], [1, 0, 1], True, True, None


def adaptive_avg_pool(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for sizes, *_ in WINDOWS:
        for output_size in ((1, 1), (2, 3), (7, 7)):
            yield draw(*sizes), list(output_size)
    yield draw(2, 4, 5, 6, 18), [3, 2, 4]
