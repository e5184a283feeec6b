# SPDX-License-Identifier: BSD-3-Clause
# A call that releases memory runs as soon as its operands exist, if this lowers the planned memory. `lower` compares the
# results after each pass.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import called, lower
from torch import Tensor, nn
from torch.export import export

from torchette.exir import to_edge
from torchette.exir.config import ExecutorchBackendConfig

X = torch.randn(2, 8)
WIDE = 2 * 1024 * 4  # bytes of a wide value


class Wide(nn.Module):
    """Two wide layers, and a function of their results."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(8, 1024), nn.Linear(8, 1024), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.first(x), self.second(x))


def planned(module: nn.Module, *disabled: str) -> int:
    config = ExecutorchBackendConfig(disable_passes=disabled)
    planned_bytes, _ = to_edge(export(module.eval(), (X,))).to_executorch(config).planned_bytes()
    return planned_bytes


def maxima(a: Tensor, b: Tensor) -> Tensor:
    """Reads the first value through an alias."""
    return a.view(2, 2, 512).amax(-1) + b.view(2, 2, 512).amax(-1)


def test_a_reduction_runs_before_the_next_layer() -> None:
    program, report = lower(Wide(maxima), (X,), "exec")
    kinds = [name.split(".")[0] for name in called(program) if "@" not in name]
    assert kinds == ["linear", "amax", "linear", "amax", "add"]
    assert report.notes("reorder_calls") == ["1 calls run earlier, to release memory"]


def test_planned_memory_is_lower() -> None:
    module = Wide(maxima)
    assert planned(module) < 1.2 * WIDE < 2 * WIDE <= planned(module, "reorder_calls")


STAYING: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "the operand is read later": lambda a, b: (a.amax(-1), b.amax(-1), a + b),
    "the operand is a result": lambda a, b: (a, b.amax(-1), a.amax(-1)),
    "the result is as large": lambda a, b: (a.exp() + b.exp()).sum(),
}


@pytest.mark.parametrize("name", STAYING)
def test_the_order_of_other_calls_stays(name: str) -> None:
    module = Wide(STAYING[name])
    program, report = lower(module, (X,), "exec")
    unordered, _ = lower(module, (X,), "exec", disable_passes={"reorder_calls"})
    assert report.notes("reorder_calls") == []
    assert called(program) == called(unordered)
