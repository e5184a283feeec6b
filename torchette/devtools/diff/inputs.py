# SPDX-License-Identifier: BSD-3-Clause
# In: inputs of a method. Out: more inputs, for faults that the first inputs do not reveal.
"""`searched` yields inputs at the limits of the values and shapes that a method accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchette.runtime import MethodMeta

# Maximum size for a dimension without an upper bound.
_UNBOUNDED_SIZE = 64


def searched(meta: MethodMeta, inputs: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yields (name, inputs): other ranges, saturation, zeros, infinities, and the corners of dynamic shapes.

    Integers keep the range of the original inputs, because they can be indices.
    """
    base = [torch.as_tensor(value) if hasattr(value, "__dlpack__") else value for value in inputs]
    floats = [value for value in base if isinstance(value, Tensor) and value.is_floating_point()]
    integers = [
        value
        for value in base
        if isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool
    ]
    if floats:
        generator = torch.Generator().manual_seed(0)
        spread = (
            max((float(value.double().std()) for value in floats if value.numel() > 1), default=1.0) or 1.0
        )

        def noise(x: Tensor) -> Tensor:
            return (torch.randn(x.shape, generator=generator) * spread).to(x.dtype)

        ways: dict[str, Callable[[Tensor], Tensor]] = {
            "noise": noise,
            "zeros": torch.zeros_like,
            "ones": torch.ones_like,
            "small": lambda x: x * 1e-3,
            "large": lambda x: x * 100,
            "saturated": lambda x: (
                torch.where(noise(x) < 0, -1.0, 1.0).to(x.dtype) * min(1e4, torch.finfo(x.dtype).max)
            ),
            "infinity": lambda x: _with_first(x, float("inf")),
            "NaN": lambda x: _with_first(x, float("nan")),
        }
        for name, change in ways.items():
            yield name, [change(v) if isinstance(v, Tensor) and v.is_floating_point() else v for v in base]
    if integers:
        changes: dict[str, Callable[[Tensor], Tensor]] = {
            "lowest": lambda x: torch.full_like(x, int(x.min())) if x.numel() else x,
            "highest": lambda x: torch.full_like(x, int(x.max())) if x.numel() else x,
            "reversed": lambda x: x.flatten().flip(0).reshape(x.shape),
        }
        for name, change in changes.items():
            yield name, [change(v) if any(v is item for item in integers) else v for v in base]
    yield from _corners(meta, base)


def _with_first(x: Tensor, value: float) -> Tensor:
    changed = x.clone()
    if changed.numel():
        changed.view(-1)[0] = value
    return changed


def _corners(meta: MethodMeta, base: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    ranges = []
    for index, value in enumerate(base):
        info = meta.input_tensor_meta(index) if isinstance(value, Tensor) else None
        ranges.append(info.ranges if info is not None else ())
    if not any(least != most for each in ranges for least, most in each):
        return
    for name, choose in (("minimum shape", min), ("maximum shape", max)):
        changed = []
        for value, bounds in zip(base, ranges, strict=True):
            for dim, (least, most) in enumerate(bounds):
                if least != most:
                    value = _resized(value, dim, choose(least, min(most, max(least, _UNBOUNDED_SIZE))))
            changed.append(value)
        yield name, changed


def _resized(x: Tensor, dim: int, size: int) -> Tensor:
    """Returns the tensor with another size of a dimension; its elements are repeated."""
    if x.shape[dim] == 0:
        return x.new_zeros([size if d == dim else n for d, n in enumerate(x.shape)])
    return x.index_select(dim, torch.arange(size) % x.shape[dim]).contiguous()
