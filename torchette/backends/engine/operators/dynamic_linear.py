# SPDX-License-Identifier: BSD-3-Clause
# Kernels: torchette/kernels/engine/dynamic_linear.cpp.
"""Linear layers with dynamically quantized inputs.

`cpu::quantize_rows` quantizes an input once for all layers that read it. `cpu::dynamic_linear` multiplies the integers.
The integer accumulator of each group of inputs is exact. The patterns define the order of the float32 operations that
follow, so that the results are equal on all machines.
"""

from __future__ import annotations

import torch

from torchette.backends.engine.operators._library import LIBRARY, finish, register_shape
from torchette.backends.engine.operators.quantized import _to
from torchette.backends.engine.pack import unpack_linear, unpack_nibbles, unpack_quads
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

_aten = ops.edge.aten


@bind_pattern_to_op(
    LIBRARY,
    "quantize_rows(Tensor input, int low, int high, float steps, float epsilon, bool symmetric, bool whole) -> "
    "(Tensor, Tensor)",
)
def quantize_rows(
    input: torch.Tensor, low: int, high: int, steps: float, epsilon: float, symmetric: bool, whole: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes rows to integers in [low, high]: q = clamp(round(x (1 / scale)) + zero).

    The range [minimum, maximum] is that of the row's elements and 0. If `symmetric` is False, scale = max((maximum -
    minimum) / steps, epsilon) and zero = low - round(minimum / scale). If `symmetric` is True, scale = max(max(-minimum,
    maximum) / steps, epsilon) and zero = 0. Rounding is to nearest, ties to even. If an element is infinite or NaN, the
    scale of its range is NaN and all quantized values of the range are `low`.

    Args:
        input: float32 [..., K].
        low, high: the smallest and the largest quantized value.
        steps, epsilon: positive.
        symmetric: whether the zero point is 0.
        whole: whether all rows share one range; otherwise each row has its own range.

    Returns:
        int8 [..., K], and float32 [..., 2]: scale and zero point of each row.
    """
    x = _to(input, torch.float32)
    zeros = _aten.full.default([*x.shape[:-1], 1], 0.0)
    extended = _aten.cat.default(
        [x, zeros, _aten.mul.Tensor(x, 0.0)], -1
    )  # 0 is in the range, an infinite element makes the range NaN
    dims = list(range(x.dim())) if whole and zeros.numel() else [-1]
    minimum, maximum = _aten.amin.default(extended, dims, True), _aten.amax.default(extended, dims, True)
    spread = (
        _aten.maximum.default(_aten.neg.default(minimum), maximum)
        if symmetric
        else _aten.sub.Tensor(maximum, minimum)
    )
    scale = _aten.clamp.default(_aten.div.Tensor(spread, torch.tensor(float(steps))), epsilon)
    scale = _aten.add.Tensor(scale, _aten.sub.Tensor(scale, scale))
    shift = _aten.round.default(_aten.div.Tensor(minimum, scale))
    zero = _aten.clamp.default(_aten.sub.Tensor(torch.tensor(float(low)), shift), low, high)
    zero = _aten.full_like.default(zero, 0.0) if symmetric else _number(zero, low)
    quantized = _aten.round.default(_aten.mul.Tensor(x, _aten.reciprocal.default(scale)))
    quantized = _number(_aten.clamp.default(_aten.add.Tensor(quantized, zero), low, high), low)
    rows = _aten.add.Tensor(_aten.cat.default([scale, zero], -1), zeros)
    return _to(quantized, torch.int8), rows


def _number(x: torch.Tensor, other: float) -> torch.Tensor:
    """Replaces NaN by `other`."""
    result: torch.Tensor = _aten.where.self(_aten.eq.Tensor(x, x), x, torch.tensor(float(other)))
    return result


@bind_pattern_to_op(
    LIBRARY,
    "dynamic_linear(Tensor input, Tensor rows, Tensor weight, Tensor scales, Tensor? bias, Tensor? residual, int outputs, "
    "str activation) -> Tensor",
    overwrites=("residual",),
)
def dynamic_linear(
    input: torch.Tensor,
    rows: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    outputs: int,
    activation: str,
) -> torch.Tensor:
    """activation(row scale Σ over groups of inputs((input - row zero) weight^T * group scale) + bias + residual)

    Args:
        input: int8 [..., K].
        rows: float32 [..., 2], scale and zero point of each row; the zero point is an integer in [-128, 127].
        weight: `pack_quads`: int8 [ceil(N / 16), ceil(K / 4), 16, 4]; or `pack_nibbles`: uint8 [ceil(N / 16), ceil(K / 8), 16, 4].
        scales: `pack_linear` of [N, groups]: float32 [ceil(N / 16), groups, 16]. With several groups, the inputs per
            group are a multiple of 4 for 8-bit weights and a multiple of 8 for 4-bit weights.
        bias: [N].
        residual: [..., N], the shape of the result.
        outputs: N.
        activation: a name of `ACTIVATIONS`.
    """
    inputs, groups = input.shape[-1], scales.shape[1]
    unpack = unpack_quads if weight.dtype is torch.int8 else unpack_nibbles
    values = _to(unpack(weight, outputs, inputs), torch.float64)
    centred = _aten.sub.Tensor(_to(input, torch.float64), _to(rows[..., 1:], torch.float64))
    factors = unpack_linear(scales, outputs)
    total = _aten.full.default([*input.shape[:-1], outputs], 0.0, dtype=scales.dtype)
    for group in range(groups):
        part = slice(group * inputs // groups, (group + 1) * inputs // groups)
        sums = _to(_aten.linear.default(centred[..., part], values[:, part]), scales.dtype)
        total = _aten.add.Tensor(total, _aten.mul.Tensor(sums, factors[:, group]))
    result = _aten.mul.Tensor(total, rows[..., :1])
    return finish(result if bias is None else _aten.add.Tensor(result, bias), residual, activation)


register_shape(
    "quantize_rows",
    lambda input, *_: (
        input.new_empty(input.shape, dtype=torch.int8),
        input.new_empty([*input.shape[:-1], 2], dtype=torch.float32),
    ),
)
register_shape(
    "dynamic_linear",
    lambda input, rows, weight, scales, bias, residual, outputs, _: rows.new_empty(
        [*input.shape[:-1], outputs]
    ),
)
