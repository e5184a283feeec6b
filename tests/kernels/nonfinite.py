# SPDX-License-Identifier: BSD-3-Clause
# Tensors with NaN and infinities, for the tests that compare how they propagate.

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

# Each alone, because NaN hides the infinities of a reduction, and all with signed zeros.
VALUES: dict[str, Sequence[float]] = {
    "nan": [math.nan],
    "inf": [math.inf],
    "-inf": [-math.inf],
    "mixed": [math.nan, math.inf, -math.inf, -0.0, 0.0],
}


def planted(tensor: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    """Returns a contiguous copy of a floating-point tensor in which `values` replace some elements, evenly distributed.
    Returns the tensor itself if it is empty or not floating-point."""
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    tensor = tensor.clone(memory_format=torch.contiguous_format)
    flat, step = tensor.view(-1), max(1, tensor.numel() // (len(values) + 1))
    for i, value in enumerate(values):
        flat[(tensor.numel() // 3 + i * step) % tensor.numel()] = value
    return tensor
