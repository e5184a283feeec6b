# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/depthwise.cpp.
"""`cpu::depthwise`: one filter for each channel, channels last, with residual and activation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchette.backends.engine.operators._library import LIBRARY, channels_first, channels_last, finish
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
