# SPDX-License-Identifier: BSD-3-Clause
# Shared by all operators of the engine: the namespace, layout conversions, and the epilogue.
"""The namespace `cpu`, and the epilogue that an operator applies to its result before it stores it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchette.exir.dialects._ops import ops
from torchette.schema import engine

LIBRARY = torch.library.Library("cpu", "DEF")

_aten = ops.edge.aten

# Activations that are not aten operators of the same name.
COMPOSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "relu6": lambda x: _aten.hardtanh.default(x, 0.0, 6.0),
    "gelu_tanh": lambda x: _aten.gelu.default(x, approximate="tanh"),
}
# Activation name, as in an operator's arguments -> function.
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    name: COMPOSED.get(name) or getattr(_aten, name).default for name in engine.ACTIVATIONS
}


def finish(result: torch.Tensor, residual: torch.Tensor | None, activation: str) -> torch.Tensor:
    """activation(result + residual)"""
    if residual is not None:
        result = _aten.add.Tensor(result, residual)
    return ACTIVATIONS[activation](result)


def widened(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Converts a weight to `dtype`, the dtype of the computation; the weight may be stored in a 16-bit format."""
    return weight if weight.dtype is dtype else _aten._to_copy.default(weight, dtype=dtype)


def channels_first(image: torch.Tensor) -> torch.Tensor:
    """[N, *spatial, C] -> [N, C, *spatial]."""
    last = image.dim() - 1
    result: torch.Tensor = _aten.permute_copy.default(image, [0, last, *range(1, last)])
    return result


def channels_last(image: torch.Tensor) -> torch.Tensor:
    """[N, C, *spatial] -> [N, *spatial, C]."""
    result: torch.Tensor = _aten.permute_copy.default(image, [0, *range(2, image.dim()), 1])
    return result


def put_channels(into: torch.Tensor | None, part: torch.Tensor, first: int, channels: int) -> torch.Tensor:
    """Returns `into`, or zeros of `channels` channels, with `part` as the channels from `first` on."""
    last = first + part.shape[-1]
    result: torch.Tensor = (
        _aten.constant_pad_nd.default(part, [first, channels - last], 0.0)
        if into is None
        else _aten.slice_scatter.default(into, part, part.dim() - 1, first, last)
    )
    return result


def register_shape(name: str, shape: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]) -> None:
    """Registers the output shapes of an operator for tracing, so that tracing does not run its pattern."""
    LIBRARY.impl(name, shape, "Meta")
