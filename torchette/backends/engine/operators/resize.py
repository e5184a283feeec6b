# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/resize.cpp.
"""`cpu::resize`: resizes an image, channels last."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchette.backends.engine.operators._library import LIBRARY, channels_first, channels_last
from torchette.exir.dialects._ops import bind_pattern_to_op, ops
from torchette.schema.engine import RESIZE_MODES

_aten = ops.edge.aten

# Mode -> aten's operators for one, two and three spatial dimensions.
MODES = {mode.name: tuple(getattr(_aten, name, None) for name in mode.operators) for mode in RESIZE_MODES}


@bind_pattern_to_op(
    LIBRARY,
    "resize(Tensor input, SymInt[]? output_size, float[]? scales, str mode, bool align_corners) -> Tensor",
)
def resize(
    input: torch.Tensor,
    output_size: Sequence[int] | None,
    scales: Sequence[float] | None,
    mode: str,
    align_corners: bool,
) -> torch.Tensor:
    """torch.nn.functional.interpolate without antialiasing

    Args:
        input: float32 [N, *spatial, C], one to three spatial dimensions.
        output_size: one size for each spatial dimension; None: computed from the input size and the scales.
        scales: one factor for each spatial dimension, the reciprocal of the step between pixels; None: computed from the
            input and output sizes.
        mode: a name of `MODES`.
        align_corners: used by the modes "linear" and "cubic".
    """
    target = MODES[mode][input.dim() - 3]
    assert target is not None
    aligned = () if mode.startswith("nearest") else (align_corners,)
    image = channels_first(input)
    if output_size is None or scales is None:
        return channels_last(target.vec(image, output_size, *aligned, scales))
    return channels_last(target.default(image, output_size, *aligned, *scales))
