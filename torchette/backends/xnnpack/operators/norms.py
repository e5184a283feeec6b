# SPDX-License-Identifier: BSD-3-Clause
"""Layer norms and group norms."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.lowering import Lowering
from torchette.backends.xnnpack.operators.nodes import (
    arg,
    arguments,
    check_static,
    dims_of,
    image_dims,
    option,
    sizes_of,
)
from torchette.backends.xnnpack.operators.reductions import mean_of
from torchette.backends.xnnpack.operators.table import Refused, register
from torchette.backends.xnnpack.payload import FP32

aten = torch.ops.aten


def _layer_norm_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    value = arg(node, 0).meta["val"]
    varies = [dim for dim, size in enumerate(value.shape) if isinstance(size, torch.SymInt)]
    if len(varies) > 1 or any(dim >= value.dim() - len(option(node, 1)) for dim in varies):
        raise Refused("a normalized dimension is dynamic, or more than one dimension is dynamic")
    if any(isinstance(arg, Node) and not is_constant(arg) for arg in arguments(node)[2:4]):
        raise Refused("the weights are computed, not constants")
    if any(option(user, 1) != 0 for user in node.users):
        raise Refused("another node reads the mean or the standard deviation")


@register(aten.native_layer_norm.default, check=_layer_norm_check)
def _layer_norm(lowering: Lowering, node: Node) -> None:
    source, normalized, weight, bias, epsilon = arguments(node)
    full_dims = dims_of(source.meta["val"])
    sizes = sizes_of(source.meta["val"])
    inner = math.prod(normalized)
    holder, *holders = node.users
    is_half = lowering.element(source) != FP32
    flat = len(normalized) > 1
    is_static = 0 not in sizes
    value = lowering.plain(source)
    if is_half:  # squares may overflow float16
        half, value = value, lowering.scratch(full_dims, FP32)
        lowering.add("XNNConvert", node, input_id=half, output_id=value)
    lowering.compute_in(FP32)
    dims, outer = full_dims, sizes[:-1]
    if flat:
        dims, outer = [math.prod(full_dims) // inner, inner], [0]
        source_value, value = value, lowering.scratch(dims)
        lowering.reshape_to(node, source_value, [*outer, inner], value)
    column = [*dims[:-1], 1]

    def mean(of: int) -> int:
        return mean_of(lowering, node, of, dims, [len(dims) - 1], is_static)

    def as_column(pooled: int) -> int:
        result = lowering.scratch(column)
        lowering.reshape_to(node, pooled, [*outer, 1], result)
        return result

    centred, squares = lowering.scratch(dims), lowering.scratch(dims)
    lowering.binary("XNNSubtract", node, value, as_column(mean(value)), centred)
    lowering.add("XNNSquare", node, input_id=centred, output_id=squares)
    variance = mean(squares)
    rows = math.prod(column)
    shifted, scale = lowering.scratch([rows, 1, 1, 1]), lowering.scratch([rows, 1, 1, 1])
    lowering.binary("XNNAdd", node, variance, lowering.scalar(float(epsilon)), shifted)
    lowering.add("XNNReciprocalSquareRoot", node, input_id=shifted, output_id=scale)
    steps = [("XNNMultiply", as_column(scale))]
    for kind, operand in (("XNNMultiply", weight), ("XNNAdd", bias)):
        stored = lowering.constant(operand) if isinstance(operand, Node) else None
        if stored is not None:
            steps.append((kind, lowering.payload.constant(stored.reshape(inner).float())))
    value = centred
    for i, (kind, operand) in enumerate(steps):
        last = i + 1 == len(steps) and not flat and not is_half
        result = lowering.result(holder) if last else lowering.scratch(dims)
        lowering.binary(kind, node, value, operand, result)
        value = result
    if flat:
        result = lowering.scratch(full_dims) if is_half else lowering.result(holder)
        lowering.reshape_to(node, value, sizes, result)
        value = result
    if is_half:
        lowering.add("XNNConvert", node, input_id=value, output_id=lowering.result(holder))
    for user in holders:
        lowering.alias(user, holder)


def _group_norm_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    check_static(node)
    if any(isinstance(arg, Node) and not is_constant(arg) for arg in arguments(node)[1:3]):
        raise Refused("the weights are computed, not constants")
    if any(option(user, 1) != 0 for user in node.users):
        raise Refused("another node reads the mean or the standard deviation")
    if arg(node, 0).meta["val"].dtype is not torch.float32:
        raise Refused("a group norm in float16")


@register(aten.native_group_norm.default, check=_group_norm_check)
def _group_norm(lowering: Lowering, node: Node) -> None:
    source, weight, bias, batch, channels, _, groups, epsilon = arguments(node)
    sizes = dims_of(source.meta["val"])
    holder, *holders = node.users
    as_image = groups == 1 and lowering.is_image(source)
    dims = image_dims(sizes) if as_image else sizes
    rows = batch * groups
    flat = [rows, math.prod(sizes) // rows]

    def mean(of: int) -> int:
        pooled, result = mean_of(lowering, node, of, flat, [1], True), lowering.scratch([rows, 1])
        lowering.reshape_to(node, pooled, [rows, 1], result)
        return result

    value, centred, squares, scaled = (lowering.scratch(flat) for _ in range(4))
    shifted, scale = (lowering.scratch([rows, 1]) for _ in range(2))
    lowering.reshape_to(node, lowering.image(source) if as_image else lowering.plain(source), flat, value)
    lowering.binary("XNNSubtract", node, value, mean(value), centred)
    lowering.add("XNNSquare", node, input_id=centred, output_id=squares)
    lowering.binary("XNNAdd", node, mean(squares), lowering.scalar(float(epsilon)), shifted)
    lowering.add("XNNReciprocalSquareRoot", node, input_id=shifted, output_id=scale)
    lowering.binary("XNNMultiply", node, centred, scale, scaled)
    shape = [channels] if as_image else [channels, *[1] * (len(sizes) - 2)]
    steps = [
        (kind, lowering.payload.constant(lowering.stored(operand).reshape(shape)))
        for kind, operand in (("XNNMultiply", weight), ("XNNAdd", bias))
        if operand is not None
    ]

    def result() -> int:
        return lowering.image_result(holder) if as_image else lowering.result(holder)

    value = lowering.scratch(dims) if steps else result()
    lowering.reshape_to(node, scaled, dims, value)
    for i, (kind, operand) in enumerate(steps):
        before, value = value, result() if i + 1 == len(steps) else lowering.scratch(dims)
        lowering.binary(kind, node, before, operand, value)
    for user in holders:
        lowering.alias(user, holder)
