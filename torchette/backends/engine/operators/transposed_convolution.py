# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/transposed_convolution.cpp.
"""`cpu::transposed_convolution`: transposed convolution with a constant filter, channels last."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchette.backends.engine.operators._library import LIBRARY, channels_first, channels_last, finish
from torchette.backends.engine.pack import unpack_transposed_convolution
from torchette.exir.dialects._ops import bind_pattern_to_op, ops


@bind_pattern_to_op(
    LIBRARY,
    "transposed_convolution(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, int[] stride, "
    "int[] padding, int[] dilation, int[] output_padding, int outputs, str activation) -> Tensor",
)
def transposed_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    outputs: int,
    activation: str,
) -> torch.Tensor:
    """activation(transposed convolution(input) + bias + residual)

    Args:
        input: float32 [N, *spatial, C], one to three spatial dimensions.
        weight: `pack_transposed_convolution`: [groups, *kernel, ceil(outputs / groups / 16), C / groups, 16].
        bias: [outputs].
        residual: [N, *spatial, outputs], the shape of the result.
        stride, padding, dilation, output_padding: one value for each spatial dimension.
        activation: a name of `ACTIVATIONS`.
    """
    result = ops.edge.aten.convolution.default(
        channels_first(input),
        unpack_transposed_convolution(weight, outputs),
        bias,
        list(stride),
        list(padding),
        list(dilation),
        True,
        list(output_padding),
        weight.shape[0],
    )
    return finish(channels_last(result), residual, activation)
