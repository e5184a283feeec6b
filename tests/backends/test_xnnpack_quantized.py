# SPDX-License-Identifier: BSD-3-Clause
"""Quantized graphs on XNNPACK: integers between operators, and rows quantized at run time. ExecuTorch runs our programs, and we run
those of ExecuTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from tests.backends.test_xnnpack import damage
from tests.backends.xnnpack_cases import HAS_LIBRARY, kinds_of, payload_of
from tests.models import zoo
from tests.sweep import sweep
from torchette.backends.xnnpack import XnnpackPartitioner
from torchette.backends.xnnpack.payload import T
from torchette.errors import DelegationWarning, ZeroRangeWarning
from torchette.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from torchette.runtime import Runtime

pytest.importorskip("torchao")


def _quantized(model: nn.Module, args: tuple, **how) -> torch.export.ExportedProgram:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from torchette.backends.xnnpack import XNNPACKQuantizer, get_symmetric_quantization_config

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(**how))
    observed = prepare_pt2e(export(model.eval(), args).module(), quantizer)
    observed(*args)
    return export(convert_pt2e(observed), args)


def _four_bits(model: nn.Module, args: tuple, group: int | None) -> torch.export.ExportedProgram:
    """Quantizes linear layers to 4-bit weights and rows quantized at run time: 8da4w."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerAxis, PerGroup

    granularity = PerAxis(0) if group is None else PerGroup(group)
    quantize_(model, Int8DynamicActivationIntxWeightConfig(torch.int4, granularity))
    return export(model, args)


def _lower(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        return to_edge_transform_and_lower(program, partitioner=XnnpackPartitioner())


def _run(data: bytes, args: tuple) -> torch.Tensor:
    return torch.as_tensor(Runtime.get().load_program(data).load_method("forward").execute(list(args))[0])


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(4, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.c = nn.Conv2d(4, 8, 1, bias=False)
        self.d = nn.Conv2d(4, 8, 1)

    def forward(self, x):
        return torch.cat([(self.b(self.a(x).relu()) + self.c(x)).relu(), self.d(x)], 1).mean((2, 3))


def _theirs(data: bytes, args: tuple) -> torch.Tensor:
    """Returns the results of ExecuTorch's runtime, which has XNNPACK's library."""
    peer = pytest.importorskip("executorch.extension.pybindings.portable_lib")
    return peer._load_for_executorch_from_buffer(bytes(data)).forward(args)[0]


def _their_file(program, dynamic: bool = False) -> bytes:
    """Returns a program that ExecuTorch's partitioners lowered."""
    pytest.importorskip("executorch.extension.pybindings.portable_lib")
    from executorch.backends.xnnpack.partition import xnnpack_partitioner as partitioners
    from executorch.exir import to_edge_transform_and_lower as their_lowering

    rows = [partitioners.XnnpackDynamicallyQuantizedPartitioner()] if dynamic else []
    lowered = their_lowering(program, partitioner=[*rows, partitioners.XnnpackPartitioner()])
    return bytes(lowered.to_executorch().buffer)


def _step(program) -> float:
    """Returns the scale of the only result."""
    (step,) = {node.args[1] for node in program.graph.output_node().all_input_nodes}
    return step


def _as_the_library(got: torch.Tensor, theirs: torch.Tensor, step: float, share: float = 0.95) -> None:
    """Compares: exactly if the library ran the last payload, else most elements equal and all within a quantization step."""
    registry = Runtime.get().backend_registry
    by_library = HAS_LIBRARY and registry.get_option("XnnpackBackend", "last_payload") == "XNNPACK's library"
    torch.testing.assert_close(got, theirs, rtol=0, atol=0 if by_library else step * 1.01)
    equal = (got - theirs).abs().le(step / 1000).float().mean().item()
    assert equal >= share, f"{equal} of the results are the library's"


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(392, 4),
        ),
        (1, 3, 16, 16),
    ),
    "residual": (_Residual, (2, 4, 9, 7)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1), nn.ReLU()), (1, 4, 5, 6)),
    "folded batch norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), nn.AdaptiveAvgPool2d(1)),
        (1, 3, 8, 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_static_int8_is_one_call_here_and_in_executorch(name: str, per_channel: bool) -> None:
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    args = (torch.randn(shape),)
    program = _quantized(build(), args, is_per_channel=per_channel)
    edge = _lower(program)
    assert not [item for item in edge.delegation().placements if item.backend is None], str(edge.delegation())
    graph = payload_of(edge)
    floats = [v for v in graph.xvalues if isinstance(v.xvalue_union, T["XNNTensorValue"])]
    assert len(floats) == 2, "input and output, and nothing between"
    data = edge.to_executorch().buffer
    expected = program.module()(*args)
    step = max(expected.abs().max().item() / 100, 1e-3)  # integers round either way
    torch.testing.assert_close(_run(data, args), expected, rtol=0, atol=step)
    _as_the_library(_run(data, args), _theirs(data, args), _step(program))


@pytest.mark.parametrize("dynamic", [False, True])
def test_quantized_payload_of_executorch_has_its_results_here(dynamic: bool) -> None:
    torch.manual_seed(0)
    if dynamic:
        model, args = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)), (torch.randn(3, 32),)
    else:
        model, args = _Residual(), (torch.randn(1, 4, 9, 7),)
    program = _quantized(model, args, is_per_channel=True, is_dynamic=dynamic)
    data = _their_file(program, dynamic)
    _as_the_library(_run(data, args), _theirs(data, args), 1e-5 if dynamic else _step(program), 0)


