# SPDX-License-Identifier: BSD-3-Clause
# Compiles small modules with ExecuTorch, once per test process.

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch


class Stateful(torch.nn.Module):
    """Updates a buffer in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.register_buffer("count", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1.0)
        return torch.softmax(self.linear(x) + self.count, -1)


class Bare(torch.nn.Module):
    """Has no weights, so the file has no segments."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu()


class Convolutions(torch.nn.Module):
    """Has structured outputs, views, and batch norms with two unused outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.Conv2d(8, 8, 3, groups=8),
        )

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"map": self.net(image), "flat": self.net(image).view(-1)}


class Mixed(torch.nn.Module):
    """Has an operator with several outputs, tensor lists, indices, and a keyword argument."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.table = torch.nn.Embedding(10, 8)

    def forward(self, ids: torch.Tensor, *, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.norm(self.table(ids))
        values, indices = torch.topk(y, 2)
        return values * scale, indices, torch.split(y, 4, -1)[0], torch.cat([y, y], 0)


BATCH = torch.export.Dim("batch", min=1, max=16)
MODELS: dict[str, tuple[type[torch.nn.Module], tuple[Any, ...], dict[str, Any], Any]] = {
    "stateful": (Stateful, (torch.ones(2, 8),), {}, None),
    "initialised": (Stateful, (torch.ones(2, 8),), {}, None),
    "dynamic": (Stateful, (torch.ones(2, 8),), {}, ({0: BATCH},)),
    "bare": (Bare, (torch.ones(2, 8),), {}, None),
    "convolutions": (Convolutions, (torch.ones(1, 3, 10, 10),), {}, None),
    "delegated": (Convolutions, (torch.ones(1, 3, 10, 10),), {}, None),
    "mixed": (Mixed, (torch.tensor([1, 2, 3]),), {"scale": torch.tensor(2.0)}, None),
}


@functools.cache
def peer_file(name: str) -> bytes:
    """Returns the bytes of ExecuTorch's .pte file for MODELS[name]."""
    exir = pytest.importorskip("executorch.exir")
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    model, args, kwargs, dynamic_shapes = MODELS[name]
    torch.manual_seed(0)
    program = torch.export.export(model().eval(), args, kwargs, dynamic_shapes=dynamic_shapes)
    edge = exir.to_edge_transform_and_lower(
        {"forward": program},
        partitioner=[XnnpackPartitioner()] if name == "delegated" else None,
        constant_methods={"version": 3},
    )
    config = exir.ExecutorchBackendConfig(
        emit_stacktrace=name == "convolutions",
        passes=[InitializedMutableBufferPass(["count"])] if name == "initialised" else [],
    )
    return edge.to_executorch(config).buffer
