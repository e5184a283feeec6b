# SPDX-License-Identifier: BSD-3-Clause
# Random inputs of cases. They are equal in every run and do not depend on other tests.

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch


class Draw:
    """Creates random tensors from a seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *sizes: int) -> torch.Tensor:
        """Returns float32 elements with a normal distribution."""
        return torch.randn(sizes, generator=self._generator)

    def bools(self, *sizes: int, true: float = 0.5) -> torch.Tensor:
        """Returns bool elements that are true with this probability."""
        return torch.rand(sizes, generator=self._generator) < true

    def below(self, bound: int, *sizes: int) -> torch.Tensor:
        """Returns int64 elements in [0, bound)."""
        return torch.randint(bound, sizes, generator=self._generator)


# Yields an operator's arguments, in the order of its schema and without the result.
Cases = Callable[[Draw], Iterator[tuple[Any, ...]]]
