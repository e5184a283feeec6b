# SPDX-License-Identifier: BSD-3-Clause
# The patterns that the passes of a target replaced, the calls that remain and the reasons, and the warnings.

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from torchette.backends.engine import CpuPartitioner
from torchette.errors import DelegationError, DelegationWarning
from torchette.exir import EdgeCompileConfig, to_edge_transform_and_lower

torch.manual_seed(0)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3)
        self.second = torch.nn.Conv2d(8, 8, 1)
        self.up = torch.nn.ConvTranspose2d(8, 8, 3, dtype=torch.float64)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.nn.functional.hardswish(self.first(x))
        x = x + self.second(x)
        return self.head(x.mean((2, 3))), torch.cumsum(self.up(x.double()), 1)


def _lower(model: torch.nn.Module, *args: Any, strict: bool = False) -> Any:
    program = torch.export.export(model.eval(), args)
    config = EdgeCompileConfig(strict=strict)
    edge = to_edge_transform_and_lower(program, partitioner=[CpuPartitioner()], compile_config=config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        return edge.to_executorch()


def test_each_operator_lists_the_replaced_calls() -> None:
    report = _lower(Net(), torch.randn(1, 3, 8, 8)).report()
    assert report.delegation is not None
    replacements = {
        placement.node: placement for placement in report.delegation.placements if placement.stands_for
    }
    patterns = {(placement.op, placement.stands_for) for placement in replacements.values()}
    assert all(
        placement.backend == "cpu" and placement.op.startswith("cpu.") and not placement.reasons
        for placement in replacements.values()
    )
    assert ("cpu.linear.default", ("aten.linear.default",)) in patterns
    activated, added = sorted((p for p in patterns if "convolution" in p[0]), key=lambda p: -len(p[1]))
    assert (activated[0], added[0]) == ("cpu.planar_convolution.default", "cpu.convolution.default")
    assert activated[1][0] == added[1][0] == "aten.convolution.default"
    assert activated[1][-1] in ("aten.div.Tensor", "aten.hardswish.default")
    assert added[1][1:] == ("aten.add.Tensor",)
    # 6 x 6 results with 27 and with 8 multiply-adds, for 8 channels each.
    macs = sorted(placement.macs for placement in replacements.values())
    assert macs == [4 * 8, 36 * 8 * 8, 36 * 8 * 27]
    assert sum(placement.share for placement in report.delegation.placements) == pytest.approx(1)


def test_remaining_calls_have_reasons() -> None:
    report = _lower(Net(), torch.randn(1, 3, 8, 8)).report()
    left = {
        placement.op: placement.reasons
        for placement in report.delegation.placements
        if placement.backend is None
    }
    assert left["aten.convolution.default"] == {"CpuPartitioner": ("its filter is float64",)}
    assert left["aten.cumsum.default"] == {}
    text = str(report)
    assert "its filter is float64" in text and "convolution, add " in text and "cpu::linear" in text
    data = report.to_dict()["delegation"]
    assert {placement["op"] for placement in data["placements"] if placement["stands_for"]} == {
        "cpu.convolution.default",
        "cpu.planar_convolution.default",
        "cpu.linear.default",
    }
    assert "its filter is float64" in report._repr_html_()


def test_parts_of_one_layer_count_once() -> None:
    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = torch.nn.Linear(8, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            both = self.both(x)
            return torch.sigmoid(both[:, :16]) * both[:, 16:]

    report = _lower(Gated(), torch.randn(2, 8)).report()
    layers = [placement for placement in report.delegation.placements if placement.op == "cpu.linear.default"]
    assert len(layers) == 2 and sum(placement.macs for placement in layers) == 2 * 8 * 32


def test_expensive_rejected_call_warns_or_raises() -> None:
    program = torch.export.export(Net().eval(), (torch.randn(1, 3, 8, 8),))
    edge = to_edge_transform_and_lower(program, partitioner=[CpuPartitioner()])
    with pytest.warns(DelegationWarning, match=r"(?s)aten.convolution.*its filter is float64"):
        edge.to_executorch()
    with pytest.raises(DelegationError, match="its filter is float64") as caught:
        _lower(Net(), torch.randn(1, 3, 8, 8), strict=True)
    assert caught.value.code == "not-delegated"


def test_calls_without_matching_operator_cause_no_warning() -> None:
    class Scores(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x.transpose(1, 2)

    _lower(Scores(), torch.randn(2, 8, 8), strict=True)
