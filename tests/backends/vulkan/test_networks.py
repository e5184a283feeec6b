# SPDX-License-Identifier: BSD-3-Clause
# Networks in one Vulkan delegate, from our compiler and from ExecuTorch; dynamic shapes; several threads.
from __future__ import annotations

import copy
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import torchette
from tests.backends.vulkan.device import needs_device, on_processor
from tests.backends.vulkan.networks import NAMES, Gated, Words, networks
from tests.models.architectures import build
from tests.sweep import sweep
from torchette.backends.vulkan import VulkanBackend, VulkanPartitioner
from torchette.backends.vulkan.payload import Payload
from torchette.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from torchette.exir.delegation.delegate import PreprocessResult
from torchette.runtime import Runtime

pytestmark = needs_device
VALIDATION = Path("/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json")


def lowered(name: str, options: dict | None = None):
    module, inputs = networks()[name]
    exported = torch.export.export(module, inputs)
    return to_edge_transform_and_lower(exported, partitioner=VulkanPartitioner(options)), module, inputs


def assert_equal(data: bytes, module: torch.nn.Module, inputs: tuple, tolerance: float = 1e-4) -> None:
    method = Runtime.get().load_program(data).load_method("forward")
    with torch.no_grad():
        want = module(*inputs).detach()
    for _ in range(2):  # the second execution runs the recorded commands again
        (got,) = method.execute(list(inputs))
        torch.testing.assert_close(
            torch.as_tensor(got), want, atol=tolerance * float(want.abs().max()), rtol=tolerance
        )


@pytest.mark.parametrize("name", NAMES)
def test_networks_are_one_delegate(name):
    edge, module, inputs = lowered(name)
    placements = edge.delegation().placements
    assert [item.op for item in placements if item.backend is None] == []
    assert len({item.backend for item in placements}) == 1
    data = edge.to_executorch().buffer
    assert_equal(data, module, inputs)
    with on_processor():
        assert_equal(data, module, inputs)


@pytest.mark.parametrize("name", sweep(NAMES, "vision"))
def test_networks_in_float16(name):
    edge, module, inputs = lowered(name, {"force_fp16": True})
    assert_equal(edge.to_executorch().buffer, module, inputs, 2e-2)


# ExecuTorch needs ten seconds to lower one of these networks. test_state_lowered_by_executorch runs in the gate.
FROM_EXECUTORCH = sweep([*((name, {}) for name in NAMES), ("vision", {"force_fp16": True})])


def of_executorch(module: torch.nn.Module, inputs: tuple, options: dict) -> bytes:
    executorch = pytest.importorskip("executorch.exir", reason="the peer is not installed")
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner as Theirs

    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            edge = executorch.to_edge_transform_and_lower(
                torch.export.export(module, inputs), partitioner=[Theirs(dict(options))]
            )
            data = edge.to_executorch().buffer
    finally:
        logging.disable(logging.NOTSET)
    assert b"VH00" in data
    return data


@pytest.mark.parametrize("name, options", FROM_EXECUTORCH)
def test_networks_lowered_by_executorch(name, options):
    module, inputs = networks()[name]
    data, tolerance = of_executorch(module, inputs, options), 2e-2 if options.get("force_fp16") else 1e-4
    assert_equal(data, module, inputs, tolerance)
    with on_processor():
        assert_equal(data, module, inputs, tolerance)


class Remembers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.ones(1, 4, 8))
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        self.last.copy_(torch.cat([self.last[:, 1:], self.layer(x)], 1))
        return self.last * 2


@pytest.mark.gate
@pytest.mark.parametrize("place", [nullcontext, pytest.param(on_processor, marks=pytest.mark.slow)])
def test_state_lowered_by_executorch(place):
    module, (x,) = Remembers(), (torch.randn(1, 1, 8),)
    data = of_executorch(copy.deepcopy(module), (x,), {"alias_buffer_mutations": True})
    want = [module(x * i).clone() for i in range(3)]
    with place():
        method = Runtime.get().load_program(data).load_method("forward")
    for _ in range(2):
        for i in range(3):
            torch.testing.assert_close(torch.as_tensor(method.execute([x * i])[0]), want[i])
        method.reset()


class Recurrent(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.out = getattr(torch.nn, kind)(8, 16, batch_first=True), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.out(self.layer(x)[0])


def _pt2e(module: torch.nn.Module, x: torch.Tensor, **config) -> torch.nn.Module:
    from executorch.backends.vulkan.quantizer import vulkan_quantizer as theirs
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = theirs.VulkanQuantizer().set_global(
        theirs.get_symmetric_quantization_config(weight_bits=8, **config)
    )
    observed = prepare_pt2e(torch.export.export(module.eval(), (x,)).module(), quantizer)
    observed(x)
    return convert_pt2e(observed)


def _torchao(dynamic: bool) -> torch.nn.Module:
    from torchao import quantization
    from torchao.quantization.granularity import PerGroup

    module, four = (
        torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32)),
        PerGroup(32),
    )
    config: object = quantization.IntxWeightOnlyConfig(torch.int4, four)
    if dynamic:
        config = quantization.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=four
        )
    quantization.quantize_(module.eval(), config)
    return module


