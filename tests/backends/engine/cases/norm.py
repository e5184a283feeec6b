# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/norm.py.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.backends.engine.draw import Draw

# Leading dimensions, dimensions that are normalized.
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((), (5,)), ((1,), (1,)), ((1,), (64,)), ((3,), (16,)), ((2, 5), (15,)), ((7,), (17,)), ((2, 1, 3), (100,)),
    ((4,), (3, 5)), ((2,), (2, 3, 11)), ((0,), (6,)), ((33,), (257,)),
]  # fmt: skip


def layer_norm(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for leading, shape in SHAPES:
        x = draw(*leading, *shape)
        yield x, draw(*shape), draw(*shape), list(shape), 1e-5
        yield x, draw(*shape), None, list(shape), 1e-6
        yield x, None, draw(*shape), list(shape), 1e-3
        yield x, None, None, list(shape), 1e-12
    yield draw(3, 40) + 20, draw(40), draw(40), [40], 1e-5  # a mean that is larger than the spread
    yield draw(2, 19) * 0, draw(19), draw(19), [19], 1e-5


def rms_norm(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for leading, shape in SHAPES:
        x = draw(*leading, *shape)
        yield x, draw(*shape), list(shape), 1e-5
        yield x, None, list(shape), 1e-6
    yield draw(2, 19) * 0, draw(19), [19], 1e-5
    yield draw(2, 19) * 1e6, None, [19], 1e-5
