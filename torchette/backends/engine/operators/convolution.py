# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/convolution.cpp.
"""`cpu::convolution`, `cpu::planar_convolution`: convolution with a constant filter, with residual and activation.
`cpu::convolution_into`: a convolution that computes a part of the channels of its result."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchette.backends.engine.operators._library import (
    LIBRARY,
    channels_first,
    channels_last,
    finish,
    put_channels,
    widened,
)
from torchette.backends.engine.pack import restore_last_panel, unpack_convolution, unpack_pairs
from torchette.exir.dialects._ops import bind_pattern_to_op, ops


@bind_pattern_to_op(
    LIBRARY,
    "convolution(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, int[] stride, int[] padding, "
    "int[] dilation, int outputs, str activation) -> Tensor",
    overwrites=("residual",),
)
def convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    outputs: int,
    activation: str,
) -> torch.Tensor:
    """activation(convolution(input) + bias + residual)

    Args:
        input: float32 [N, *spatial, C], one to three spatial dimensions.
        weight: `pack_convolution`: [groups, ceil(outputs / groups / 16), *kernel, C / groups, 16]; or `cut_last_panel` of
            each group: [groups, *kernel, C / groups, outputs / groups]. float32, or stored as bfloat16 or float16. Or
            `pack_pairs`: int32 [groups, ceil(outputs / groups / 16), *kernel, C / groups / 2, 16]; a processor with
            instructions for bfloat16 then rounds the input to bfloat16.
        bias: [outputs].
        residual: [N, *spatial, outputs], the shape of the result.
        stride, padding, dilation: one value for each spatial dimension.
        activation: a name of `ACTIVATIONS`.
    """
    filters = _filters(weight, len(stride), outputs)
    result = _convolve(channels_first(input), filters, bias, stride, padding, dilation, weight.shape[0])
    return finish(channels_last(result), residual, activation)


@bind_pattern_to_op(
    LIBRARY,
    "convolution_into(Tensor? into, Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
    "int[] dilation, int outputs, str activation, int first, int channels) -> Tensor",
    overwrites=("into",),
)
def convolution_into(
    into: torch.Tensor | None,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    outputs: int,
    activation: str,
    first: int,
    channels: int,
) -> torch.Tensor:
    """into[..., first : first + outputs] = activation(convolution(input) + bias)

    Args:
        into: [N, *spatial, channels], the shape of the result. If None, the kernel does not write the other channels.
        input, weight, bias, stride, padding, dilation, outputs, activation: as in `convolution`.
        first: the channel of the result that contains the first output.
        channels: channels of the result.
    """
    part = convolution(input, weight, bias, None, stride, padding, dilation, outputs, activation)
    return put_channels(into, part, first, channels)


@bind_pattern_to_op(
    LIBRARY,
    "planar_convolution(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, int[] stride, int[] padding, "
    "int[] dilation, int outputs, str activation) -> Tensor",
    overwrites=("residual",),
)
def planar_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    outputs: int,
    activation: str,
) -> torch.Tensor:
    """activation(convolution(input) + bias + residual) for a channels-first image with few channels.

    Args:
        input: float32 [N, C, *spatial], one or two spatial dimensions.
        weight: `pack_convolution` of [outputs, 1, C, *kernel]: [1, ceil(outputs / 16), C, *kernel, 1, 16]; or
            `cut_last_panel` of it: [1, C, *kernel, 1, outputs]. float32, or stored as bfloat16 or float16.
        bias: [outputs].
        residual: [N, *spatial, outputs], the shape of the result.
        stride, padding, dilation: one value for each spatial dimension.
        activation: a name of `ACTIVATIONS`.
    """
    filters = _filters(weight, len(stride) + 1, outputs).squeeze(1)
    result = _convolve(input, filters, bias, stride, padding, dilation, 1)
    return finish(channels_last(result), residual, activation)


def _filters(weight: torch.Tensor, spatial: int, outputs: int) -> torch.Tensor:
    """Unpacks a weight to [N, C / groups, *kernel]."""
    weight = unpack_pairs(weight) if weight.dtype is torch.int32 else weight
    return unpack_convolution(
        torch.stack([restore_last_panel(group, spatial + 3) for group in weight]), outputs
    )


def _convolve(
    image: torch.Tensor,
    filters: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    where = (list(stride), list(padding), list(dilation))
    filters = widened(filters, image.dtype)
    result: torch.Tensor = ops.edge.aten.convolution.default(
        image, filters, bias, *where, False, [0] * len(stride), groups
    )
    return result
