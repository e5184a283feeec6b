# SPDX-License-Identifier: BSD-3-Clause
# Each operator that Vulkan supports equals eager, in a program with only that call, which runs completely on the device.
from __future__ import annotations

import pytest
import torch

import torchette
from tests.backends.vulkan.cases import CASES
from tests.backends.vulkan.device import needs_device, on_processor
from torchette.backends.vulkan import VulkanPartitioner
from torchette.exir import to_edge_transform_and_lower

pytestmark = needs_device


class Calls(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def inputs_of(shapes_or_tensors, dtype=torch.float32) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(
        one if isinstance(one, torch.Tensor) else torch.randn(one, dtype=dtype) for one in shapes_or_tensors
    )


def run(
    module: torch.nn.Module, inputs: tuple, options: dict | None = None, taken_whole: bool = True
) -> list[torch.Tensor]:
    edge = to_edge_transform_and_lower(
        torch.export.export(module.eval(), inputs), partitioner=VulkanPartitioner(options)
    )
    if taken_whole:
        left = [(item.op, item.reasons) for item in edge.delegation().placements if item.backend is None]
        assert not left, f"stays outside: {left}"
    data = edge.to_executorch().buffer
    results = outputs(data, inputs)
    with on_processor():
        for one, repeated in zip(results, outputs(data, inputs), strict=True):
            scale = 2e-2 if (options or {}).get("force_fp16") else 1e-4
            torch.testing.assert_close(one, repeated, atol=scale, rtol=scale, equal_nan=True)
    return results


def outputs(data: bytes, inputs: tuple) -> list[torch.Tensor]:
    results = torchette.load(data)(*inputs)
    return [torch.as_tensor(one) for one in (results if isinstance(results, (list, tuple)) else [results])]


def expected(module: torch.nn.Module, inputs: tuple) -> list[torch.Tensor]:
    results = module(*inputs)
    return list(results) if isinstance(results, (list, tuple)) else [results]


@pytest.mark.parametrize("name", CASES)
def test_operator_equals_eager(name):
    function, shapes = CASES[name]
    module, inputs = Calls(function), inputs_of(shapes)
    for got, want in zip(run(module, inputs), expected(module, inputs), strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4, equal_nan=True)


def test_values_at_the_positions_of_a_mask():
    """The number of positions is known only at run time, the number of values is fixed."""

    def function(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        result = 2 * x
        result[mask] = values
        return result * 3

    x, values = inputs_of([(2, 6, 4), (5, 4)])
    mask = torch.tensor([[0, 1, 1, 0, 0, 1], [1, 0, 0, 0, 1, 0]]).bool()
    given = (x, mask, values)
    (result,) = run(Calls(function), given, taken_whole=False)
    torch.testing.assert_close(result, function(*given))


def test_integers_converted_from_floats():
    """The logarithm of 0 as int64 exceeds 32 bits, so the device reads only what is computed from its clamped value."""

    def function(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        buckets = torch.log(x).long()
        small, large = torch.stack([buckets, buckets]).unsqueeze(0).split(1, dim=1)
        limited = torch.minimum(small, torch.full_like(large, 7))
        rows = torch.where(x > 0.5, limited, torch.ones_like(large)) + torch.clamp(buckets, -3, 3)
        return table[rows.clamp(0, 3)] * 2.0 + torch.clamp(buckets, -3, 3).unsqueeze(-1)

    x, table = torch.tensor([[0.0, 0.3, 0.7, 40.0]]), torch.randn(4, 5)
    (result,) = run(Calls(function), (x, table), taken_whole=False)
    torch.testing.assert_close(result, function(x, table))