@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamic_int8_here_and_in_executorch(per_channel: bool) -> None:
    torch.manual_seed(0)
    model, args = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)), (torch.randn(3, 32),)
    edge = _lower(_quantized(model, args, is_per_channel=per_channel, is_dynamic=True))
    assert kinds_of(edge) == ["XNNConvert", "XNNFullyConnected", "XNNConvert", "XNNFullyConnected"]
    data = edge.to_executorch().buffer
    torch.testing.assert_close(_run(data, args), model(*args), rtol=0.05, atol=0.02)
    _as_the_library(_run(data, args), _theirs(data, args), 1e-5, 0)


CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "image": (lambda: nn.Conv2d(3, 10, 3, stride=2, padding=1), (1, 3, 8, 9)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), (1, 4, 6, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 10, 3, stride=2), (1, 3, 5, 6)),
    "sequence": (lambda: nn.Conv1d(3, 5, 3), (1, 3, 9)),
}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_images_quantized_at_run_time(name: str, per_channel: bool) -> None:
    torch.manual_seed(0)
    build, shape = CONVOLUTIONS[name]
    model, args = build(), (torch.randn(shape),)
    edge = _lower(_quantized(model, args, is_per_channel=per_channel, is_dynamic=True))
    kinds = kinds_of(edge)
    layer = kinds.index("XNNConvTranspose2d" if name == "transposed" else "XNNConv2d")
    assert kinds[layer - 1] == "XNNConvert"
    data = edge.to_executorch().buffer
    torch.testing.assert_close(_run(data, args), model(*args), rtol=0.05, atol=0.03)
    _as_the_library(_run(data, args), _theirs(data, args), 1e-5, 0)


