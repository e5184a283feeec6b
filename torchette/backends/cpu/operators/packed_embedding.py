# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/cpu/packed_embedding.cpp.
"""`cpu::packed_embedding`: rows of a table that is also the weight of a linear layer, read from that layer's panels."""

from __future__ import annotations

import torch

from torchette.backends.cpu.operators._library import LIBRARY, widened
from torchette.backends.cpu.pack import unpack_linear, whole_panels
from torchette.exir.dialects._ops import bind_pattern_to_op, ops


@bind_pattern_to_op(LIBRARY, "packed_embedding(Tensor weight, Tensor indices, int rows) -> Tensor")
def packed_embedding(weight: torch.Tensor, indices: torch.Tensor, rows: int) -> torch.Tensor:
    """embedding(unpacked weight, indices)

    Args:
        weight: as of `cpu::linear` with N = `rows`: [ceil(N / 16), K, 16] or [K, N]; float32, bfloat16 or float16.
        indices: int64 or int32 [...], each below `rows`.

    Returns:
        float32 [..., K].
    """
    table = unpack_linear(whole_panels(weight, 3), rows)
    dtype = torch.promote_types(table.dtype, torch.float32)
    return widened(ops.edge.aten.embedding.default(table, indices), dtype)
