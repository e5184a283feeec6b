# SPDX-License-Identifier: BSD-3-Clause
"""Concatenations and padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.lowering import MAX_CONCATENATED, Lowering, operands_and_result
from torchette.backends.xnnpack.operators.nodes import (
    TO_NHWC,
    arg,
    check_static,
    dims_of,
    image_axis,
    image_dims,
    option,
)
from torchette.backends.xnnpack.operators.table import Refused, register

aten = torch.ops.aten


def _cat_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    if any(tensor.meta["val"].dim() != node.meta["val"].dim() for tensor in option(node, 0)):
        raise Refused("a concatenated tensor is empty and has another rank")


@register(aten.cat.default, check=_cat_check)
def _cat(lowering: Lowering, node: Node) -> None:
    sources = list(option(node, 0))
    dim = (option(node, 1) if len(node.args) > 1 else 0) % node.meta["val"].dim()
    if len(sources) == 1:
        lowering.alias(node, sources[0])
        return
    sources = lowering.joined(node, sources, dim)
    sizes = [dims_of(source.meta["val"])[dim] for source in sources]
    values, result = operands_and_result(lowering, node, *sources)
    dims = dims_of(node.meta["val"])
    if lowering.is_image(node):
        dims, dim = image_dims(dims), image_axis(dim, len(dims))

    join(lowering, node, values, sizes, dims, dim, result)


def join(
    lowering: Lowering,
    node: Node,
    values: list[int],
    sizes: list[int],
    dims: Sequence[int],
    dim: int,
    result: int,
) -> None:
    """Concatenates values with these sizes along a dimension, with as few nodes as XNNPACK allows."""

    def join(some: list[int], into: int) -> None:
        inputs = {f"input{i + 1}_id": value for i, value in enumerate(some)}
        lowering.add(f"XNNConcatenate{len(some)}", node, None, axis=dim, output_id=into, **inputs)

    while len(values) > MAX_CONCATENATED:
        parts = [slice(i, i + MAX_CONCATENATED) for i in range(0, len(values), MAX_CONCATENATED)]
        longer = []
        for part in parts:
            if len(values[part]) == 1:
                longer += values[part]
                continue
            longer.append(lowering.scratch([*dims[:dim], sum(sizes[part]), *dims[dim + 1 :]]))
            join(values[part], longer[-1])
        values, sizes = longer, [sum(sizes[part]) for part in parts]
    join(values, result)


def _pad_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    check_static(node)
    if any(amount < 0 for amount in option(node, 1)):
        raise Refused("a negative padding")


@register(aten.constant_pad_nd.default, check=_pad_check)
def _pad(lowering: Lowering, node: Node) -> None:
    rank, amounts = node.meta["val"].dim(), list(option(node, 1))
    before, after = [0] * rank, [0] * rank
    for i in range(len(amounts) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = amounts[2 * i], amounts[2 * i + 1]
    (value,), result = operands_and_result(lowering, node, arg(node, 0))
    if lowering.is_image(node):
        before, after = (
            [amount[0], 0, amount[2], amount[1]] if rank == 3 else [amount[i] for i in TO_NHWC]
            for amount in (before, after)
        )
    amount = float(option(node, 2)) if len(node.args) > 2 else 0.0
    add_pad(lowering, node, value, before, after, amount, result)


def add_pad(
    lowering: Lowering,
    node: Node,
    value: int,
    before: Sequence[int],
    after: Sequence[int],
    amount: float,
    result: int,
) -> None:
    """Adds a node that pads a value."""
    lowering.add(
        "XNNStaticConstantPad",
        node,
        pre_paddings=list(before),
        post_paddings=list(after),
        padding_value=amount,
        input_id=value,
        output_id=result,
    )