class _Shared(nn.Module):
    """An image that two convolutions and a linear layer read, and another convolution in floating point."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(4, 5, 3), nn.Conv2d(4, 5, 3), nn.Linear(6, 2)
        self.d = nn.Conv2d(4, 4, 3, groups=4)

    def forward(self, x):
        return self.a(x) + self.b(x), self.c(x), self.d(x)


@pytest.mark.parametrize("per_op", [False, True])
def test_layers_share_an_input_quantized_at_run_time(per_op: bool) -> None:
    from torchette.backends.xnnpack import ConfigPrecisionType

    torch.manual_seed(0)
    model, args = _Shared(), (torch.randn(1, 4, 5, 6),)
    program = _quantized(model, args, is_per_channel=True, is_dynamic=True)
    which = XnnpackPartitioner(config_precisions=ConfigPrecisionType.DYNAMIC_QUANT, per_op_mode=per_op)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        edge = to_edge_transform_and_lower(program, partitioner=which)
    left = [item.op for item in edge.delegation().placements if item.backend is None]
    # the convolution in floating point
    assert sorted(left) == [
        "aten.add.Tensor",
        "aten.convolution.default",
    ]
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    for got, expected in zip(method.execute(list(args)), model(*args), strict=True):
        torch.testing.assert_close(torch.as_tensor(got), expected, rtol=0.05, atol=0.03)


def test_per_op_mode_creates_a_delegate_for_each_dynamic_layer() -> None:
    from torchette.backends.xnnpack import ConfigPrecisionType

    torch.manual_seed(0)
    model, args = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)), (torch.randn(1, 3, 8, 8),)
    program = _quantized(model, args, is_per_channel=True, is_dynamic=True)
    which = XnnpackPartitioner(config_precisions=ConfigPrecisionType.DYNAMIC_QUANT, per_op_mode=True)
    edge = to_edge_transform_and_lower(program, partitioner=which)
    children = edge.exported_program().graph_module.children()
    assert sum(hasattr(child, "backend_id") for child in children) == 2
    torch.testing.assert_close(_run(edge.to_executorch().buffer, args), model(*args), rtol=0.05, atol=0.03)


@pytest.mark.parametrize("group", sweep([32, None], None))
def test_4_bit_weights_here_and_in_executorch(group: int | None) -> None:
    torch.manual_seed(0)
    model, args = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)).eval(), (torch.randn(3, 64),)
    program = _four_bits(model, args, group)
    edge = _lower(program)
    assert not [item for item in edge.delegation().placements if item.backend is None], str(edge.delegation())
    data = edge.to_executorch().buffer
    torch.testing.assert_close(_run(data, args), model(*args), rtol=0.05, atol=0.02)
    _as_the_library(_run(data, args), _theirs(data, args), 1e-5, 0)
    theirs = _their_file(program, dynamic=True)
    _as_the_library(_run(theirs, args), _theirs(theirs, args), 1e-5, 0)


class _Inverted(nn.Module):
    """A block of MobileNetV2; if `gated`, with a squeeze-and-excitation gate."""

    def __init__(self, channels: int, outputs: int, stride: int, gated: bool) -> None:
        super().__init__()
        wide = 4 * channels
        self.wider = nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6())
        self.places = nn.Sequential(
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()
        )
        self.gate = nn.Conv2d(wide, wide, 1) if gated else None
        self.narrower = nn.Sequential(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.adds = stride == 1 and channels == outputs

    def forward(self, x):
        y = self.places(self.wider(x))
        if self.gate is not None:
            y = y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        y = self.narrower(y)
        return x + y if self.adds else y


class _Basic(nn.Module):
    """A block of ResNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(channels, channels, 3, 1, 1), nn.BatchNorm2d(channels), nn.ReLU())
        self.b = nn.Sequential(nn.Conv2d(channels, channels, 3, 1, 1), nn.BatchNorm2d(channels))

    def forward(self, x):
        return (x + self.b(self.a(x))).relu()


