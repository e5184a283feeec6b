# SPDX-License-Identifier: BSD-3-Clause
# What all operators of the engine have in common: their namespace, and the functions that end them.
"""The namespace `cpu`, and what an operator may do to its result before it writes it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchette.exir.dialects._ops import ops
from torchette.schema import engine

LIBRARY = torch.library.Library("cpu", "DEF")

_aten = ops.edge.aten

# Activations that are not aten's operator of the same name.
COMPOSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "relu6": lambda x: _aten.hardtanh.default(x, 0.0, 6.0),
    "gelu_tanh": lambda x: _aten.gelu.default(x, approximate="tanh"),
}
# Name of an activation in an operator's arguments -> its function.
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    name: COMPOSED.get(name) or getattr(_aten, name).default for name in engine.ACTIVATIONS
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
    result: torch.Tensor = _aten.permute_copy.default(image, [0, last, *range(1, last)])
    return result


def channels_last(image: torch.Tensor) -> torch.Tensor:
    """[N, C, *spatial] -> [N, *spatial, C]."""
    result: torch.Tensor = _aten.permute_copy.default(image, [0, *range(2, image.dim()), 1])
    return result


def shaped(name: str, shape: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]) -> None:
    """What an operator gives, for tracing models that call it themselves: the shapes alone, without its pattern."""
    LIBRARY.impl(name, shape, "Meta")
