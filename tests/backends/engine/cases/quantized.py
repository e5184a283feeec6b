# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/quantized.py: full ranges of 8-bit values, results on ties and beyond both limits.

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from tests.backends.engine.cases.convolution import WINDOWS, Sizes
from tests.backends.engine.cases.image_pool import WINDOWS as POOLS
from tests.backends.engine.cases.linear import SHAPES
from tests.backends.engine.draw import Draw
from torchette.backends.engine.operators import quantized
from torchette.backends.engine.pack import pack_linear, pack_quads, requantization_terms

TYPES = (torch.int8, torch.uint8)


def _bytes(draw: Draw, dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    """Returns values of the full range of a type; its limits are more frequent."""
    info = torch.iinfo(dtype)
    x = draw.below(300, *sizes) - 22 + info.min
    return x.clamp(info.min, info.max).to(dtype)


def _zero(dtype: torch.dtype, number: int) -> int:
    """Returns a zero point in the range of a type."""
    return number - 128 if dtype is torch.int8 else number


def _terms(draw: Draw, weights: torch.Tensor, groups: int, ties: bool) -> torch.Tensor:
    """Returns requantization terms. The results spread over their range and beyond; with `ties` they are integers and halves."""
    outputs, depth = weights.shape
    bias = draw.below(2000, outputs).double() - 1000
    spread = 60.0 * math.sqrt(max(depth, 1)) * 64
    scales = (
        torch.full([outputs], 0.5).double() if ties else (draw(outputs).abs() + 0.1).double() * 100 / spread
    )
    return requantization_terms(weights, bias * scales if ties else bias * 0.01, scales, 1.0, groups)


def quantized_linear(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for dtype in TYPES:
        for leading, inputs, outputs in SHAPES:
            weights = _bytes(draw, torch.int8, outputs, inputs)
            terms = _terms(draw, weights, 1, ties=inputs < 10)
            low, high = (
                (_zero(dtype, 0), _zero(dtype, 255)) if inputs % 2 else (_zero(dtype, 9), _zero(dtype, 200))
            )
            zeros = _zero(dtype, 131), outputs, _zero(dtype, 100)
            yield _bytes(draw, dtype, *leading, inputs), pack_quads(weights), terms, *zeros, low, high
        for zero in (0, 255):  # the largest accumulators
            weights = torch.full([20, 4000], -128, dtype=torch.int8)
            x = torch.full([7, 4000], _zero(dtype, 255 - zero)).to(dtype)
            terms = requantization_terms(weights, None, torch.full([20], 3e-7).double(), 1.0, 1)
            yield (
                x,
                pack_quads(weights),
                terms,
                _zero(dtype, zero),
                20,
                _zero(dtype, 128),
                _zero(dtype, 0),
                _zero(dtype, 255),
            )


# Tiles of one to four panels with full and partial rows, and depthwise convolutions of several blocks of 64 channels.
_WIDE: list[tuple[tuple[int, int, int, int], Sizes, Sizes, Sizes, Sizes, Sizes]] = [
    ((1, 12, 250, 1), (5, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 6, 100, 2), (7, 6), (3, 3), (2, 1), (1, 1), (1, 1)),
    ((1, 64, 40, 1), (9, 14), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((1, 70, 24, 1), (6, 17), (5, 5), (2, 2), (2, 2), (1, 1)),
    ((1, 36, 300, 1), (9, 9), (1, 1), (1, 1), (0, 0), (1, 1)),
    ((1, 130, 16, 1), (9, 12), (7, 3), (1, 2), (3, 1), (1, 1)),
    ((1, 65, 33, 1), (6, 21), (3, 5), (1, 1), (0, 4), (2, 1)),
    ((1, 64, 20, 1), (3, 5, 6), (1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1)),
    ((1, 8, 20, 1), (1, 5, 6), (1, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    ((1, 8, 20, 1), (3, 3), (2, 2), (1, 1), (100, 100), (150, 150)),  # distant taps
    ((1, 4, 5, 1), (130, 120), (3, 3), (1, 1), (1, 1), (1, 1)),  # several blocks of lines
    ((1, 20, 40, 1), (14, 15), (1, 1), (1, 1), (0, 0), (1, 1)),  # threads share the rows
]  # fmt: skip


def quantized_convolution(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for dtype in TYPES:
        for (batch, channels, outputs, groups), image, kernel, *where in (*WINDOWS, *_WIDE):
            depth = channels // groups * math.prod(kernel)
            weights = _bytes(draw, torch.int8, outputs, depth)
            packed = torch.stack([pack_quads(each) for each in weights.view(groups, -1, depth)])
            terms = _terms(draw, weights, groups, ties=groups > 1)
            yield (
                _bytes(draw, dtype, batch, *image, channels), packed, terms, _zero(dtype, 77), list(kernel),
                *map(list, where), outputs, _zero(dtype, 140), _zero(dtype, 3), _zero(dtype, 250),
            )  # fmt: skip


def quantized_convolution_add(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for convolution in quantized_convolution(draw):
        image, packed, terms, input_zero, *where, outputs, zero, low, high = convolution
        shape = quantized.quantized_convolution(*convolution).shape
        bounds = _zero(image.dtype, 99), _zero(image.dtype, 1), _zero(image.dtype, 251)
        for a, b, scale in ((0.5, 0.5, 1.0), (0.1, 0.37, 0.21)):
            yield (
                image, packed, terms, _bytes(draw, image.dtype, *shape), input_zero, *where, outputs, a, zero, low, high,
                b, _zero(image.dtype, 250), scale, *bounds,
            )  # fmt: skip


def quantized_depthwise(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for dtype in TYPES:
        for (batch, channels, outputs, _), image, kernel, *where in (*WINDOWS, *_WIDE):
            for width in (channels, outputs):
                weights = _bytes(draw, torch.int8, width, math.prod(kernel))
                yield (
                    _bytes(draw, dtype, batch, *image, width), pack_linear(weights),
                    _terms(draw, weights, 1, ties=width < 9), _zero(dtype, 200), list(kernel), *map(list, where),
                    _zero(dtype, 20), _zero(dtype, 0), _zero(dtype, 255),
                )  # fmt: skip


_SIZES = ((), (1,), (15,), (16,), (3, 0), (2, 3, 50), (9000,), (70, 333))


def quantize(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for dtype in TYPES:
        for sizes in _SIZES:
            x = draw(*sizes) * 20
            x.view(-1)[::3] = (x.view(-1)[::3] * 8).round() / 8  # ties of a scale of 0.25
            x.view(-1)[1:4] = torch.tensor([float("inf"), float("-inf"), 1e30])[: x.numel()][
                : max(x.numel() - 1, 0)
            ]
            for scale in (0.25, 0.1):
                yield x, scale, _zero(dtype, 128), _zero(dtype, 0), _zero(dtype, 255), dtype
        yield draw(40), 0.1, _zero(dtype, 10), _zero(dtype, 10), _zero(dtype, 17), dtype


def dequantize(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for dtype in TYPES:
        for sizes in _SIZES:
            for zero in (0, 3, 255):
                yield _bytes(draw, dtype, *sizes), 0.0371, _zero(dtype, zero)


def lookup(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for dtype in TYPES:
        for table_dtype in TYPES:
            for sizes in _SIZES:
                yield _bytes(draw, dtype, *sizes), _bytes(draw, table_dtype, 256)


def quantized_add(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for dtype in TYPES:
        for sizes in _SIZES:
            for a, b, out in ((0.5, 0.5, 1.0), (0.1, 0.37, 0.21), (1e-3, 2.0, 0.9)):
                yield (
                    _bytes(draw, dtype, *sizes), _bytes(draw, dtype, *sizes), a, _zero(dtype, 7), b, _zero(dtype, 250),
                    out, _zero(dtype, 99), _zero(dtype, 1), _zero(dtype, 251),
                )  # fmt: skip


def quantized_mul(draw: Draw) -> Iterator[tuple[Any, ...]]:
    sizes = [((9,), (9,)), ((3, 0), (3, 0)), ((2, 3, 50), (2, 1, 50)), ((2, 5, 4, 33), (2, 5, 1, 1)), ((70, 333), (1, 1)),
             ((2, 6, 7, 24), (2, 1, 1, 24))]  # fmt: skip
    for dtype in TYPES:
        for full_size, part in sizes:
            for a, b, out in ((0.5, 0.5, 0.25), (0.1, 0.37, 0.9)):
                yield (
                    _bytes(draw, dtype, *full_size), _bytes(draw, dtype, *part), a, _zero(dtype, 7), b, _zero(dtype, 250),
                    out, _zero(dtype, 99), _zero(dtype, 1), _zero(dtype, 251),
                )  # fmt: skip


def quantized_avg_pool(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for dtype in TYPES:
        zeros = _zero(dtype, 131), _zero(dtype, 100)
        for sizes, kernel, stride, padding in POOLS:
            for ties in (False, True):
                multiplier = 0.5 if ties else 1.3 / math.prod(kernel)
                low, high = (
                    (_zero(dtype, 0), _zero(dtype, 255)) if ties else (_zero(dtype, 40), _zero(dtype, 180))
                )
                where = list(kernel), list(stride), list(padding)
                yield _bytes(draw, dtype, *sizes), *where, multiplier, *zeros, low, high
        # the largest accumulators
        x = torch.full([1, 256, 256, 3], _zero(dtype, 255)).to(dtype)
        where = [256, 256], [256, 256], [0, 0]
        yield x, *where, 0.7 / 65536, _zero(dtype, 0), _zero(dtype, 9), _zero(dtype, 0), _zero(dtype, 255)
    yield _bytes(draw, torch.int8, 2, 9, 20), [9], [9], [0], 0.1, 3, -4, -128, 127
    yield _bytes(draw, torch.int8, 1, 4, 5, 6, 18), [2, 3, 2], [1, 2, 2], [1, 0, 1], -0.1, 3, -4, -128, 127
