# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/group_norm.cpp.
"""`cpu::group_norm`: normalizes groups of channels over all pixels of an image, channels last."""

from __future__ import annotations

import math

import torch

from torchette.backends.engine.operators._library import LIBRARY, channels_first, channels_last
from torchette.exir.dialects._ops import bind_pattern_to_op, ops


@bind_pattern_to_op(
    LIBRARY, "group_norm(Tensor input, Tensor? weight, Tensor? bias, int groups, float eps) -> Tensor"
)
def group_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    groups: int,
    eps: float,
) -> torch.Tensor:
    """(x - mean(x)) / sqrt(variance(x) + eps) weight + bias, with the mean and variance of each group of channels.

    Args:
        input: float32 [N, *spatial, C].
        weight, bias: [C].
        groups: divides C.
    """
    batch, *spatial, channels = input.shape
    sizes = batch, channels, math.prod(spatial)
    result = ops.edge.aten.native_group_norm.default(channels_first(input), weight, bias, *sizes, groups, eps)
    return channels_last(result[0])
