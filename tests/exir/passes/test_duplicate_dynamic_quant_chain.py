# SPDX-License-Identifier: BSD-3-Clause
# Layers that share a dynamically quantized activation each receive a separate quantization chain.

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

pytest.importorskip("torchao")

from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from torchette.backends.xnnpack.pt2e_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from torchette.exir.passes.duplicate_dynamic_quant_chain import DuplicateDynamicQuantChainPass


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](x) + self.layers[1](x) * self.layers[2](x)


class Row(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


X = torch.linspace(-1, 1, 16).reshape(2, 8)


def quantized(model: nn.Module) -> torch.fx.GraphModule:
    quantizer = XNNPACKQuantizer()
    quantizer.set_global(get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True))
    graph = prepare_pt2e(torch.export.export(model.eval(), (X,)).module(), quantizer)
    graph(X)
    return convert_pt2e(graph)


def chains(graph: torch.fx.GraphModule) -> list[int]:
    counts = Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
    return [
        counts[f"quantized_decomposed.{name}.tensor"]
        for name in ("choose_qparams", "quantize_per_tensor", "dequantize_per_tensor")
    ]


def test_each_layer_has_a_chain() -> None:
    graph = quantized(Shared())
    assert min(chains(graph)) < 3
    expected = graph(X)
    assert DuplicateDynamicQuantChainPass()(graph).modified
    assert chains(graph) == [3, 3, 3]
    torch.testing.assert_close(graph(X), expected, rtol=0, atol=0)
    assert not DuplicateDynamicQuantChainPass()(graph).modified


def test_chain_of_one_layer_is_not_copied() -> None:
    graph = quantized(Row())
    assert chains(graph) == [2, 2, 2]
    assert not DuplicateDynamicQuantChainPass()(graph).modified
    assert chains(graph) == [2, 2, 2]
