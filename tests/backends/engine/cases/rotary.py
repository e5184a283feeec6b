# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/rotary.py.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.backends.engine.draw import Draw

# Batch, tokens, heads, depth.
SHAPES = [
    (1, 1, 1, 2),
    (1, 5, 3, 8),
    (2, 7, 4, 16),
    (2, 3, 2, 30),
    (3, 1, 2, 64),
    (1, 4, 1, 34),
    (1, 0, 2, 8),
]


def rotary(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for batch, tokens, heads, depth in SHAPES:
        for cos, sin in ((1, 1), (batch, batch), (batch, 1)):
            yield draw(batch, tokens, heads, depth), draw(cos, tokens, depth), draw(sin, tokens, depth)
