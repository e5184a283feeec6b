# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/cpu/convolution.cpp.
"""`cpu::convolution`: an image and a constant filter, channels last, and what follows it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchette.backends.cpu.operators._library import LIBRARY, channels_first, channels_last, finish
from torchette.backends.cpu.pack import unpack_convolution, whole_panels
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
            each group: [groups, *kernel, C / groups, outputs / groups].
        bias: [outputs].
        residual: of the result's shape, [N, *spatial, outputs].
        stride, padding, dilation: one number for each spatial dimension.
        activation: a name of `ACTIVATIONS`.
    """
    panels = torch.stack([whole_panels(group, len(stride) + 3) for group in weight])
    filters, groups = unpack_convolution(panels, outputs), weight.shape[0]
    zeros = [0] * len(stride)
    result = ops.edge.aten.convolution.default(
        channels_first(input),
        filters,
        bias,
        list(stride),
        list(padding),
        list(dilation),
        False,
        zeros,
        groups,
    )
    return finish(channels_last(result), residual, activation)
