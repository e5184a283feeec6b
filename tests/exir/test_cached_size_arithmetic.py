# SPDX-License-Identifier: BSD-3-Clause
# Operations on symbolic sizes are computed once, until a symbol is replaced.

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export
from torch.fx.experimental.sym_node import SymNode

from torchette.exir.cached_size_arithmetic import cached_size_arithmetic


def test_each_operation_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program = export(torch.nn.ReLU(), (torch.ones(3, 4),), dynamic_shapes=({0: Dim("n", max=9)},))
    n = next(node for node in program.graph.nodes if node.op == "placeholder").meta["val"].shape[0]
    computed = []
    multiply = SymNode._mul

    def counted(left: SymNode, right: SymNode) -> SymNode:
        computed.append((left, right))
        return multiply(left, right)

    monkeypatch.setattr(SymNode, "_mul", counted)
    with cached_size_arithmetic():
        assert str(n * 4) == str(n * 4) == str(4 * n) and len(computed) == 2
        monkeypatch.setattr(type(n.node.shape_env), "_get_key", lambda env: "after a replacement of a symbol")
        assert str(n * 4) and len(computed) == 3
    assert SymNode._mul is counted