class _Encoder(nn.Module):
    """Patch embedding, a transformer layer and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)
        self.split, self.join = nn.Linear(32, 96), nn.Linear(32, 32)
        self.wider, self.narrower, self.head = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        q, k, v = self.split(self.first(x)).reshape(*x.shape[:2], 3, 2, 16).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + self.join(y)
        x = x + self.narrower(nn.functional.gelu(self.wider(self.second(x))))
        return self.head(x.mean(1))


def _mobile() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU6(), _Inverted(8, 8, 1, False), _Inverted(8, 12, 2, False), _Inverted(12, 12, 1, True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(12, 10),
    )  # fmt: skip


def _residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 12, 7, 2, 3, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(3, 2, 1), _Basic(12), _Basic(12),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("build", "lowered_there"),
    sweep(
        [
            (build, lowered_there)
            for build in (_mobile, _residual, _Encoder)
            for lowered_there in (False, True)
        ],
        (_mobile, True),
        (_residual, False),
        (_Encoder, False),
    ),
)
@pytest.mark.filterwarnings(
    "ignore::torchette.errors.ZeroRangeWarning"
)  # random weights shrink the activations
def test_static_int8_networks_have_the_results_of_the_library(build, lowered_there: bool) -> None:
    torch.manual_seed(0)
    args = (torch.randn(8, 3, 32, 32),)
    program = _quantized(build(), args, is_per_channel=True)
    data = _their_file(program) if lowered_there else _lower(program).to_executorch().buffer
    got = _run(data, args)
    _as_the_library(got, _theirs(data, args), _step(program), 0.8)
    torch.testing.assert_close(got, program.module()(*args), rtol=0, atol=2.01 * _step(program))


@pytest.mark.parametrize("lowered_there", sweep([False, True], False))
def test_transformer_with_rows_quantized_at_run_time(lowered_there: bool) -> None:
    torch.manual_seed(0)
    args = (torch.randn(2, 3, 32, 32),)
    program = _quantized(_Encoder(), args, is_per_channel=True, is_dynamic=True)
    data = _their_file(program, dynamic=True) if lowered_there else _lower(program).to_executorch().buffer
    got = _run(data, args)
    # a value between two integers may be rounded to either
    torch.testing.assert_close(got, _theirs(data, args), rtol=0, atol=0.01)
    torch.testing.assert_close(got, program.module()(*args), rtol=0, atol=0.05)


class _Logits(nn.Module):
    def __init__(self, llama: nn.Module) -> None:
        super().__init__()
        self.llama = llama

    def forward(self, ids):
        return self.llama(input_ids=ids, use_cache=False).logits


@pytest.mark.parametrize(("group", "lowered_there"), sweep([(32, True), (None, False)], (None, False)))
def test_llama_with_4_bit_weights(group: int | None, lowered_there: bool) -> None:
    zoo.declare_torchvision_operators()
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100, max_position_embeddings=32, attn_implementation="sdpa",
    )  # fmt: skip
    model, args = _Logits(transformers.LlamaForCausalLM(config)).eval(), (torch.arange(12)[None] * 7 % 100,)
    program = _four_bits(model, args, group)
    data = _their_file(program, dynamic=True) if lowered_there else _lower(program).to_executorch().buffer
    got = _run(data, args)
    torch.testing.assert_close(got, _theirs(data, args), rtol=0, atol=0.01)  # see the test above
    torch.testing.assert_close(got, model(*args), rtol=0, atol=0.05)


@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, None), (4, 32)])
def test_any_number_of_rows_is_quantized_at_run_time(bits: int, group: int | None) -> None:
    """The last tile of the kernel has 1 to 16 rows."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerAxis, PerGroup

    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 33)).eval(), torch.randn(33, 64)
    granularity = PerAxis(0) if group is None else PerGroup(group)
    quantize_(model, Int8DynamicActivationIntxWeightConfig(getattr(torch, f"int{bits}"), granularity))
    sizes = ({0: Dim("rows", min=1, max=33)},)
    method = Runtime.get().load_program(
        _lower(export(model, (x,), dynamic_shapes=sizes)).to_executorch().buffer
    )
    forward = method.load_method("forward")
    for rows in range(1, 34):
        got = torch.as_tensor(forward.execute([x[:rows]])[0])
        torch.testing.assert_close(got, model(x[:rows]), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("kind", ["static", "dynamic", "four bits"])
def test_damaged_quantized_payloads_are_errors(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "static":
        args = (torch.randn(1, 4, 9, 7),)
        program = _quantized(_Residual(), args, is_per_channel=True)
    else:
        model, args = (
            nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)).eval(),
            (torch.randn(3, 64),),
        )
        if kind == "dynamic":
            program = _quantized(model, args, is_per_channel=True, is_dynamic=True)
        else:
            program = _four_bits(model, args, 32)
    damage(_lower(program), args, times=300)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
def test_accumulators_beyond_32_bits_are_computed_in_float(per_channel: bool, dynamic: bool) -> None:
    """XNNPACK accumulates in int32 and does not report an overflow."""
    torch.manual_seed(0)
    for size, fits in ((60_000, True), (100_000, False)):
        model, args = nn.Sequential(nn.Linear(size, 2)), (torch.rand(3, size) * 0.1 + 0.9,)
        nn.init.uniform_(model[0].weight, 0.9, 1.0)
        edge = _lower(_quantized(model, args, is_per_channel=per_channel, is_dynamic=dynamic))
        got = _run(edge.to_executorch().buffer, args)
        torch.testing.assert_close(got, model(*args), rtol=0.02, atol=0)
        assert not fits or "XNNFullyConnected" in kinds_of(edge)


def test_bias_beyond_32_bits_is_computed_in_float() -> None:
    torch.manual_seed(0)
    model, args = nn.Sequential(nn.Linear(8, 2)), (torch.rand(3, 8) * 1e-2,)
    nn.init.uniform_(model[0].weight, -1e-3, 1e-3)
    nn.init.constant_(model[0].bias, 500.0)
    with pytest.warns(ZeroRangeWarning):
        edge = _lower(_quantized(model, args))
    torch.testing.assert_close(_run(edge.to_executorch().buffer, args), model(*args), rtol=0.01, atol=0)


