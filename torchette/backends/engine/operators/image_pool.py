# SPDX-License-Identifier: BSD-3-Clause
# Kernels: torchette/kernels/engine/image_pool.cpp.
"""`cpu::max_pool`, `cpu::avg_pool` and `cpu::adaptive_avg_pool`: pooling over an image, channels last."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchette.backends.engine.operators._library import LIBRARY, channels_first, channels_last
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

_aten = ops.edge.aten


@bind_pattern_to_op(
    LIBRARY,
    "max_pool(Tensor input, int[] kernel, int[] stride, int[] padding, int[] dilation, bool ceil_mode) -> Tensor",
)
def max_pool(
    input: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> torch.Tensor:
    """Returns the maximum under each window. NaN is larger than all other values.

    Args:
        input: float32 [N, *spatial, C], two or three spatial dimensions.
        kernel, stride, padding, dilation: one value for each spatial dimension.
        ceil_mode: see torch.nn.MaxPool2d.
    """
    target = _aten.max_pool2d_with_indices if len(kernel) == 2 else _aten.max_pool3d_with_indices
    geometry = [list(each) for each in (kernel, stride, padding, dilation)]
    return channels_last(target.default(channels_first(input), *geometry, ceil_mode)[0])


@bind_pattern_to_op(
    LIBRARY,
    "avg_pool(Tensor input, int[] kernel, int[] stride, int[] padding, bool ceil_mode, bool count_include_pad, "
    "int? divisor) -> Tensor",
)
def avg_pool(
    input: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> torch.Tensor:
    """Returns the mean under each window.

    Args:
        input: float32 [N, *spatial, C], two or three spatial dimensions.
        kernel, stride, padding: one value for each spatial dimension.
        ceil_mode, count_include_pad, divisor: see torch.nn.AvgPool2d.
    """
    target = _aten.avg_pool2d if len(kernel) == 2 else _aten.avg_pool3d
    geometry = [list(each) for each in (kernel, stride, padding)]
    result = target.default(channels_first(input), *geometry, ceil_mode, count_include_pad, divisor)
    return channels_last(result)


@bind_pattern_to_op(LIBRARY, "adaptive_avg_pool(Tensor input, int[] output_size) -> Tensor")
def adaptive_avg_pool(input: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
    """Returns the means under `output_size` windows that divide an image evenly.

    Args:
        input: float32 [N, *spatial, C], two or three spatial dimensions.
        output_size: one value for each spatial dimension.
    """
    target = _aten._adaptive_avg_pool2d if len(output_size) == 2 else _aten._adaptive_avg_pool3d
    return channels_last(target.default(channels_first(input), list(output_size)))
