# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/depthwise.cpp.
"""`cpu::depthwise`: one filter for each channel, channels last, with residual and activation. `cpu::depthwise_into`: the
same for a part of the channels of its input and of its result."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchette.backends.engine.operators._library import (
    LIBRARY,
    channels_first,
    channels_last,
    finish,
    put_channels,
)
from torchette.backends.engine.pack import restore_last_panel, unpack_depthwise
from torchette.exir.dialects._ops import bind_pattern_to_op, ops


@bind_pattern_to_op(
    LIBRARY,
    "depthwise(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, int[] stride, int[] padding, "
    "int[] dilation, str activation) -> Tensor",
    overwrites=("residual",),
)
def depthwise(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    activation: str,
) -> torch.Tensor:
    """activation(convolution of each channel + bias + residual)

    Args:
        input: float32 [N, *spatial, C], one to three spatial dimensions.
        weight: `pack_depthwise`: [ceil(C / 16), *kernel, 16]; or `cut_last_panel` of it: [*kernel, C].
        bias: [C].
        residual: [N, *spatial, C], the shape of the result.
        stride, padding, dilation: one value for each spatial dimension.
        activation: a name of `ACTIVATIONS`.
    """
    channels = input.shape[-1]
    filters, zeros = unpack_depthwise(restore_last_panel(weight, input.dim()), channels), [0] * len(stride)
    result = ops.edge.aten.convolution.default(
        channels_first(input),
        filters,
        bias,
        list(stride),
        list(padding),
        list(dilation),
        False,
        zeros,
        channels,
    )
    return finish(channels_last(result), residual, activation)


@bind_pattern_to_op(
    LIBRARY,
    "depthwise_into(Tensor? into, Tensor? input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
    "int[] dilation, int count, int source, str activation, int first, int channels) -> Tensor",
    overwrites=("into",),
)
def depthwise_into(
    into: torch.Tensor | None,
    input: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    count: int,
    source: int,
    activation: str,
    first: int,
    channels: int,
) -> torch.Tensor:
    """into[..., first : first + count] = activation(depthwise(input[..., source : source + count]) + bias)

    Args:
        into: [N, *spatial, channels], the shape of the result. If None, the kernel does not write the other channels.
        input: float32 [N, *spatial, C]. If None, the call reads `into`, from other channels than it writes.
        weight, bias, stride, padding, dilation, activation: as in `depthwise`.
        count: number of channels that the call computes.
        source, first: the first of these channels in the input and in the result.
        channels: channels of the result.
    """
    image = into if input is None else input
    assert image is not None
    read = ops.edge.aten.slice_copy.Tensor(image, image.dim() - 1, source, source + count)
    part = depthwise(read, weight, bias, None, stride, padding, dilation, activation)
    return put_channels(into, part, first, channels)
