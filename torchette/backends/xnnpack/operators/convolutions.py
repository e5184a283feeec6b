# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions, and batch norms, which become depthwise convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.lowering import Lowering
from torchette.backends.xnnpack.operators.matmuls import check_weights_constant
from torchette.backends.xnnpack.operators.nodes import (
    IMAGES,
    TO_NHWC,
    arg,
    arguments,
    check_static_channels,
    dims_of,
    option,
)
from torchette.backends.xnnpack.operators.table import Refused, register

aten = torch.ops.aten

# Fields of a convolution node: the window, then padding and output padding.
WINDOW = [f"{what}_{side}" for what in ("kernel", "subsampling", "dilation") for side in ("height", "width")]


AROUND = [f"padding_{side}" for side in ("top", "right", "bottom", "left")] + [
    f"adjustment_{side}" for side in ("height", "width")
]


def pair_of(value: int | Sequence[int]) -> tuple[int, int]:
    """Returns (height, width) of an option that is one value for both, or a pair."""
    values = [value] if isinstance(value, int) else list(value)
    return (values * 2)[0], (values * 2)[1]


def _first(value: int | Sequence[int]) -> tuple[int]:
    return (value if isinstance(value, int) else value[0],)


def _convolution_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    check_static_channels(node)
    check_weights_constant(node, is_constant)
    weight = arg(node, 1).meta["val"]
    transposed, output_padding, groups = arguments(node)[6:9]
    if weight.dim() not in IMAGES or arg(node, 0).meta["val"].dim() != weight.dim():
        raise Refused("a convolution with three spatial dimensions, or without a batch dimension")
    if transposed and groups != 1 and arg(node, 1).op == "call_function":
        raise Refused("a grouped transposed convolution on integers")
    if transposed and any(
        p >= s for p, s in zip(pair_of(output_padding), pair_of(option(node, 3)), strict=True)
    ):
        raise Refused("the output padding is not less than the stride")


@register(aten.convolution.default, check=_convolution_check)
def _convolution(lowering: Lowering, node: Node) -> None:
    source, weight, bias, stride, padding, dilation, transposed, output_padding, groups = arguments(node)
    shape = weight.meta["val"].shape
    if len(shape) == 3:  # a sequence is an image of height 1
        shape = (*shape[:2], 1, shape[2])
        (stride, dilation), (padding, output_padding) = (
            [(fill, *_first(value)) for value in pair]
            for fill, pair in ((1, (stride, dilation)), (0, (padding, output_padding)))
        )
    assert isinstance(groups, int)
    channels_in = source.meta["val"].shape[1]
    channels_out = node.meta["val"].shape[1]
    (top, left), (stride_h, stride_w), (dilation_h, dilation_w) = (
        pair_of(padding),
        pair_of(stride),
        pair_of(dilation),
    )
    adjust_h, adjust_w = pair_of(output_padding) if transposed else (0, 0)
    depthwise = not transposed and groups == channels_in and groups > 1
    if transposed:
        kind, order, outputs = "XNNConvTranspose2d", (1, 2, 3, 0), 0
    elif depthwise:
        # one channel per group: [height, width, channels]
        kind, order, outputs = "XNNDepthwiseConv2d", (1, 2, 3, 0), 3
    else:
        kind, order, outputs = "XNNConv2d", TO_NHWC, 0
    image = lowering.image(source)
    if transposed and groups > 1:  # the outputs of a group before its inputs, which torch stores first
        stored = lowering.stored(weight).reshape(groups, -1, *shape[1:]).transpose(1, 2)
        filters = lowering.payload.constant(stored.flatten(0, 1).permute(0, 2, 3, 1))
    else:
        filters = lowering.weights(weight, source, outputs, order)
    lowering.add(
        kind,
        node,
        padding_top=top,
        padding_right=left,
        padding_bottom=top,
        padding_left=left,
        kernel_height=shape[2],
        kernel_width=shape[3],
        subsampling_height=stride_h,
        subsampling_width=stride_w,
        dilation_height=dilation_h,
        dilation_width=dilation_w,
        group_input_channels=channels_in // groups,
        group_output_channels=channels_out // groups,
        groups=groups,
        adjustment_height=adjust_h,
        adjustment_width=adjust_w,
        input1_id=image,
        filter_id=filters,
        bias_id=lowering.bias(bias, source, weight),
        output_id=lowering.image_result(node),
    )


def _batch_norm_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    check_static_channels(node)
    if any(isinstance(arg, Node) and not is_constant(arg) for arg in arguments(node)[1:5]):
        raise Refused("the weights are computed, not constants")
    if arg(node, 0).meta["val"].dim() not in (2, *IMAGES):
        raise Refused("a batch norm with fewer than 2 or more than 4 dimensions")
    if any(option(user, 1) != 0 for user in node.users):
        raise Refused("another node reads the mean or the standard deviation")


@register(aten._native_batch_norm_legit_no_training.default, check=_batch_norm_check)
def _batch_norm(lowering: Lowering, node: Node) -> None:
    """Lowers to a depthwise convolution with filters of one pixel, or to a product and a sum for two dimensions."""
    source, *stored, _, epsilon = arguments(node)
    weight, bias, mean, variance = (
        lowering.stored(arg).double() if isinstance(arg, Node) else torch.tensor(default)
        for arg, default in zip(stored, (1.0, 0.0, 0.0, 1.0), strict=True)
    )
    scale = weight * torch.rsqrt(variance + epsilon)
    shift = bias - mean * scale
    value = source.meta["val"]
    added = lowering.payload.constant(shift.to(value.dtype))
    holder, *holders = node.users
    if value.dim() == 2:
        factor, product = lowering.payload.constant(scale.to(value.dtype)), lowering.scratch(dims_of(value))
        lowering.binary("XNNMultiply", node, lowering.plain(source), factor, product)
        lowering.binary("XNNAdd", node, product, added, lowering.result(holder))
    else:
        filters = scale.to(value.dtype).reshape(1, 1, 1, -1)
        unit = dict.fromkeys(WINDOW, 1) | dict.fromkeys(AROUND, 0)
        lowering.add(
            "XNNDepthwiseConv2d",
            node,
            None,
            **unit,
            group_input_channels=1,
            group_output_channels=1,
            groups=scale.numel(),
            input1_id=lowering.image(source),
            filter_id=lowering.payload.constant(filters),
            bias_id=added,
            output_id=lowering.image_result(holder),
        )
    for user in holders:
        lowering.alias(user, holder)
