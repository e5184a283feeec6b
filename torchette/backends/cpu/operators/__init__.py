# SPDX-License-Identifier: BSD-3-Clause
"""The engine's operators, each defined by its pattern: a file for each kernel file of torchette/kernels/cpu."""

from torchette.backends.cpu.operators import (
    attention,
    chain,
    convolution,
    depthwise,
    image_pool,
    linear,
    norm,
    recurrent,
    rotary,
)

__all__ = [
    "attention",
    "chain",
    "convolution",
    "depthwise",
    "image_pool",
    "linear",
    "norm",
    "recurrent",
    "rotary",
]
