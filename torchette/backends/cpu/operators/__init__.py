# SPDX-License-Identifier: BSD-3-Clause
"""The engine's operators, each defined by its pattern: a file for each kernel file of torchette/kernels/cpu."""

from torchette.backends.cpu.operators import (
    attention,
    convolution,
    depthwise,
    group_norm,
    image_pool,
    linear,
    norm,
    resize,
    rotary,
    transposed_convolution,
)

__all__ = [
    "attention",
    "convolution",
    "depthwise",
    "group_norm",
    "image_pool",
    "linear",
    "norm",
    "resize",
    "rotary",
    "transposed_convolution",
]
