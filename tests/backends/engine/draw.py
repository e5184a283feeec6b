# SPDX-License-Identifier: BSD-3-Clause
# What cases are made of: the same numbers in every run, whatever else a test draws.

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch


class Draw:
    """Random tensors of a seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *sizes: int) -> torch.Tensor:
        """float32, normally distributed."""
        return torch.randn(sizes, generator=self._generator)

    def bools(self, *sizes: int, true: float = 0.5) -> torch.Tensor:
        """bool, true with this probability."""
        return torch.rand(sizes, generator=self._generator) < true

    def below(self, bound: int, *sizes: int) -> torch.Tensor:
        """int64 in [0, bound)."""
        return torch.randint(bound, sizes, generator=self._generator)


# Yields an operator's arguments, in the order of its schema and without the result.
Cases = Callable[[Draw], Iterator[tuple[Any, ...]]]