def test_quantizer_applies_the_most_specific_setting() -> None:
    from torchette.backends.xnnpack import XNNPACKQuantizer, get_symmetric_quantization_config

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(self.a(x) + 1.0)

    def quantized(quantizer: XNNPACKQuantizer) -> set[str]:
        module = quantizer.transform_for_annotation(export(Two(), (torch.ones(2, 4),)).module())
        quantizer.annotate(module)
        return {node.name for node in module.graph.nodes if "quantization_annotation" in node.meta}

    config = get_symmetric_quantization_config()
    assert quantized(XNNPACKQuantizer().set_global(config)) == {"linear", "add", "linear_1"}
    assert quantized(XNNPACKQuantizer().set_global(config).set_module_name("a", None)) == {"add", "linear_1"}
    assert quantized(XNNPACKQuantizer().set_module_type(nn.Linear, config)) == {"linear", "linear_1"}
    assert quantized(XNNPACKQuantizer().set_operator_type(torch.ops.aten.add, config)) == {"add"}
    assert quantized(
        XNNPACKQuantizer().set_global(config).set_filter_function(lambda n: n.name == "add")
    ) == {"add"}
    dynamic = get_symmetric_quantization_config(is_dynamic=True)
    assert quantized(XNNPACKQuantizer().set_global(dynamic)) == {"linear", "linear_1"}


class _Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.b(self.norm(self.a(x)).relu().mean((2, 3)))


