# SPDX-License-Identifier: BSD-3-Clause
# Networks that torchao and PT2E quantized run completely on the device. Linear layers keep their integer weights.
from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram, export

import torchette
from tests.backends.vulkan.device import needs_device, on_processor
from tests.backends.vulkan.test_payload import payload_of
from torchette.backends.vulkan import VulkanPartitioner
from torchette.backends.vulkan.payload import read
from torchette.backends.vulkan.quantized_layers import NAME as QUANTIZED
from torchette.backends.xnnpack.pt2e_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from torchette.exir import to_edge_transform_and_lower
from torchette.exir.graph import calls
from torchette.runtime import Runtime

pytest.importorskip("torchao")
pytestmark = needs_device
ROWS, IMAGE = (torch.randn(3, 64),), (torch.rand(1, 2, 8, 9),)


def _weights(config: Callable) -> ExportedProgram:
    from torchao.quantization import quantize_

    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5)).eval()
    quantize_(model, config())
    return export(model, ROWS)


def _four(**more) -> Callable:
    from torchao import quantization
    from torchao.quantization.granularity import PerGroup

    kind = "Int8DynamicActivationIntxWeightConfig" if more.get("dynamic") else "IntxWeightOnlyConfig"
    return lambda: getattr(quantization, kind)(torch.int4, PerGroup(32))


def _eight() -> object:
    from torchao.quantization import Int8WeightOnlyConfig

    return Int8WeightOnlyConfig()


def _static() -> ExportedProgram:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4)
    )  # fmt: skip
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    observed = prepare_pt2e(export(model.eval(), IMAGE).module(), quantizer)
    observed(*IMAGE)
    return export(convert_pt2e(observed), IMAGE)


INT8, INT4 = "aten._weight_int8pack_mm.default", "et_vk.linear_q4gsw.default"
NETWORKS = {
    "int8 weights": (lambda: _weights(_eight), ROWS, INT8, 2),
    "4 bits in groups": (lambda: _weights(_four()), ROWS, INT4, 2),
    "8da4w": (lambda: _weights(_four(dynamic=True)), ROWS, INT4, 2),
    "static int8": (_static, IMAGE, QUANTIZED, 3),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_quantized_networks_run_completely_on_the_device(name):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = NETWORKS[name][0]()
    inputs, layer, count = NETWORKS[name][1:]
    want = program.module()(*inputs)
    edge = to_edge_transform_and_lower(program, partitioner=VulkanPartitioner())
    assert [item.op for item in edge.delegation().placements if item.backend is None] == []
    graph = read(payload_of(edge))
    assert [call.name for call in graph.chain].count(layer) == count
    weights = graph.values[next(call for call in graph.chain if call.name == layer).args[1]].value
    assert weights.datatype.name == ("UINT8" if layer == INT4 else "INT8")
    data = edge.to_executorch().buffer
    for place in (nullcontext, on_processor):
        with place():
            method = Runtime.get().load_program(data).load_method("forward")
        torch.testing.assert_close(
            torch.as_tensor(method.execute(list(inputs))[0]), want.detach(), atol=1e-5, rtol=1e-4
        )


LAYERS = {
    "two dimensions": (nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU()), (2, 3, 9, 8)),
    "groups, no bias": (nn.Conv2d(4, 8, (3, 2), dilation=2, groups=4, bias=False), (1, 4, 9, 8)),
    "linear": (nn.Sequential(nn.Linear(24, 6), nn.Hardtanh(-0.3, 0.4)), (2, 3, 24)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_integer_results_equal_those_of_the_cpu(name):
    """The results are bitwise equal. Weights and inputs stay 8-bit."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    layer, shape = LAYERS[name]
    model, inputs = nn.Sequential(layer, nn.Flatten(0)).eval(), (torch.randn(shape),)
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observed = prepare_pt2e(export(model, inputs).module(), quantizer)
        observed(*inputs)
        program = export(convert_pt2e(observed), inputs)
        edge = to_edge_transform_and_lower(program, partitioner=VulkanPartitioner())
        ours = torchette.compile(program, backend="cpu")
    graph = read(payload_of(edge))
    (call,) = (call for call in graph.chain if call.name == QUANTIZED)
    assert graph.values[call.args[1]].value.datatype.name == "INT8"
    assert not {"aten.convolution.default", "aten.linear.default"} & {call.name for call in graph.chain}
    assert any("quantized" in str(node.target) for node in calls(ours.program.exported_program()))
    data = edge.to_executorch().buffer
    for place in (nullcontext, on_processor):
        with place():
            method = Runtime.get().load_program(data).load_method("forward")
        for x in (*inputs, *(3 * torch.randn(shape) for _ in range(3))):
            assert torch.equal(torch.as_tensor(method.execute([x])[0]), torch.as_tensor(ours(x)))


def test_row_with_nan_becomes_nan_in_dynamic_quantization():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = _weights(_four(dynamic=True))
    x = torch.randn(3, 64)
    x[1, 7] = torch.nan
    want = program.module()(x).detach()
    assert want[1].isnan().all() and not want[0].isnan().any()
    data = to_edge_transform_and_lower(program, partitioner=VulkanPartitioner()).to_executorch().buffer
    for place in (nullcontext, on_processor):
        with place():
            method = Runtime.get().load_program(data).load_method("forward")
        result = torch.as_tensor(method.execute([x])[0])
        torch.testing.assert_close(result, want, atol=1e-5, rtol=1e-4, equal_nan=True)
