# SPDX-License-Identifier: BSD-3-Clause
# States with and without full vectors, channels with and without full blocks, with no, one or many tokens.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.backends.engine.draw import Draw

# tokens, channels, depth
_SIZES = (
    (1, 1, 1), (1, 16, 16), (7, 17, 5), (5, 40, 8), (3, 64, 16), (20, 3, 33), (2, 130, 24), (1, 96, 16), (9, 33, 3), (0, 4, 5),
)  # fmt: skip


def selective_scan(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for tokens, channels, depth in _SIZES:
        yield (
            draw(tokens, channels),
            draw(tokens, channels).sigmoid(),
            -draw(channels, depth).exp(),
            draw(tokens, depth),
            draw(tokens, depth) * depth**-0.5,
            draw(channels, depth),
        )
