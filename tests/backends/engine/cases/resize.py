# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/resize.py.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.backends.engine.draw import Draw

Sizes = tuple[int, ...]
# Batch, image, channels; sizes of the result. With these scale factors no position depends on rounding.
IMAGES: list[tuple[tuple[int, ...], Sizes]] = [
    ((1, 4, 6, 3), (8, 12)),
    ((2, 5, 3, 17), (10, 12)),
    ((1, 8, 8, 16), (4, 2)),
    ((1, 7, 5, 33), (9, 8)),
    ((1, 1, 1, 20), (3, 4)),
    ((0, 4, 4, 5), (8, 8)),
]
LINES: list[tuple[tuple[int, ...], Sizes]] = [((2, 9, 5), (18,)), ((1, 10, 18), (4,))]
VOLUMES: list[tuple[tuple[int, ...], Sizes]] = [((1, 3, 4, 2, 7), (6, 4, 5)), ((2, 2, 3, 4, 16), (1, 6, 8))]


def resize(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for sizes, output_size in [*IMAGES, *LINES, *VOLUMES]:
        yield draw(*sizes), list(output_size), None, "nearest", False
        yield draw(*sizes), list(output_size), None, "nearest-exact", False
        for align_corners in (False, True):
            yield draw(*sizes), list(output_size), None, "linear", align_corners
            if len(output_size) == 2:
                yield draw(*sizes), list(output_size), None, "cubic", align_corners
    for mode in ("nearest", "nearest-exact", "linear", "cubic"):
        yield draw(1, 5, 6, 9), None, [2.0, 0.5], mode, False
        yield draw(1, 5, 6, 9), [10, 13], [2.0, 2.25], mode, False
