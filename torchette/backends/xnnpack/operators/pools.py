# SPDX-License-Identifier: BSD-3-Clause
"""Maximum and average pools."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.convolutions import pair_of
from torchette.backends.xnnpack.operators.joins import add_pad
from torchette.backends.xnnpack.operators.lowering import Lowering
from torchette.backends.xnnpack.operators.nodes import (
    arg,
    check_static,
    check_static_channels,
    dims_of,
    image_dims,
    option,
)
from torchette.backends.xnnpack.operators.resizing import check_resample, emit_resample
from torchette.backends.xnnpack.operators.table import Refused, register

aten = torch.ops.aten


def _pool_options(
    node: Node,
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int], bool]:
    """Returns (kernel, stride, padding, dilation, ceil_mode)."""
    kernel = pair_of(option(node, 1))
    stride = pair_of(option(node, 2)) if len(node.args) > 2 and option(node, 2) else kernel
    padding = pair_of(option(node, 3)) if len(node.args) > 3 else (0, 0)
    if node.target == aten.avg_pool2d.default:
        return kernel, stride, padding, (1, 1), bool(option(node, 4)) if len(node.args) > 4 else False
    dilation = pair_of(option(node, 4)) if len(node.args) > 4 else (1, 1)
    return kernel, stride, padding, dilation, bool(option(node, 5)) if len(node.args) > 5 else False


def _is_weighted_sum(node: Node) -> bool:
    """Returns whether an average pool has windows that extend beyond the padding, or a divisor_override. Such a pool becomes a
    weighted sum."""
    if node.target != aten.avg_pool2d.default:
        return False
    kernel, stride, padding, _, ceil = _pool_options(node)
    before, after = arg(node, 0).meta["val"].shape[-2:], node.meta["val"].shape[-2:]
    longer = ceil and any(
        (after[i] - 1) * stride[i] + kernel[i] > before[i] + 2 * padding[i] for i in range(2)
    )
    return longer or (len(node.args) > 6 and option(node, 6) is not None)


def _pool_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    check_static_channels(node)
    kernel, stride, _, _, ceil = _pool_options(node)
    if arg(node, 0).meta["val"].dim() != 4:
        raise Refused("a pool of an image without a batch dimension")
    if ceil:
        check_static(node)
    if kernel == (1, 1):
        raise Refused("a pool with a window of one element")
    if _is_weighted_sum(node):
        check_resample(node, is_constant)
    elif node.target != aten.avg_pool2d.default:
        if any(option(user, 1) != 0 for user in node.users):
            raise Refused("another node reads the indices of the maxima")
        if any(step > size for step, size in zip(stride, kernel, strict=True)):
            raise Refused("the stride of a maximum pool is greater than its window")


@register(aten.avg_pool2d.default, aten.max_pool2d_with_indices.default, check=_pool_check)
def _pool(lowering: Lowering, node: Node) -> None:
    if _is_weighted_sum(node):
        emit_resample(lowering, node)
        return
    kernel, stride, padding, dilation, ceil = _pool_options(node)
    source = arg(node, 0)
    image = lowering.image(source)
    average = node.target == aten.avg_pool2d.default
    # A maximum pool returns two results: values and indices.
    holder, *holders = (node,) if average else tuple(node.users)
    after = list(padding)
    if ceil:  # the last window may extend beyond the padding
        before, got = source.meta["val"].shape[2:], holder.meta["val"].shape[2:]
        for i in range(2):
            reach = (got[i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1
            after[i] = max(after[i], reach - before[i] - padding[i])
    # the average includes the padding
    if average and any(padding) and (len(node.args) < 6 or option(node, 5)):
        n, h, w, c = image_dims(dims_of(source.meta["val"]))
        padded = lowering.scratch([n, h + 2 * padding[0], w + 2 * padding[1], c])
        around = [0, *padding, 0]
        add_pad(lowering, node, image, around, around, 0.0, padded)
        image, padding, after = padded, (0, 0), [0, 0]
    lowering.add(
        "XNNAvgPooling2d" if average else "XNNMaxPooling2d",
        node,
        padding_top=padding[0],
        padding_right=after[1],
        padding_bottom=after[0],
        padding_left=padding[1],
        pooling_height=kernel[0],
        pooling_width=kernel[1],
        stride_height=stride[0],
        stride_width=stride[1],
        dilation_height=dilation[0],
        dilation_width=dilation[1],
        input_id=image,
        output_id=lowering.image_result(holder),
    )
    for user in holders:
        lowering.alias(user, holder)
