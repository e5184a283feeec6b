# SPDX-License-Identifier: BSD-3-Clause
# The module that a node of the graph originates from.

from __future__ import annotations

import torch

from torchette.exir.graph import module_of


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).reshape(x.shape[0] * 2, 2)


def test_nodes_outside_modules_have_no_module() -> None:
    """torch records a placeholder name as the module of the sizes of inputs."""
    rows = torch.export.Dim("rows", min=2, max=8)
    program = torch.export.export(Net(), (torch.ones(3, 4),), dynamic_shapes=({0: rows},))
    (size,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int)
    (linear,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
    assert "_empty" in str(size.meta["nn_module_stack"])
    assert module_of(size) == ("", "") and module_of(linear) == ("layer", "Linear")