def _whole_images() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    layers = [
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, groups=8, padding=1),
        torch.nn.Conv2d(8, 16, 1), torch.nn.Flatten(), torch.nn.Linear(1024, 8),
    ]  # fmt: skip
    image = torch.rand(1, 3, 8, 8)
    return _pt2e(torch.nn.Sequential(*layers), image, is_dynamic=False), (image,)


ROWS, STEPS = (torch.linspace(-2, 2, 192).view(3, 64),), (torch.linspace(-1, 1, 40).view(1, 5, 8),)
MORE: dict[str, Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]] = {
    "lstm": lambda: (Recurrent("LSTM").eval(), STEPS),
    "gru": lambda: (Recurrent("GRU").eval(), STEPS),
    "static int8": _whole_images,
    "4 bits in groups": lambda: (_torchao(False), ROWS),
    "8da4w": lambda: (_torchao(True), ROWS),
    **{
        name: lambda name=name: build(name)
        for name in (
            "torchvision/resnet18", "torchvision/mobilenet_v2", "torchvision/shufflenet_v2_x0_5", "timm/lcnet_050",
            "transformers/gpt2", "transformers/llama",
        )
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_operators_lowered_by_executorch(name):
    torch.manual_seed(0)
    module, inputs = MORE[name]()
    data = of_executorch(module, inputs, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an operator has no shader
        assert_equal(data, module, inputs)
    with on_processor():
        assert_equal(data, module, inputs)


def test_dynamic_sizes():
    words, n = torch.export.Dim("words", min=2, max=12), torch.export.Dim("n", min=1, max=5)
    for module, shape in ((Words(), (2, 7)), (Gated(), (2, 3, 12))):
        example = torch.randint(0, 30, shape) if len(shape) == 2 else torch.randn(shape)
        module.eval()
        exported = torch.export.export(module, (example,), dynamic_shapes=({0: n, 1: words},))
        edge = to_edge_transform_and_lower(exported, partitioner=VulkanPartitioner())
        assert all(item.backend for item in edge.delegation().placements)
        program = torchette.load(edge.to_executorch().buffer)
        for size in ((2, 7), (5, 12), (1, 2), (2, 7), (3, 11)):
            inputs = torch.randint(0, 30, size) if len(shape) == 2 else torch.randn(*size, 12)
            torch.testing.assert_close(torch.as_tensor(program(inputs)), module(inputs), atol=1e-4, rtol=1e-4)


def test_arguments_with_another_dim_order():
    class Turns(torch.nn.Module):
        def forward(self, x, y):
            return (x + 1).permute(0, 2, 3, 1) * y, torch.relu(x)

    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    inputs = (image, torch.randn(2, 4, 5, 3))
    edge = to_edge_transform_and_lower(torch.export.export(Turns(), inputs), partitioner=VulkanPartitioner())
    assert all(item.backend for item in edge.delegation().placements)
    program = torchette.load(edge.to_executorch().buffer)
    for got, want in zip(program(*inputs), Turns()(*inputs), strict=True):
        torch.testing.assert_close(torch.as_tensor(got), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_requested_channels_last_result_is_converted_outside(dtype):
    class Orders(torch.nn.Module):
        def forward(self, x):
            return (x + x).to(dtype, memory_format=torch.channels_last)

    inputs = (torch.randn(2, 3, 4, 5),)
    edge = to_edge_transform_and_lower(torch.export.export(Orders(), inputs), partitioner=VulkanPartitioner())
    assert {item.backend for item in edge.delegation().placements} == {None, "VulkanBackend"}
    result = torch.as_tensor(torchette.load(edge.to_executorch().buffer)(*inputs))
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result, Orders()(*inputs))


def test_threads_execute_separate_methods():
    edge, module, inputs = lowered("vision")
    program = Runtime.get().load_program(edge.to_executorch().buffer)
    want = module(*inputs).detach()

    def work(_: int) -> float:
        method = program.load_method("forward")
        return max(
            float((torch.as_tensor(method.execute(list(inputs))[0]) - want).abs().max()) for _ in range(5)
        )

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(work, range(8))) < 1e-4


def test_integer_beyond_32_bits_is_an_error():
    class Compares(torch.nn.Module):
        def forward(self, x, y):
            return x == y

    inputs = (torch.tensor([1, 2**40]), torch.tensor([1, 2]))
    edge = to_edge_transform_and_lower(
        torch.export.export(Compares(), inputs), partitioner=VulkanPartitioner()
    )
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    with pytest.raises(torchette.errors.TorchetteError, match="32 bits"):
        method.execute(list(inputs))
    (got,) = method.execute([torch.tensor([1, 3]), torch.tensor([1, 2])])
    assert torch.as_tensor(got).tolist() == [True, False]


_WITHOUT_DEVICE = """
import sys, warnings, torch
from torchette.runtime import Runtime
registry = Runtime.get().backend_registry
assert "VulkanBackend" in registry.registered_backend_names
assert not registry.is_available("VulkanBackend")
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    method = Runtime.get().load_program(sys.argv[1]).load_method("forward")
    inputs, want = torch.load(sys.argv[2])
    torch.testing.assert_close(torch.as_tensor(method.execute(inputs)[0]), want, atol=1e-4, rtol=1e-4)
assert any("VulkanBackend" in str(one.message) for one in told), told
"""


def test_without_a_device_the_same_file_runs(tmp_path, monkeypatch):
    edge, module, inputs = lowered("vision")
    (tmp_path / "net.pte").write_bytes(
        edge.to_executorch(ExecutorchBackendConfig(portable_fallback=True)).buffer
    )
    torch.save((list(inputs), module(*inputs).detach()), tmp_path / "values.pt")
    monkeypatch.setenv("VK_ICD_FILENAMES", str(tmp_path / "nobody.json"))
    command = [sys.executable, "-c", _WITHOUT_DEVICE, tmp_path / "net.pte", tmp_path / "values.pt"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


_CONFORMS = """
import sys, pytest
options = ["-q", "-s", "-p", "no:xdist", "-k", "VulkanBackend", "--deselect", sys.argv[1] + "[damaged_payload-VulkanBackend]"]
sys.exit(pytest.main([*options, sys.argv[1].partition(":")[0]]))
"""
_VALIDATED = """
from tests.backends.vulkan.test_networks import *
for name in NAMES:
    for options in ({}, {"force_fp16": True}):
        edge, module, inputs = lowered(name, options)
        assert_equal(edge.to_executorch().buffer, module, inputs, 2e-2)
"""


@pytest.mark.skipif(not VALIDATION.exists(), reason="the validation layers are not installed: ./dev tools")
@pytest.mark.parametrize(
    "code", [_VALIDATED, pytest.param(_CONFORMS, marks=pytest.mark.safety)], ids=["networks", "conformance"]
)
def test_validation_layers_report_no_errors(code, monkeypatch):
    monkeypatch.setenv("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
    suite = "tests/backends/test_conformance.py::test_conformance"
    command = [sys.executable, "-W", "ignore", "-c", code, suite]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "VUID" not in done.stdout + done.stderr and "Validation" not in done.stdout + done.stderr, (
        done.stdout[:4000]
    )


@pytest.mark.parametrize("bits", [8, 4])
def test_linear_layers_with_integer_weights(bits, monkeypatch):
    """Only ExecuTorch's compiler writes these layers."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(64, 24).eval(), torch.randn(3, 64)
    groups = 1 if bits == 8 else 2
    weights = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (24, 64))
    scales = torch.rand(groups, 24) / 9
    layer.weight.data = weights * scales.t().repeat_interleave(64 // groups, 1)
    if bits == 8:
        layer.bias.data.zero_()

    def preprocess(program, specs):
        payload = Payload()
        graph_input, result = payload.tensor((3, 64), torch.float32), payload.tensor((3, 24), torch.float32)
        stored = (
            weights.to(torch.int8)
            if bits == 8
            else ((weights[:, ::2] + 8) | (weights[:, 1::2] + 8) << 4).to(torch.uint8)
        )
        arguments = [
            graph_input,
            payload.tensor(stored.shape, stored.dtype, stored),
            payload.tensor(scales.squeeze(0).shape, torch.float32, scales.squeeze(0)),
        ]
        name = "aten._weight_int8pack_mm.default" if bits == 8 else "et_vk.linear_q4gsw.default"
        if bits == 4:
            arguments += [payload.scalar(32), payload.tensor((24,), torch.float32, layer.bias.data)]
        payload.call(name, [*arguments, result], 0)
        processed, named = payload.finish([graph_input], [result])
        return PreprocessResult(processed, data_store_output=named)

    monkeypatch.setattr(VulkanBackend, "preprocess", staticmethod(preprocess))
    edge = to_edge_transform_and_lower(torch.export.export(layer, (x,)), partitioner=VulkanPartitioner())
    assert_equal(edge.to_executorch().buffer, layer, (x,))
