# SPDX-License-Identifier: BSD-3-Clause
# What all operators of the engine have in common: their namespace, and the functions that end them.
"""The namespace `cpu`, and what an operator may do to its result before it writes it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchette.exir.dialects._ops import ops

LIBRARY = torch.library.Library("cpu", "DEF")

_aten = ops.edge.aten

# Name of an activation in an operator's arguments -> what it computes. C++: kernels/engine/epilogue.h.
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "relu": lambda x: _aten.relu.default(x),
    "relu6": lambda x: _aten.hardtanh.default(x, 0.0, 6.0),
    "hardswish": lambda x: _aten.hardswish.default(x),
    "hardsigmoid": lambda x: _aten.hardsigmoid.default(x),
    "silu": lambda x: _aten.silu.default(x),
    "sigmoid": lambda x: _aten.sigmoid.default(x),
    "tanh": lambda x: _aten.tanh.default(x),
    "gelu": lambda x: _aten.gelu.default(x),
    "gelu_tanh": lambda x: _aten.gelu.default(x, approximate="tanh"),
}


def finish(result: torch.Tensor, residual: torch.Tensor | None, activation: str) -> torch.Tensor:
    """activation(result + residual)"""
    if residual is not None:
        result = _aten.add.Tensor(result, residual)
    return ACTIVATIONS[activation](result)


def widened(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A weight that may be stored in 16 bits as numbers of the dtype that is computed in."""
    return weight if weight.dtype is dtype else _aten._to_copy.default(weight, dtype=dtype)


def channels_first(image: torch.Tensor) -> torch.Tensor:
    """[N, *spatial, C] -> [N, C, *spatial]."""
    last = image.dim() - 1
    return _aten.permute_copy.default(image, [0, last, *range(1, last)])


def channels_last(image: torch.Tensor) -> torch.Tensor:
    """[N, C, *spatial] -> [N, *spatial, C]."""
    return _aten.permute_copy.default(image, [0, *range(2, image.dim()), 1])


def shaped(name: str, shape: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]) -> None:
    """What an operator gives, for tracing models that call it themselves: the shapes alone, without its pattern."""
    LIBRARY.impl(name, shape, "Meta")
