# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/weight_only_linear.cpp.
"""`cpu::weight_only_linear`: linear layer with float32 inputs and a constant weight of 8- or 4-bit integers."""

from __future__ import annotations

import torch

from torchette.backends.engine.operators._library import LIBRARY, register_shape
from torchette.backends.engine.pack import unpack_linear, unpack_nibbles, unpack_quads
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

_aten = ops.edge.aten


@bind_pattern_to_op(
    LIBRARY,
    "weight_only_linear(Tensor input, Tensor weight, Tensor scales, Tensor? bias, int outputs) -> Tensor",
)
def weight_only_linear(
    input: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, outputs: int
) -> torch.Tensor:
    """input (weight scales)^T + bias. Each group of adjacent inputs has a scale for each output.

    Args:
        input: float32 [..., K].
        weight: `pack_quads`: int8 [ceil(N / 16), ceil(K / 4), 16, 4]; or `pack_nibbles`: uint8 [ceil(N / 16), ceil(K / 8), 16, 4].
        scales: `pack_linear` of [N, groups]: float32 [ceil(N / 16), groups, 16]. With several groups, the inputs per
            group are a multiple of 4 for 8-bit weights and a multiple of 8 for 4-bit weights.
        bias: [N].
        outputs: N.
    """
    inputs = input.shape[-1]
    unpack = unpack_quads if weight.dtype is torch.int8 else unpack_nibbles
    values = _aten._to_copy.default(unpack(weight, outputs, inputs), dtype=input.dtype)
    factors = unpack_linear(scales, outputs)
    groups = (
        values.reshape(outputs, factors.shape[1], -1)
        if inputs
        else values.new_empty(outputs, factors.shape[1], 0)
    )
    scaled = _aten.mul.Tensor(groups, factors.unsqueeze(2)).reshape(outputs, inputs)
    result: torch.Tensor = _aten.linear.default(input, scaled, bias)
    return result


register_shape(
    "weight_only_linear",
    lambda input, weight, scales, bias, outputs: input.new_empty([*input.shape[:-1], outputs]),
)
