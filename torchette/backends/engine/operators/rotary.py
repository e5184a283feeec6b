# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/rotary.cpp.
"""`cpu::rotary`: rotary position embedding (https://arxiv.org/abs/2104.09864) that rotates the two halves of a head."""

from __future__ import annotations

import torch

from torchette.backends.engine.operators._library import LIBRARY
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

_aten = ops.edge.aten


@bind_pattern_to_op(LIBRARY, "rotary(Tensor input, Tensor cos, Tensor sin) -> Tensor", overwrites=("input",))
def rotary(input: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x cos + (-x2, x1) sin, where x1 and x2 are the halves of a head

    Args:
        input: float32 [B, T, H, D], D even.
        cos, sin: [B or 1, T, D].
    """
    half = input.shape[-1] // 2
    first = _aten.slice_copy.Tensor(input, 3, 0, half)
    second = _aten.slice_copy.Tensor(input, 3, half, 2 * half)
    rotated = _aten.cat.default([_aten.neg.default(second), first], 3)
    straight = _aten.mul.Tensor(input, _aten.unsqueeze_copy.default(cos, 2))
    result: torch.Tensor = _aten.add.Tensor(
        straight, _aten.mul.Tensor(rotated, _aten.unsqueeze_copy.default(sin, 2))
    )
    return result
