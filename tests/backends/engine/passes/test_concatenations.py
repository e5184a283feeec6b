# SPDX-License-Identifier: BSD-3-Clause
# Convolutions write to their part of a concatenation. The results have the bits of the program with copies, and the plan has no copy
# of the whole concatenation.

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torchette
from torchette.exir import EdgeCompileConfig


class Net(nn.Module):
    """A convolution, a block and a convolution."""

    def __init__(self, block: Callable[[Tensor], Tensor], *layers: nn.Module, channels: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(8, 16, 3), nn.Conv2d(channels, 8, 3)
        self.layers, self.block = nn.ModuleList(layers), block

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(torch.relu(self.first(x))))


def convolution(inputs: int, outputs: int, kernel: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups)


def fire() -> Net:
    """The expansion of a SqueezeNet."""
    left, right = convolution(16, 20), convolution(16, 32, 3)
    return Net(lambda x: torch.cat((left(x), right(x)), 1), left, right, channels=52)


def ghost() -> Net:
    """A depthwise convolution reads the first part and writes the second."""
    left, right = convolution(16, 20), convolution(20, 20, 3, groups=20)

    def block(x: Tensor) -> Tensor:
        part = torch.relu(left(x))
        return torch.cat((part, torch.relu(right(part))), 1)

    return Net(block, left, right, channels=40)


def dense() -> Net:
    """Each layer reads all earlier results."""
    norms = [nn.BatchNorm2d(16 + 12 * layer) for layer in range(4)]
    layers = [convolution(16 + 12 * layer, 12, 3) for layer in range(3)]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.5, 2)
        norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]

    def block(x: Tensor) -> Tensor:
        features = [x]
        for norm, layer in zip(norms, layers, strict=False):
            features.append(layer(torch.relu(norm(torch.cat(features, 1)))))
        return torch.relu(norms[3](torch.cat(features, 1)))

    return Net(block, *norms, *layers, channels=52)


def halves() -> Net:
    """One part is the result of another operator, which is copied."""
    right = convolution(16, 16, 3)
    return Net(lambda x: torch.cat((x[:, :8].sigmoid(), right(x)), 1), right, channels=24)


def compiled(net: nn.Module, args: tuple[Tensor, ...], *disabled: str) -> tuple[Tensor, Counter[str], int]:
    """Returns the result, the calls of each operator and the planned bytes."""
    model = torchette.compile(net, args, edge=EdgeCompileConfig(disable_passes=disabled))
    program = model.program.exported_program()
    names = Counter(n.target._schema.name for n in program.graph.nodes if hasattr(n.target, "_schema"))
    return model(*args), names, sum(model.program.planned_bytes()[:1])


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (fire, {"cpu::convolution_into": 2}),
        (ghost, {"cpu::convolution_into": 1, "cpu::depthwise_into": 1}),
        (dense, {"cpu::convolution_into": 4, "cpu::depthwise_into": 3, "aten::slice_scatter": 0}),
        (halves, {"cpu::convolution_into": 1, "aten::slice_scatter": 1}),
    ],
)
def test_convolutions_write_their_part_with_the_same_bits(
    build: Callable[[], Net], expected: dict[str, int]
) -> None:
    torch.manual_seed(0)
    net, args = build().eval(), (torch.randn(1, 8, 13, 11),)
    result, calls, planned = compiled(net, args)
    copied, with_copies, planned_with_copies = compiled(net, args, "fuse_concatenations")
    assert "aten::cat" in with_copies and "aten::cat" not in calls
    assert {name: calls[name] for name in expected} == expected
    assert torch.equal(result, copied) and planned <= planned_with_copies
    torch.testing.assert_close(result, net(*args), rtol=1e-4, atol=1e-5)


def test_concatenation_that_is_an_output_stays() -> None:
    left, right = convolution(16, 16), convolution(16, 16, 3)
    args = (torch.randn(1, 16, 9, 9).to(memory_format=torch.channels_last),)

    class Output(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = left, right

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat((self.left(x), self.right(x)), 1).permute(0, 2, 3, 1)

    result, calls, _ = compiled(Output().eval(), args)
    assert calls["aten::cat"] == 1
    torch.testing.assert_close(result, Output()(*args), rtol=1e-4, atol=1e-5)
