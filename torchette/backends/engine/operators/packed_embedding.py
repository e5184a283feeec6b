# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/packed_embedding.cpp.
"""`cpu::packed_embedding` and `cpu::scaled_embedding`: lookups in a tied embedding table, which is stored in the panels
of the linear layer that shares it."""

from __future__ import annotations

import torch

from torchette.backends.engine.operators._library import LIBRARY, register_shape, widened
from torchette.backends.engine.pack import restore_last_panel, unpack_linear, unpack_nibbles, unpack_quads
from torchette.exir.dialects._ops import bind_pattern_to_op, ops


@bind_pattern_to_op(LIBRARY, "packed_embedding(Tensor weight, Tensor indices, int rows) -> Tensor")
def packed_embedding(weight: torch.Tensor, indices: torch.Tensor, rows: int) -> torch.Tensor:
    """embedding(unpacked weight, indices)

    Args:
        weight: the weight of a `cpu::linear` with N = `rows`: [ceil(N / 16), K, 16] or [K, N]; float32, bfloat16 or
            float16.
        indices: int64 or int32 [...], each below `rows`.

    Returns:
        float32 [..., K].
    """
    table = unpack_linear(restore_last_panel(weight, 3), rows)
    dtype = torch.promote_types(table.dtype, torch.float32)
    return widened(ops.edge.aten.embedding.default(table, indices), dtype)


@bind_pattern_to_op(
    LIBRARY, "scaled_embedding(Tensor weight, Tensor scales, Tensor indices, int rows, int depth) -> Tensor"
)
def scaled_embedding(
    weight: torch.Tensor, scales: torch.Tensor, indices: torch.Tensor, rows: int, depth: int
) -> torch.Tensor:
    """embedding(quantized values * scales, indices)

    Args:
        weight, scales: those of a `cpu::dynamic_linear` with `rows` outputs and `depth` inputs.
        indices: int64 or int32 [...], each below `rows`.

    Returns:
        float32 [..., depth].
    """
    unpack = unpack_quads if weight.dtype is torch.int8 else unpack_nibbles
    factors = unpack_linear(scales, rows)
    groups = unpack(weight, rows, depth).to(factors.dtype).unflatten(1, (factors.shape[1], -1))
    table = ops.edge.aten.mul.Tensor(groups, factors.unsqueeze(2)).flatten(1)
    result: torch.Tensor = ops.edge.aten.embedding.default(table, indices)
    return result


register_shape(
    "scaled_embedding",
    lambda weight, scales, indices, rows, depth: scales.new_empty([*indices.shape, depth]),
)
