# SPDX-License-Identifier: BSD-3-Clause
# Permutations move through operators that work in any order of dimensions, after a convolution. The results equal eager.

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torchette
from torchette.exir.graph import calls


def shuffle(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    parts = x.view(batch, 2, channels // 2, height, width).transpose(1, 2)
    return parts.reshape(batch, channels, height, width)


# Operators between two convolutions of 8 channels, or after the first -> the number of permutations that remain.
BETWEEN: list[tuple[str, Callable[[Tensor], Tensor], int]] = [
    ("split", lambda x: torch.cat([part.relu() for part in x.split([3, 5], 1)][::-1], 1), 2),
    ("chunk", lambda x: x.chunk(2, 1)[0] * x.chunk(2, 1)[1].repeat(1, 1, 1, 1), 2),
    ("shuffle", shuffle, 3),  # copies in any case
    ("halves of a shuffle", lambda x: torch.cat([shuffle(x)[:, :4], x[:, 4:]], 1), 3),
    ("variance", lambda x: x / (x.var((2, 3), keepdim=True) + 1), 2),
    ("flat and back", lambda x: x + x.flatten(2).transpose(1, 2).transpose(1, 2).view(x.shape), 2),
]
BEHIND: list[tuple[str, Callable[[Tensor], Tensor], int]] = [
    ("argmax", lambda x: x.argmax(1), 1),
    ("argmax of a row", lambda x: x.argmax(3, keepdim=True), 2),
    ("select", lambda x: x.select(1, 3), 1),
    ("select of a row", lambda x: x.select(-2, -1), 2),
]


class Model(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor], behind: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(5, 8, 3)
        self.function = function
        self.second = nn.LazyConv2d(6, 1) if not behind else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.function(self.first(x)))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("function", "left", "behind"),
    [pytest.param(*values, False, id=name) for name, *values in BETWEEN]
    + [pytest.param(*values, True, id=name) for name, *values in BEHIND],
)
def test_permutations_move_through_operators(
    function: Callable[[Tensor], Tensor], left: int, behind: bool, batch: int
) -> None:
    x = torch.randn(batch, 5, 9, 7)
    model = Model(function, behind).eval()
    model(x)
    compiled = torchette.compile(model, (x,), backend="cpu")
    called = [str(node.target) for node in calls(compiled.program.exported_program())]
    assert called.count("aten.permute_copy.out") == left
    compiled.verify()


class Scan(nn.Module):
    """Multiplies scores and decays in different orders of dimensions, as the chunks of Mamba 2 do."""

    def forward(self, query: Tensor, key: Tensor, decay: Tensor, value: Tensor) -> Tensor:
        scores = torch.einsum("bclhn,bcshn->bclsh", query, key) * decay.exp().permute(0, 2, 3, 4, 1)
        return torch.einsum("bclsh,bcshp->bclhp", scores, value)


@pytest.mark.parametrize(("chunks", "left"), [(1, 0), (3, 1)])
def test_operands_in_two_orders_need_one_permutation(chunks: int, left: int) -> None:
    shapes = [(2, chunks, 8, 4, 5), (2, chunks, 8, 4, 5), (2, 4, chunks, 8, 8), (2, chunks, 8, 4, 6)]
    compiled = torchette.compile(Scan(), tuple(map(torch.randn, shapes)), backend="cpu")
    permuted = [
        node
        for node in calls(compiled.program.exported_program())
        if node.target is torch.ops.aten.permute_copy.out and node.meta["val"].numel() == 2 * chunks * 4 * 64
    ]
    assert len(permuted) == left
    compiled.verify()


class Shared(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        swapped = y.transpose(1, 2)
        return x.permute(1, 2, 0) * swapped, swapped.flatten(1).exp()


def test_shared_permutation_in_another_order_stays() -> None:
    compiled = torchette.compile(Shared(), (torch.randn(4, 3, 5), torch.randn(3, 4, 5)), backend="cpu")
    called = [str(node.target) for node in calls(compiled.program.exported_program())]
    assert called.count("aten.permute_copy.out") == 2
    compiled.verify()


class InputResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x


def test_residual_from_an_input_is_added_by_the_convolution() -> None:
    compiled = torchette.compile(InputResidual(), (torch.randn(2, 8, 9, 7),), backend="cpu")
    called = [str(node.target) for node in calls(compiled.program.exported_program())]
    assert called == ["aten.permute_copy.out", "cpu.convolution.out", "aten.permute_copy.out"]
    compiled.verify()
