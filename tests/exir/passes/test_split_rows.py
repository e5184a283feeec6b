# SPDX-License-Identifier: BSD-3-Clause
# Layers that are computed in strips yield the same results, and their widest tensors are not allocated.

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchette import runtime
from torchette.exir import ExecutorchBackendConfig, to_edge
from torchette.exir.passes.split_rows import Split, needed_rows, window


class Layers(nn.Module):
    """A function of an image and of a few layers with weights."""

    def __init__(self, function: Callable[[Layers, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.same = nn.Conv2d(4, 4, 3, padding=1)
        self.stride = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.dilated = nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4)
        self.tall = nn.Conv2d(4, 4, (5, 1), stride=(3, 1), padding=(1, 0), bias=False)
        self.point = nn.Conv2d(4, 8, 1)
        self.register_buffer("scale", torch.rand(4, 1, 1))
        self.register_buffer("each_row", torch.rand(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


CASES: dict[str, Callable[[Layers, Tensor], Tensor]] = {
    "convolutions": lambda m, x: m.stride(F.relu(m.same(x))),
    "dilated": lambda m, x: m.point(m.dilated(m.same(x))),
    "tall": lambda m, x: m.tall(m.same(x)),
    "residual": lambda m, x: F.relu(m.same(F.hardtanh(m.same(x))) + x),
    "max_pool": lambda m, x: F.max_pool2d(m.same(x) - 5, 3, 2, 1) * 2,
    "avg_pool": lambda m, x: F.avg_pool2d(m.same(x), 3, 2, 1),
    "broadcast": lambda m, x: m.same(x) * m.scale + m.each_row,
    "cat": lambda m, x: m.point(m.same(torch.cat([m.point(x), m.same(x)], 1)[:, 2:6])),
    "two_branches": lambda m, x: torch.cat([m.same(m.same(x)), m.dilated(x)], 1).sigmoid(),
}


@pytest.mark.parametrize("strips", [2, 3, 8])
@pytest.mark.parametrize("name", CASES)
def test_strips_yield_the_same_results(name: str, strips: int) -> None:
    torch.manual_seed(0)
    module, x = Layers(CASES[name]).eval(), torch.randn(2, 4, 16, 7)
    edge = to_edge(torch.export.export(module, (x,)))
    config = ExecutorchBackendConfig()
    nodes = [n for n in edge._optimized("forward", config).graph.nodes if n.op == "call_function"]
    layers = [node for node in nodes if window(node) is not None]
    # Select layers backwards from the last one, while no other node uses their results.
    while layers and any(
        user.op != "output" and user not in layers for node in layers[:-1] for user in node.users
    ):
        layers.pop(0)
    last = layers[-1]
    if last is not nodes[-1]:
        pytest.fail(f"{name}: {nodes[-1]} cannot be split")
    split = Split(tuple(node.name for node in layers), min(strips, last.meta["val"].shape[2]))
    config.row_splits = {"forward": [split]}
    program = edge.to_executorch(config)
    assert "layers in" in program.report().notes("split_rows")[0]
    method = runtime.Runtime.get().load_program(program.buffer).load_method("forward")
    torch.testing.assert_close(torch.as_tensor(method.execute([x])[0]), module(x))


def test_a_layer_needs_the_rows_that_its_users_read() -> None:
    module = Layers(CASES["residual"]).eval()
    edge = to_edge(torch.export.export(module, (torch.ones(1, 4, 16, 7),)))
    graph = edge._optimized("forward", ExecutorchBackendConfig()).graph
    layers = [node for node in graph.nodes if window(node) is not None]
    needed = needed_rows(layers, (8, 12))
    assert needed[layers[0].args[0]] == (
        6,
        14,
    )  # two convolutions with 3 rows; the residual reads (8, 12)
    assert needed[layers[0]] == (7, 13)
    assert needed_rows(layers, (0, 4))[layers[0].args[0]] == (0, 6)  # rows outside the image are padding


@pytest.mark.parametrize(
    "module",
    [nn.ConvTranspose2d(4, 4, 3), nn.Conv1d(4, 4, 3), nn.AvgPool2d(3, 2, 1, count_include_pad=False),
     nn.MaxPool2d(3, 2, ceil_mode=True), nn.Softmax(2)],
    ids=lambda module: type(module).__name__,
)  # fmt: skip
def test_unsupported_layers_are_not_split(module: nn.Module) -> None:
    x = torch.ones(4, 9) if isinstance(module, nn.Conv1d) else torch.ones(1, 4, 9, 9)
    edge = to_edge(torch.export.export(module.eval(), (x,)))
    graph = edge._optimized("forward", ExecutorchBackendConfig()).graph
    assert all(window(node) is None for node in graph.nodes)
