# SPDX-License-Identifier: BSD-3-Clause
# Models for tests of bindings: one with state and weights that may be external, and one with another dim order.

from __future__ import annotations

import torch

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Counter(torch.nn.Module):
    """Returns relu(linear(x)) and the number of runs, which starts at 6."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("count", torch.full((1,), 5.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.count.add_(1)
        return torch.relu(self.linear(x)), self.count * 1


class Rows(torch.nn.Module):
    """Returns a tensor with another dim order than the input, and the number, which the export fixes."""

    def forward(self, x: torch.Tensor, number: int) -> tuple[torch.Tensor, int]:
        return (x * 1).to(memory_format=torch.channels_last), number
