# SPDX-License-Identifier: BSD-3-Clause
"""The parts of the XNNPACK quantizer that other quantizers use: one annotator for each pattern, and propagation."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import nn
from torch.export import export

pytest.importorskip("torchao")

from torchao.quantization.pt2e.quantizer import SharedQuantizationSpec
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from torchette.backends.xnnpack import XNNPACKQuantizer, get_symmetric_quantization_config
from torchette.backends.xnnpack.pt2e_quantizer import OP_TO_ANNOTATOR, propagate_annotation


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.plain = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.up, self.linear = nn.ConvTranspose2d(4, 4, 1), nn.Linear(4, 3)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu()
        x = self.up(self.plain(x)).relu()
        x = torch.cat([nn.functional.max_pool2d(x, 2), nn.functional.max_pool2d(x, 2)], 1)
        x = nn.functional.adaptive_avg_pool2d(x[:, :4] + x[:, 4:], 1).flatten(1)
        return (self.linear(x).relu() * 2.0).relu()


def _captured(training: bool = False) -> torch.fx.GraphModule:
    model = XNNPACKQuantizer().transform_for_annotation(
        export(_Net().train(training), (torch.ones(2, 2, 8, 8),)).module()
    )
    assert isinstance(model, torch.fx.GraphModule)
    return model


def _annotated(model: torch.fx.GraphModule) -> list[str]:
    return [
        node.name
        for node in model.graph.nodes
        if node.op == "call_function" and Q_ANNOTATION_KEY in node.meta
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("conv_bn_relu", [["conv2d", "batch_norm", "relu"]]),
        ("conv_bn", [["conv2d", "batch_norm"]]),
        ("conv_relu", []),
        ("conv", [["conv2d"], ["conv2d_1"]]),
        ("conv_transpose_relu", [["conv_transpose2d", "relu_1"]]),
        ("conv_transpose", [["conv_transpose2d"]]),
        ("linear_relu", [["linear", "relu_2"]]),
        ("linear", [["linear"]]),
        ("add_relu", []),
        ("add", [["add"]]),
        ("mul_relu", [["mul", "relu_3"]]),
        ("adaptive_avg_pool2d", [["adaptive_avg_pool2d"]]),
        ("cat", [["cat"]]),
    ],
)
def test_an_annotator_finds_its_pattern(name: str, expected: list[list[str]]) -> None:
    model, config = _captured(training="bn" in name), get_symmetric_quantization_config()
    chains = OP_TO_ANNOTATOR[name](model, config, None)
    assert [[node.name for node in chain] for chain in chains or []] == expected
    assert _annotated(model) == [node for chain in expected for node in chain]
    assert all(chain[-1].meta[Q_ANNOTATION_KEY].output_qspec is not None for chain in chains or [])
    assert OP_TO_ANNOTATOR[name](model, config, None) == []  # keeps existing annotations
    assert OP_TO_ANNOTATOR[name](model, None) is None
    assert OP_TO_ANNOTATOR[name](_captured("bn" in name), config, lambda node: False) == []


def test_moved_elements_have_the_scale_of_their_source() -> None:
    model = _captured()
    OP_TO_ANNOTATOR["conv_transpose_relu"](model, get_symmetric_quantization_config())
    propagate_annotation(model)
    assert _annotated(model) == ["conv_transpose2d", "relu_1", "max_pool2d", "max_pool2d_1"]
    nodes = {node.name: node for node in model.graph.nodes}
    shared = nodes["max_pool2d"].meta[Q_ANNOTATION_KEY]
    assert isinstance(shared.output_qspec, SharedQuantizationSpec)
    before = dict(nodes["max_pool2d"].meta)
    propagate_annotation(model)
    assert nodes["max_pool2d"].meta == before


def test_inputs_and_outputs_of_gru_layers_are_annotated() -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import Quantizer

    class Ends(Quantizer):
        def annotate(self, model):
            OP_TO_ANNOTATOR["gru_io_only"](model, get_symmetric_quantization_config())
            return model

        def validate(self, model):
            """Does nothing."""

    torch.manual_seed(0)
    model, args = nn.GRU(4, 4, batch_first=True).eval(), (torch.randn(1, 3, 4), torch.randn(1, 1, 4))
    observed = prepare_pt2e(export(model, args).module(), Ends())
    observed(*args)
    quantized = convert_pt2e(observed)
    names = [str(node.target) for node in quantized.graph.nodes]
    assert sum(".quantize_per_tensor" in name for name in names) == 4
    for got, expected in zip(quantized(*args), model(*args), strict=True):
        torch.testing.assert_close(got, expected, rtol=0.1, atol=0.03)


def test_supported_operators_are_listed() -> None:
    configs = XNNPACKQuantizer.get_supported_quantization_configs()
    assert len(set(configs)) == len(configs) == 8
    assert get_symmetric_quantization_config(is_per_channel=True) in configs
    of = XNNPACKQuantizer.get_supported_operator_for_quantization_config
    static = of(get_symmetric_quantization_config())
    assert [nn.Conv2d, nn.ReLU] in static and [nn.AdaptiveAvgPool2d] in static and of(None) == static
    dynamic = of(get_symmetric_quantization_config(is_dynamic=True))
    assert [nn.Linear] in dynamic and [nn.Conv2d] in dynamic and [nn.Conv2d, nn.ReLU] not in dynamic
    assert of(get_symmetric_quantization_config(weight_qmax=7)) == []
    assert [c for c, _ in XNNPACKQuantizer.get_supported_operators()] == configs


def test_annotators_match_those_of_executorch() -> None:
    """Our annotators find the same nodes in ExecuTorch's patterns."""
    pytest.importorskip("executorch.backends.xnnpack")
    path = "backends.xnnpack.quantizer"
    theirs = importlib.import_module(f"executorch.{path}.xnnpack_quantizer_utils").OP_TO_ANNOTATOR
    assert set(theirs) <= set(OP_TO_ANNOTATOR)
    patterns = importlib.import_module(
        f"executorch.{path}.xnnpack_quantizer"
    ).XNNPACKQuantizer.SUPPORTED_PATTERNS
    assert {pattern.name for pattern in patterns} <= {p.name for p in XNNPACKQuantizer.SUPPORTED_PATTERNS}
    config = get_symmetric_quantization_config()
    for name in ("conv", "conv_transpose_relu", "linear_relu", "linear", "add", "mul_relu", "cat"):
        ours, peer_graph = _captured(), _captured()
        OP_TO_ANNOTATOR[name](ours, config, None)
        theirs[name](peer_graph, config, None)
        assert _annotated(ours) == _annotated(peer_graph), name
