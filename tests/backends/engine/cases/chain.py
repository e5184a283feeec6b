# SPDX-License-Identifier: BSD-3-Clause
# Programs of one or many instructions, over operands of every kind; blocks that end within a vector; rows that share a block, and
# rows of several blocks.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.backends.engine.draw import Draw
from torchette.backends.engine.operators.chain import OPERATIONS

_SILU_PRODUCT = "sigmoid i0 mul i0 v0 mul v1 i1"
_SPECIAL = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, -1e18, 1.5, -2.5])
# Boolean operands, for conditions.
_LOGICAL = ("logical_and", "logical_not", "logical_or")


def chain(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for name, (arity, _) in OPERATIONS.items():
        operands = "c0 c1" if name in _LOGICAL else "c0 i0 i1" if name == "where" else "i0 i1"
        program = " ".join([name, *operands.split()[:arity]])
        a, b, c, d = draw(3, 37), draw(3, 37), draw.bools(3, 37), draw.bools(37)
        if name in ("log", "log1p", "rsqrt", "sqrt"):
            a = a.abs()
        if name.startswith("logical") or (
            len(OPERATIONS[name]) and name in ("eq", "ge", "gt", "le", "lt", "ne")
        ):
            yield [a, b], [c, d], [2.0, -1.0], f"{program} where v0 n0 n1", "none", False
        else:
            yield [a, b], [c, d], [], program, "none", False
    # NaN and infinities with every other operand.
    for name in ("maximum", "minimum", "add", "sub", "mul"):
        yield [_SPECIAL[:, None], _SPECIAL], [], [], f"{name} i0 i1", "none", False
    for name in ("relu", "relu6", "abs", "neg", "exp", "log", "sqrt", "hardsigmoid", "tanh", "sigmoid"):
        yield [_SPECIAL], [], [], f"{name} i0", "none", False
    # Broadcast operands: vectors, columns, a single element, leading and middle dimensions.
    for shapes in (
        ((2, 5, 64), (64,)), ((2, 5, 64), (2, 5, 1)), ((2, 5, 64), (2, 1, 64)), ((4, 1), (1, 3)), ((7,), ()),
        ((2, 3, 4, 5), (3, 1, 5)), ((1, 1, 1), (1,)), ((3, 1000), (3, 1)), ((3, 1000), (1000,)), ((5000,), (1,)),
        ((2, 0, 3), (3,)), ((16, 1), (2, 1, 40)),
    ):  # fmt: skip
        yield [draw(*shape) for shape in shapes], [], [], _SILU_PRODUCT, "none", False
    yield (
        [draw(3, 40)],
        [draw.bools(40), draw.bools(3, 1)],
        [0.5],
        "where c0 i0 n0 where c1 v0 i0",
        "none",
        False,
    )
    # Folds of short and long rows.
    for length in (1, 7, 16, 100, 1000, 5000):
        for fold in ("sum", "mean", "max"):
            yield [draw(5, length), draw(length)], [], [], "mul i0 i1 tanh v0", fold, length % 2 == 0
    yield [torch.cat([draw(2, 30), _SPECIAL.expand(2, -1)], 1)], [], [], "neg i0", "max", False
    # Many instructions over enough elements for several threads, and intermediate results that live long.
    yield [draw(300, 700), draw(300, 700)], [], [], _SILU_PRODUCT, "none", False
    yield [draw(300, 700), draw(700)], [], [], _SILU_PRODUCT, "sum", True
    words = "tanh i0 " + " ".join(f"add v{i} i{i % 3}" for i in range(20))
    words += "".join(f" mul v{i} v{20 + i}" for i in range(10))
    yield [draw(33, 65), draw(65), draw(33, 1)], [], [], words, "none", False
