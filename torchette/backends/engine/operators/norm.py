# SPDX-License-Identifier: BSD-3-Clause
# Kernels: torchette/kernels/engine/layer_norm.cpp.
"""`cpu::layer_norm` and `cpu::rms_norm`: normalization over the last dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchette.backends.engine.operators._library import LIBRARY
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

_aten = ops.edge.aten


@bind_pattern_to_op(
    LIBRARY,
    "layer_norm(Tensor input, Tensor? weight, Tensor? bias, int[] shape, float eps) -> Tensor",
    overwrites=("input",),
)
def layer_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    shape: Sequence[int],
    eps: float,
) -> torch.Tensor:
    """(x - mean(x)) / sqrt(variance(x) + eps) weight + bias

    Args:
        input: float32 [..., *shape].
        weight, bias: [*shape].
    """
    result: torch.Tensor = _aten.native_layer_norm.default(input, list(shape), weight, bias, eps)[0]
    return result


@bind_pattern_to_op(
    LIBRARY, "rms_norm(Tensor input, Tensor? weight, int[] shape, float eps) -> Tensor", overwrites=("input",)
)
def rms_norm(
    input: torch.Tensor, weight: torch.Tensor | None, shape: Sequence[int], eps: float
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) weight

    Args:
        input: float32 [..., *shape].
        weight: [*shape].
    """
    dims = [-1 - dim for dim in range(len(shape))]
    mean = _aten.mean.dim(_aten.mul.Tensor(input, input), dims, True)
    result = _aten.mul.Tensor(input, _aten.rsqrt.default(_aten.add.Scalar(mean, eps)))
    outcome: torch.Tensor = result if weight is None else _aten.mul.Tensor(result, weight)
    return outcome
