# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/quantized.cpp, shared with ExecuTorch's operators.
"""`cpu::weight_only_embedding`: lookups in an embedding table of 8-, 4- or 2-bit integers."""

from __future__ import annotations

import torch

from torchette.backends.engine.operators._library import LIBRARY
from torchette.backends.engine.pack import unpack_rows
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

_aten = ops.edge.aten


@bind_pattern_to_op(
    LIBRARY,
    "weight_only_embedding(Tensor weight, Tensor scales, Tensor? zeros, int bits, Tensor indices) -> Tensor",
)
def weight_only_embedding(
    weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: int, indices: torch.Tensor
) -> torch.Tensor:
    """Returns (row - zero) scale of each requested row. Each group of adjacent elements in a row has a scale and a zero
    point.

    Args:
        weight: `pack_rows`: int8 or uint8 [N, K] for 8-bit weights; otherwise uint8 [N, K bits / 8].
        scales, zeros: float32 [N, groups].
        bits: 8, 4 or 2.
        indices: int64 or int32 [...], each below N.

    Returns:
        float32 [..., K].
    """
    values = unpack_rows(_aten.embedding.default(weight, indices), bits)
    factors = _aten.embedding.default(scales, indices)
    groups = values.unflatten(-1, (factors.shape[-1], -1)).to(factors.dtype)
    if zeros is not None:
        groups = _aten.sub.Tensor(groups, _aten.embedding.default(zeros, indices).unsqueeze(-1))
    result: torch.Tensor = _aten.mul.Tensor(groups, factors.unsqueeze(-1)).flatten(-2)
    return result
