# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/dynamic_linear.py.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.backends.engine.cases.linear import SHAPES
from tests.backends.engine.draw import Draw
from torchette.backends.engine.operators._library import ACTIVATIONS
from torchette.backends.engine.pack import OCTET, QUAD, pack_linear, pack_nibbles, pack_quads

INFINITY, NAN = float("inf"), float("nan")
# Rows. The first rows have a range of 0, a range that overflows float32, or NaN.
EXTREMES: list[list[float]] = [
    [0.0], [-0.0], [3.5], [-2.25], [1e-40], [-1e-45, 1e-45], [1e-38, -3e-38], [3e38, -3e38], [3.4e38, 0.0], [1e30, 1e-30, -1.0],
    [INFINITY], [-INFINITY], [INFINITY, 1.0], [1.0, -INFINITY], [NAN], [1.0, NAN, 2.0], [255.0, 0.5, 1.5, 2.5, -0.5],
    [-255.0, -0.5, -1.5, -253.5], [127.5, 0.5, -1.5, 126.5, -127.5],
]  # fmt: skip
# low, high, steps, epsilon, symmetric: two of PT2E, two of torchao, and one with few steps.
SCHEMES = [
    (-128, 127, 255.0, 2.0**-12, False), (-127, 127, 127.0, 2.0**-12, True), (-128, 127, 255.0, 1.1754943508222875e-38, False),
    (-128, 127, 127.5, 2.0**-23, True), (-8, 7, 15.0, 1e-5, False),
]  # fmt: skip


def extremes(width: int) -> torch.Tensor:
    """Returns a row for each item of EXTREMES, padded with zeros, or with its first element if it has only one."""
    rows = torch.zeros(len(EXTREMES), width)
    for row, values in zip(rows, EXTREMES, strict=True):
        row[:] = values[0] if len(values) == 1 else 0.0
        row[-len(values) :] = torch.tensor(values[:width])
    return rows


def quantize_rows(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for scheme in SCHEMES:
        for is_integer in (False, True):
            for leading, inputs, _ in SHAPES:
                yield draw(*leading, inputs) * 5 + draw(*leading, 1), *scheme, is_integer
            for width in (5, 23):
                yield extremes(width), *scheme, is_integer
        for row in extremes(5):
            yield row.repeat(3, 1), *scheme, True
        yield draw(20, 70).abs() * 10.0 ** draw.below(40, 20, 1), *scheme, False
        yield (draw(3, 40) * 64).round() / 8, *scheme, True  # ties


def rows(draw: Draw, *leading: int) -> torch.Tensor:
    """Returns scales and zero points; some zero points are the limits of the range."""
    zeros = (draw.below(300, *leading) - 150).clamp(-128, 127)
    return torch.stack([draw(*leading).abs() * 0.1 + 0.01, zeros.float()], -1)


def dynamic_linear(draw: Draw) -> Iterator[tuple[Any, ...]]:
    def numbers(*sizes: int) -> torch.Tensor:
        return (draw.below(300, *sizes) - 150).clamp(-128, 127).char()

    for pack, most, unit in ((pack_quads, 128, QUAD), (pack_nibbles, 8, OCTET)):
        for leading, inputs, outputs in SHAPES:
            for groups in (1, 3):
                if groups > 1:
                    inputs = groups * unit * (inputs // unit + 1)
                weight = (draw.below(2 * most, outputs, inputs) - most).char()
                bias = draw(outputs) if groups == 1 else None
                residual = draw(*leading, outputs) if groups == 3 else None
                yield (
                    numbers(*leading, inputs), rows(draw, *leading), pack(weight), pack_linear(draw(outputs, groups) * 0.02), bias,
                    residual, outputs, "none",
                )  # fmt: skip
        for count in (1, 2, 100):  # groups of 32, over parts of a panel that are unpacked in sequence
            weight = (draw.below(2 * most, 70, 960) - most).char()
            yield (
                numbers(count, 960), rows(draw, count), pack(weight), pack_linear(draw(70, 30) * 0.01), draw(70), draw(count, 70), 70,
                "relu",
            )  # fmt: skip
        ends = torch.tensor([[0.01, 127.0], [0.01, -128.0], [0.01, 0.0]])
        for low in (-128, 127):  # the largest accumulators
            x, weight = torch.full([3, 4000], low, dtype=torch.int8), torch.full([20, 4000], -most).char()
            yield x, ends, pack(weight), pack_linear(draw(20, 1)), None, None, 20, "none"
            for number in (-most, most - 1):  # one row has a separate kernel
                weight = torch.full([20, 4000], number).char()
                yield x[:1], ends[1:2], pack(weight), pack_linear(draw(20, 1)), None, None, 20, "none"
    for activation in ACTIVATIONS:
        weight = (draw.below(256, 37, 21) - 128).char()
        yield (
            numbers(7, 21), rows(draw, 7), pack_quads(weight), pack_linear(draw(37, 1) * 0.001), draw(37), draw(7, 37), 37, activation,
        )  # fmt: skip
    unknown = torch.tensor([[NAN, -128.0], [1.0, 3.0]])
    yield numbers(2, 9), unknown, pack_quads(numbers(5, 9)), pack_linear(draw(5, 1)), draw(5), None, 5, "none"
    weight = (draw.below(16, 70, 64) - 8).char()  # more rows than share unpacked weights
    yield (
        numbers(517, 64), rows(draw, 517), pack_nibbles(weight), pack_linear(draw(70, 2) * 0.02), None, draw(517, 70), 70, "none",
    )  # fmt: skip
