# SPDX-License-Identifier: BSD-3-Clause
# The relations between sizes of inputs, from the expressions of torch.export.

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim

from torchette.exir.size_relations import relations


class First(torch.nn.Module):
    def forward(self, x: Any, y: Any = None, z: Any = None) -> torch.Tensor:
        return x + 1


class Joined(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.reshape(y.shape[0] * y.shape[1]) + y.reshape(-1)


N, M = Dim("n", min=2, max=8), Dim("m", min=2, max=8)


def texts(args: tuple[Any, ...], shapes: Any, module: torch.nn.Module | None = None) -> list[str]:
    program = torch.export.export(module or First(), args, dynamic_shapes=shapes)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    return [each.text for each in relations([(node.name, node.meta["val"]) for node in nodes])[0]]


@pytest.mark.parametrize(
    "sizes, dims, expected",
    [
        ([4, 5], [N, M], []),
        ([4, 4], [N, N], ["input 1 (y): y.shape[0] must be x.shape[0]"]),
        ([8, 4], [2 * N, N], ["input 0 (x): x.shape[0] must be 2*y.shape[0]"]),
        ([4, 9, 5], [N, 2 * N + 1, N + 1], [
            "input 1 (y): y.shape[0] must be 2*x.shape[0] + 1", "input 2 (z): z.shape[0] must be x.shape[0] + 1",
        ]),
        ([8], [2 * N], ["input 0 (x): x.shape[0] must be 2*n for an integer n"]),
        ([9, 13], [2 * N + 1, 3 * N + 1], [
            "input 0 (x): x.shape[0] must be 2*n + 1 for an integer n",
            "input 1 (y): y.shape[0] must be 3*(((x.shape[0] - 1)//2)) + 1",
        ]),
        ([5], [N + 1], []),
    ],
)  # fmt: skip
def test_equal_and_derived_dimensions(sizes: list[int], dims: list[Any], expected: list[str]) -> None:
    args = tuple(torch.ones(size) for size in sizes)
    shapes = ({0: dim} for dim in (*dims, *[None] * (3 - len(dims))))
    padded = tuple(None if dim[0] is None else dim for dim in shapes)
    assert [" ".join(text.split()) for text in texts(args, padded[: len(args)])] == expected


def test_relations_inferred_by_export() -> None:
    auto = Dim.AUTO
    relations = texts((torch.ones(12), torch.ones(3, 4)), ({0: auto}, {0: auto, 1: auto}), Joined())
    assert relations == ["input 0 (x): x.shape[0] must be y.shape[0]*y.shape[1]"]


def test_scalar_input_is_a_size() -> None:
    relations = texts((torch.ones(3), 3), ({0: Dim.DYNAMIC}, Dim.DYNAMIC), Sliced())
    assert relations == []


class Sliced(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: int) -> torch.Tensor:
        return x * y
