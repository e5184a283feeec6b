# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/linear.cpp.
"""`cpu::linear`: matrix multiplication with a constant weight, with residual and activation."""

from __future__ import annotations

import torch

from torchette.backends.engine.operators._library import LIBRARY, finish, widened
from torchette.backends.engine.pack import restore_last_panel, unpack_linear, unpack_pairs
from torchette.exir.dialects._ops import bind_pattern_to_op, ops


@bind_pattern_to_op(
    LIBRARY,
    "linear(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, int outputs, str activation) -> Tensor",
    overwrites=("residual",),
)
def linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    outputs: int,
    activation: str,
) -> torch.Tensor:
    """activation(input weight^T + bias + residual)

    Args:
        input: float32 [..., K].
        weight: `pack_linear`: [ceil(N / 16), K, 16]; or `cut_last_panel` of it: [K, N]. float32, or stored as bfloat16 or
            float16. Or `pack_pairs`: int32 [ceil(N / 16), K / 2, 16]; a processor with instructions for bfloat16 then
            rounds the input to bfloat16.
        bias: [N].
        residual: [..., N], the shape of the result.
        outputs: N.
        activation: a name of `ACTIVATIONS`.
    """
    weight = unpack_pairs(weight) if weight.dtype is torch.int32 else weight
    matrix = widened(unpack_linear(restore_last_panel(weight, 3), outputs), input.dtype)
    result = ops.edge.aten.linear.default(input, matrix, bias)
    return finish(result, residual, activation)
