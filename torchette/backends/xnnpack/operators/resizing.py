# SPDX-License-Identifier: BSD-3-Clause
"""Operators that resize images."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.joins import join
from torchette.backends.xnnpack.operators.lowering import Lowering
from torchette.backends.xnnpack.operators.nodes import (
    ALIGN_CORNERS,
    SKIPS_ZEROS,
    arg,
    arguments,
    check_static,
    check_static_channels,
    dims_of,
    image_dims,
    option,
)
from torchette.backends.xnnpack.operators.slices import add_slice
from torchette.backends.xnnpack.operators.table import Refused, register
from torchette.exir.arguments import overload

aten = torch.ops.aten


def _resize_options(node: Node) -> tuple[list[float], bool]:
    """Returns the scale factors of height and width, and whether corners are aligned."""
    before, after = arg(node, 0).meta["val"].shape[2:], node.meta["val"].shape[2:]
    aligned = node.target == aten.upsample_bilinear2d.vec and bool(option(node, 2))
    return [b / a for a, b in zip(before, after, strict=True)], aligned


_MAX_PIXELS = 128  # pixels: the matrices that resize an image grow with the square of its size


def check_resample(node: Node, is_constant: Callable[[Node], bool]) -> None:
    """Raises `Refused` if an image cannot be resized by matrix multiplications."""
    value, target = arg(node, 0).meta["val"], node.meta["val"]
    if value.dim() != 4:
        raise Refused("an image without a batch dimension")
    check_static_channels(node)
    sizes = (*value.shape[2:], *target.shape[2:])
    if any(isinstance(arg, Node) for arg in node.all_input_nodes[1:]) or any(
        isinstance(size, torch.SymInt) for size in sizes
    ):
        raise Refused("a dynamic height or width")
    if max(sizes) > _MAX_PIXELS:
        raise Refused(
            f"an image with a side of more than {_MAX_PIXELS} pixels, and XNNPACK has no node for this operator"
        )


def _pixel_weights(node: Node) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the matrices (output size, input size) by which an operator multiplies the rows and the columns of an image.
    A matrix may have additional columns for the pixels of `_with_borders`.

    A weight of 0.0 means that the operator does not read the pixel. A weight of -0.0 means that it reads the pixel with weight 0,
    so that NaN and infinity become NaN. The operator runs in float32, because in float64 other weights are 0.
    """

    def run(image: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = overload(node)(image, *arguments(node)[1:], **node.kwargs)[0]
        return result

    height, width = arg(node, 0).meta["val"].shape[2:]
    ones = torch.ones(1, 1, height, width, dtype=torch.float32)
    full = run(ones)[0]
    peak = int(full.abs().argmax())
    row, column = peak // full.shape[1], peak % full.shape[1]
    by_row = torch.eye(height, dtype=torch.float32)[None, :, :, None].expand(1, height, height, width)
    by_column = torch.eye(width, dtype=torch.float32)[None, :, None, :].expand(1, width, height, width)

    def weights(ones: torch.Tensor) -> torch.Tensor:
        response = run(ones)
        is_read = run(torch.where(ones == 1, torch.nan, ones)).isnan()
        return torch.where(is_read & (response == 0), -0.0, torch.where(is_read, response, 0.0))

    down, across = weights(by_row)[:, :, column].T, weights(by_column)[:, row].T
    across = torch.where(across == 0, across, across / full[row, column])
    if node.target == aten.upsample_bicubic2d.default:
        return _split(down, _cubic_taps(node, 0)), _split(across, _cubic_taps(node, 1))
    return down, across


def _cubic_taps(node: Node, axis: int) -> list[list[tuple[int, float]]]:
    """Returns the four pixels and weights of each output row or column of upsample_bicubic2d. Taps beyond the border read
    the pixel at the border."""
    before, after = (int(value.meta["val"].shape[2 + axis]) for value in (arg(node, 0), node))
    aligned, scale = bool(option(node, 2)), option(node, 3 + axis)
    step = (before - 1) / max(after - 1, 1) if aligned else 1 / scale if scale else before / after

    def weight(distance: float) -> float:
        d = abs(distance)
        return (1.25 * d - 2.25) * d * d + 1 if d <= 1 else ((3.75 - 0.75 * d) * d - 6) * d + 3

    taps = []
    for i in range(after):
        at = i * step if aligned else (i + 0.5) * step - 0.5
        first = math.floor(at)
        pixels = range(first - 1, first + 3)
        taps.append([(min(max(pixel, 0), before - 1), weight(at - pixel)) for pixel in pixels])
    return taps


def _borders(size: int) -> list[int]:
    return [0, size - 1][: min(size, 2)]


def _split(weights: torch.Tensor, taps: list[list[tuple[int, float]]]) -> torch.Tensor:
    """Adds columns for the negative weights of the pixels at the borders if an operator reads such a pixel several times with
    different signs, so that an infinite pixel becomes NaN as in torch."""
    first, second = weights.clone(), torch.zeros_like(weights)
    for i, row in enumerate(taps):
        for pixel in _borders(weights.shape[1]):
            shares = [weight for other, weight in row if other == pixel]
            positive, negative = sum(w for w in shares if w > 0), sum(w for w in shares if w < 0)
            if positive > 0 and min(shares) <= 0:
                first[i, pixel], second[i, pixel] = positive, negative or -0.0
    if not second.signbit().any():
        return weights
    return torch.cat([first, second[:, _borders(weights.shape[1])]], 1)


def _with_borders(lowering: Lowering, node: Node, value: int, dims: list[int], axis: int, fixed: int) -> int:
    """Appends copies of the first and the last pixel along a dimension. `fixed`: the batch, 0 if it is dynamic."""
    positions = _borders(dims[axis])
    copies = [lowering.scratch([*dims[:axis], 1, *dims[axis + 1 :]]) for _ in positions]
    for position, copy in zip(positions, copies, strict=True):
        add_slice(lowering, node, value, [fixed, *dims[1:]], axis, position, 1, copy)
    longer = [*dims[:axis], dims[axis] + len(copies), *dims[axis + 1 :]]
    result = lowering.scratch(longer)
    join(lowering, node, [value, *copies], [dims[axis], *[1] * len(copies)], longer, axis, result)
    return result


@register(
    aten._adaptive_avg_pool2d.default, aten.upsample_bicubic2d.default, aten._upsample_bilinear2d_aa.default,
    aten._upsample_bicubic2d_aa.default, aten._upsample_nearest_exact2d.default, check=check_resample,
)  # fmt: skip
def emit_resample(lowering: Lowering, node: Node) -> None:
    """Lowers to a matrix multiplication of an image's rows and one of its columns."""
    dtype = node.meta["val"].dtype
    down, across = _pixel_weights(node)
    batch, height, width, channels = image_dims(dims_of(arg(node, 0).meta["val"]))
    _, high, wide, _ = image_dims(dims_of(node.meta["val"]))
    fixed = 0 if isinstance(node.meta["val"].shape[0], torch.SymInt) else batch
    widened = lowering.scratch([batch, height, wide, channels])
    rows, product = (lowering.scratch([batch, size, wide * channels]) for size in (height, high))
    of_image, of_rows = [batch, height, width, channels], [batch, height, wide * channels]
    image = lowering.image(arg(node, 0))
    for weights, right, dims, result in ((across, image, of_image, widened), (down, rows, of_rows, product)):
        if right == rows:
            lowering.reshape_to(node, widened, [fixed, height, wide * channels], rows)
        if weights.shape[1] > dims[-2]:
            right = _with_borders(lowering, node, right, dims, len(dims) - 2, fixed)
        lowering.add(
            "XNNBatchMatrixMultiply",
            node,
            input1_id=lowering.payload.constant(weights.to(dtype)),
            input2_id=right,
            output_id=result,
            flags=SKIPS_ZEROS,
        )
    lowering.reshape_to(node, product, [fixed, high, wide, channels], lowering.image_result(node))


def _needs_resample(node: Node) -> bool:
    """Returns whether XNNPACK has no node for a resize: its factors are not the ratios of the sizes, or are not integers."""
    factors, aligned = _resize_options(node)
    scales = option(node, -1) if isinstance(option(node, -1), (list, tuple)) else None
    if scales is not None and not aligned and any(a != b for a, b in zip(scales, factors, strict=True)):
        return True
    return node.target == aten.upsample_nearest2d.vec and any(factor % 1 for factor in factors)


def _resize_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    check_static(node)
    if _needs_resample(node):
        check_resample(node, is_constant)


@register(aten.upsample_bilinear2d.vec, check=_resize_check)
def _resize(lowering: Lowering, node: Node) -> None:
    if _needs_resample(node):
        emit_resample(lowering, node)
        return
    image = lowering.image(arg(node, 0))
    _, height, width, _ = image_dims(dims_of(node.meta["val"]))
    lowering.add(
        "XNNStaticResizeBilinear2D",
        node,
        new_height=height,
        new_width=width,
        input_id=image,
        output_id=lowering.image_result(node),
        flags=ALIGN_CORNERS if _resize_options(node)[1] else 0,
    )


@register(aten.upsample_nearest2d.vec, check=_resize_check)
def _repeat_pixels(lowering: Lowering, node: Node) -> None:
    if _needs_resample(node):
        emit_resample(lowering, node)
        return
    batch, height, width, channels = image_dims(dims_of(arg(node, 0).meta["val"]))
    down, right = (int(factor) for factor in _resize_options(node)[0])
    apart, repeated = [batch * height, 1, width, 1, channels], [batch * height, down, width, right, channels]
    value, product = lowering.scratch(apart), lowering.scratch(repeated)
    lowering.reshape_to(node, lowering.image(arg(node, 0)), apart, value)
    ones = lowering.payload.constant(torch.ones(1, down, 1, right, 1).to(node.meta["val"].dtype))
    lowering.binary("XNNMultiply", node, value, ones, product)
    shape = [batch, height * down, width * right, channels]
    lowering.reshape_to(node, product, shape, lowering.image_result(node))
