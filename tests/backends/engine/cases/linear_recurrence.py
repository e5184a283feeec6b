# SPDX-License-Identifier: BSD-3-Clause
# Heads with and without full blocks of columns, that share keys or not, with one decay per head or per row, with one or many tokens.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.backends.engine.draw import Draw

# tokens, key heads, heads, depth, width
_SIZES = (
    (1, 1, 1, 1, 1), (1, 2, 2, 8, 16), (7, 1, 3, 5, 17), (5, 2, 4, 12, 64), (3, 4, 4, 16, 70), (20, 1, 8, 16, 3), (2, 3, 3, 33, 130),
    (1, 2, 8, 128, 128), (9, 1, 1, 24, 33), (0, 1, 2, 4, 5),
)  # fmt: skip


def linear_recurrence(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for case, (tokens, groups, heads, depth, width) in enumerate(_SIZES):
        for has_beta in (True, False):
            rows = depth if (case + has_beta) % 2 else 1
            yield (
                *(draw(tokens, groups, depth) * depth**-0.5 for _ in range(2)),
                draw(tokens, heads, width),
                draw(tokens, heads, rows).sigmoid(),
                draw(tokens, heads).sigmoid() if has_beta else None,
                draw(heads, depth, width),
            )