@pytest.mark.slow
def test_quantization_aware_training() -> None:
    """prepare_qat_pt2e, a few training steps, convert_pt2e: the result is one call on integers and close to the trained model."""
    import torchao.quantization.pt2e as pt2e
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e

    from torchette.backends.xnnpack import XNNPACKQuantizer, get_symmetric_quantization_config

    torch.manual_seed(0)
    args = (torch.randn(8, 2, 6, 6),)
    target = torch.randn(8, 3)
    config = get_symmetric_quantization_config(is_per_channel=True, is_qat=True)
    prepared = prepare_qat_pt2e(
        export(_Normed().train(), args).module(), XNNPACKQuantizer().set_global(config)
    )
    trained = [p for p in prepared.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(prepared(*args), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    pt2e.move_exported_model_to_eval(prepared)
    expected = prepared(*args)
    edge = _lower(export(convert_pt2e(prepared), args))
    assert not [item for item in edge.delegation().placements if item.backend is None]
    assert "XNNConv2d" in kinds_of(edge) and "XNNFullyConnected" in kinds_of(edge)
    got = _run(edge.to_executorch().buffer, args)
    torch.testing.assert_close(got, expected, rtol=0, atol=float(0.05 * expected.abs().max()))


def test_partitioner_claims_the_selected_operators_and_precisions() -> None:
    from torchette.backends.xnnpack import ConfigPrecisionType, configs

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return torch.sigmoid(self.linear(x) + x) * x

    args = (torch.randn(3, 8),)
    plain, static, dynamic = (
        export(Mixed().eval(), args), _quantized(Mixed(), args), _quantized(Mixed(), args, is_dynamic=True)
    )  # fmt: skip

    def taken(program, **how) -> tuple[set[str], int]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DelegationWarning)
            edge = to_edge_transform_and_lower(program, partitioner=XnnpackPartitioner(**how))
        names = {p.op.split(".")[1] for p in edge.delegation().placements if p.backend is not None}
        torch.testing.assert_close(edge.exported_program().module()(*args), program.module()(*args))
        children = edge.exported_program().graph_module.children()
        return names & {"linear", "add", "sigmoid", "mul"}, sum(hasattr(c, "backend_id") for c in children)

    assert taken(plain) == ({"linear", "add", "sigmoid", "mul"}, 1)
    assert taken(plain, configs=[configs.AddConfig, configs.MulConfig]) == ({"add", "mul"}, 2)  # type: ignore[attr-defined]
    assert taken(plain, per_op_mode=True) == ({"linear", "add", "sigmoid", "mul"}, 4)
    assert taken(plain, config_precisions=ConfigPrecisionType.STATIC_QUANT) == (set(), 0)
    floats, rows = ConfigPrecisionType.FP32, ConfigPrecisionType.DYNAMIC_QUANT
    assert taken(dynamic, config_precisions=rows) == ({"linear"}, 1)
    assert taken(dynamic, config_precisions=floats) == ({"add", "sigmoid", "mul"}, 1)
    assert taken(dynamic, config_precisions=[floats, rows])[0] == {"linear", "add", "sigmoid", "mul"}
    names, parts = taken(static, config_precisions=[ConfigPrecisionType.STATIC_QUANT], per_op_mode=True)
    assert names == {"linear", "add", "mul"} | (names & {"sigmoid"}) and parts >= 3


def test_user_defined_configuration() -> None:
    from torchette.backends.xnnpack import ConfigPrecisionType
    from torchette.backends.xnnpack.configs import ALL_PARTITIONER_CONFIGS, GenericNodePartitionerConfig

    class SmallSums(GenericNodePartitionerConfig):
        target_name = "add.Tensor"

        def check_constraints(self, node, ep):
            return super().check_constraints(node, ep) and node.meta["val"].numel() < 10

    class QuantizedSums(GenericNodePartitionerConfig):
        target_name = "add.Tensor"

        def supported_precision_types(self):
            return [ConfigPrecisionType.STATIC_QUANT]

    class Sums(nn.Module):
        def forward(self, x, y):
            return x + x, y + y

    def taken(config) -> list[str]:
        edge = to_edge_transform_and_lower(
            export(Sums(), (torch.ones(4), torch.ones(40))), partitioner=XnnpackPartitioner(configs=[config])
        )
        items = edge.delegation().placements
        assert all(config.__name__ in str(item.reasons) for item in items if item.backend is None), items
        return [item.node for item in items if item.backend is not None]

    assert len(taken(SmallSums)) == 1
    assert len(taken(QuantizedSums)) == 0
    config = next(c for c in ALL_PARTITIONER_CONFIGS if c.target_name == "dequantize_affine.default")()
    assert config.get_original_aten() is torch.ops.torchao.dequantize_affine.default
    assert config.supported_precision_types() == [ConfigPrecisionType.DYNAMIC_QUANT]


def test_external_map_contains_the_arguments_of_a_delegate() -> None:
    from torchette.backends.xnnpack.preprocess import assert_default_dim_order, generate_node_to_external_map
    from torchette.exir import to_edge

    def edge_of(function, *args):
        model = nn.Linear(4, 4)
        model.forward = lambda *args: function(nn.functional.linear(args[0], model.weight), *args)  # type: ignore[method-assign]
        return to_edge(export(model, args)).exported_program()

    x = torch.ones(2, 4)
    program = edge_of(lambda y, x, z: (y + z, y), x, x.clone())
    external_map = generate_node_to_external_map(program, program.graph_module)
    assert [(meta.external_id, meta.io_type) for meta in external_map.values()] == [
        (0, 1),
        (1, 1),
        (2, 2),
        (3, 2),
    ]
    assert [node.op for node in external_map] == ["placeholder"] * 2 + ["call_function"] * 2
    for function, role in ((lambda y, x: (y, x), "an input"), (lambda y, x: (y, y), "a result")):
        program = edge_of(function, x)
        with pytest.raises(ValueError, match=f"is {role} and also a result"):
            generate_node_to_external_map(program, program.graph_module)
    assert_default_dim_order(program.graph_module)
    image = torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last)
    program = to_edge(export(nn.ReLU(), (image,))).exported_program()
    with pytest.raises(
        ValueError, match=r"input has the dim order \(0, 2, 3, 1\); XNNPACK requires \(0, 1, 2, 3\)"
    ):
        assert_default_dim_order(program.graph_module)


def test_executorch_import_paths_work() -> None:
    from torchette.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackDynamicallyQuantizedPartitioner,
    )
    from torchette.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer

    from torchette.backends import xnnpack

    assert XNNPACKQuantizer is xnnpack.XNNPACKQuantizer
    assert XnnpackDynamicallyQuantizedPartitioner is xnnpack.XnnpackDynamicallyQuantizedPartitioner


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_portable_plan_reads_the_weights_of_the_delegate(per_channel: bool) -> None:
    torch.manual_seed(0)
    args = (torch.randn(1, 64, 9, 9),)
    model = nn.Sequential(nn.Conv2d(64, 128, 3), nn.ReLU())
    edge = _lower(_quantized(model, args, is_per_channel=per_channel))
    plain, both = (
        edge.to_executorch(ExecutorchBackendConfig(portable_fallback=portable)).buffer
        for portable in (False, True)
    )
    assert len(both) - len(plain) < 8192 < model[0].weight.numel() / 8
    with pytest.warns(RuntimeWarning, match="portable"):
        absent = _run(both.replace(b"XnnpackBackend\0", b"?nnpackBackend\0"), args)
    here = _run(both, args)
    assert (absent - here).abs().max() <= here.abs().max() / 100  # about one of 255 quantization steps
