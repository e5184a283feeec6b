# SPDX-License-Identifier: BSD-3-Clause
# Every architecture of the zoo compiles, runs on the runtime and equals eager, or fails with the known error.

from __future__ import annotations

import importlib.util
import math
import re

import pytest
import torch
from torch import nn

from tests.models import architectures


@pytest.mark.slow
@pytest.mark.parametrize("name", architectures.NAMES)
def test_equals_eager(name: str) -> None:
    library = name.partition("/")[0]
    if importlib.util.find_spec(library) is None:  # torchvision can only be imported after `build`
        pytest.skip(f"{library} is not installed")
    row = architectures.measure(name)
    assert row.status.startswith(architectures.FAILS.get(name, "equal")), row
    (line,) = re.findall(
        rf"^\| `{re.escape(name)}` .*$", architectures.PAGE.read_text(encoding="utf-8"), re.M
    )
    assert line.endswith(f"| {row.calls} |"), "the operators differ from benchmarks/architectures.md"


class Head(nn.Module):
    def __init__(self, weight: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        nn.init.constant_(self.linear.weight, weight)
        nn.init.constant_(self.linear.bias, 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.mark.parametrize("weight", [0.0, 1e-9, math.nan])
def test_a_reference_without_spread_is_refused(weight: float) -> None:
    args = (torch.randn(2, 4),)
    with pytest.raises(ValueError, match="almost constant"):
        architectures.reference(Head(weight), args)
    model = nn.Linear(4, 3)
    assert torch.equal(architectures.reference(model, args), model(*args))


def test_zero_heads_are_reinitialized() -> None:
    model = architectures.without_zero_weights(Head(0.0).requires_grad_(False))
    assert architectures.reference(model, (torch.randn(2, 4),)).std() > 0.01
    assert torch.equal(model.linear.bias, torch.ones(3))


def test_zoo_size() -> None:
    working = [name for name in architectures.NAMES if name not in architectures.FAILS]
    assert len(working) >= 100
    for library, count in (("torchvision", 20), ("timm", 40), ("transformers", 30)):
        assert sum(name.startswith(f"{library}/") for name in working) >= count


def test_the_page_lists_every_architecture() -> None:
    listed = re.findall(r"^\| `([\w/.-]+)` \|", architectures.PAGE.read_text(encoding="utf-8"), re.M)
    assert listed == architectures.NAMES, "run: python -m tests.models.architectures"
