# SPDX-License-Identifier: BSD-3-Clause
"""Models quantized with PT2E: the compiled model matches the converted graph, on the default backend."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import export

pytest.importorskip("torchao")

import torchao.quantization.pt2e as torchao_pt2e
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import ComposableQuantizer
from torchao.quantization.pt2e.quantizer.embedding_quantizer import EmbeddingQuantizer

import torchette
from tests.sweep import sweep
from torchette.backends.xnnpack import XNNPACKQuantizer, get_symmetric_quantization_config
from torchette.errors import ZeroRangeWarning

STATIC = ({}, {"is_per_channel": True})
DYNAMIC = ({"is_dynamic": True}, {"is_dynamic": True, "is_per_channel": True})
SHARE = 0.001  # fraction of elements that may differ by one quantization step, because the order of summation differs


def _words(how: dict[str, bool]) -> str:
    return " ".join(how) or "per tensor"


def _quantizer(**how) -> XNNPACKQuantizer:
    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(**how))


def _converted(model: nn.Module, args: tuple, quantizer) -> torch.fx.GraphModule:
    prepared = prepare_pt2e(export(model.eval(), args).module(), quantizer)
    for scale in (1.0, 0.5):
        prepared(*(arg * scale if arg.is_floating_point() else arg for arg in args))
    return convert_pt2e(prepared)


def _steps(graph: torch.fx.GraphModule) -> list[float]:
    """Returns the scale of each output, or 0 if the output is not quantized."""
    outputs = graph.graph.output_node().args[0]
    nodes = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    static = torch.ops.quantized_decomposed.dequantize_per_tensor.default
    return [node.args[1] if node.target == static else 0.0 for node in nodes]


def _agrees(graph: torch.fx.GraphModule, args: tuple, rounding: float = 1e-5) -> None:
    """Compares on the given inputs and on others of the same range.

    `rounding` is the float tolerance, relative to the maximum.
    """
    model = torchette.compile(graph, args)
    torch.manual_seed(1)
    other_inputs = tuple(arg[torch.randperm(len(arg))] for arg in args)
    for inputs in (args, other_inputs):
        expected, actual = graph(*inputs), model(*inputs)
        pairs = (
            [(actual, expected)] if isinstance(expected, torch.Tensor) else zip(actual, expected, strict=True)
        )
        for (result, reference), step in zip(pairs, _steps(graph), strict=True):
            assert result.dtype == reference.dtype and result.shape == reference.shape
            difference, noise = (
                (result - reference).detach().abs(),
                rounding * float(reference.detach().abs().max()) + 1e-7,
            )
            assert float(difference.max()) <= step + noise
            assert float((difference > noise).float().mean()) <= SHARE


# ---- layers ----


class _Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.linear = nn.Embedding(20, 16, padding_idx=3), nn.Linear(16, 8)

    def forward(self, tokens):
        return self.linear(self.words(tokens)).relu()


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.a, self.layer, self.b = nn.Linear(8, 8), kind(8, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, x):
        return self.b(self.layer(self.a(x).relu())[0])


class _Joined(nn.Module):
    """Both operands of the cat have the same scale."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1), nn.Conv2d(19, 8, 1)

    def forward(self, x):
        return self.c(torch.cat([self.a(x).relu(), self.b(x) * 0.25, x], 1))


class _Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x):
        return self.a(x), self.b(x).sigmoid(), x.relu()


def _images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(392, 10),
    )  # fmt: skip


def _with_zeros() -> nn.Module:
    """A channel with zero weights, and so with an empty range."""
    model = _images()
    nn.init.zeros_(model[2].weight[3])
    nn.init.zeros_(model[2].bias)
    return model


def _image() -> torch.Tensor:
    return torch.randn(4, 3, 16, 16)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "images": (_images, _image),
    "layers": (lambda: nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)), lambda: torch.randn(16, 32)),
    "several outputs": (_Several, lambda: torch.randn(16, 16)),
    "embedding": (_Embedded, lambda: torch.randint(0, 20, (4, 9))),
    "gru": (lambda: _Recurrent(nn.GRU), lambda: torch.randn(3, 7, 8)),
    "lstm": (lambda: _Recurrent(nn.LSTM), lambda: torch.randn(3, 7, 8)),
    "padding same": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 4, padding="same"), nn.ReLU(), nn.Conv2d(8, 4, 3, padding="same")), _image,
    ),
    "cat": (_Joined, _image),
    "a channel of zeros": (_with_zeros, _image),
    "only zeros": (_images, lambda: torch.zeros(4, 3, 16, 16)),
}  # fmt: skip


@pytest.mark.parametrize("how", sweep([*STATIC, *DYNAMIC], STATIC[1], DYNAMIC[1]), ids=_words)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:Using padding=.same.:UserWarning")
def test_model_matches_converted_graph(name: str, how: dict[str, bool]) -> None:
    torch.manual_seed(0)
    build, draw = MODELS[name]
    args = (draw(),)
    graph = _converted(build(), args, _quantizer(**how))
    is_zero = name == "only zeros" and not how.get("is_dynamic")
    with pytest.warns(ZeroRangeWarning, match="ranges of") if is_zero else contextlib.nullcontext():
        _agrees(graph, args)


def test_padding_row_of_quantized_embedding_is_zero() -> None:
    """The padding row of a quantized table is zero, and the rows next to it are not."""
    torch.manual_seed(0)
    model, args = _Embedded(), (torch.arange(20).reshape(4, 5),)
    quantizer = ComposableQuantizer([EmbeddingQuantizer(), _quantizer()])
    graph = _converted(model, args, quantizer)
    _agrees(graph, args)
    words = nn.Sequential(model.words)
    table = torchette.compile(_converted(words, args, EmbeddingQuantizer()), args)(*args).reshape(20, 16)
    assert not table[3].any() and table[[2, 4]].any(1).all()


@pytest.mark.parametrize("how", [*STATIC, *DYNAMIC], ids=_words)
def test_torchette_quantizer_matches_converted_graph(how: dict[str, bool]) -> None:
    torch.manual_seed(0)
    model, x = _Recurrent(nn.GRU).eval(), torch.randn(3, 7, 8)
    compiled = torchette.compile(model, (x,), quantizer=_quantizer(**how), calibration=[x, x * 0.5])
    torch.testing.assert_close(compiled(x), model(x), rtol=0.05, atol=0.02)


class _Encoder(nn.Module):
    """A transformer with two layers over 16 vectors."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_dynamic_int8_keeps_30_decibels(name: str) -> None:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 16))
    model, x = (
        (mlp.eval(), torch.randn(8, 64)) if name == "mlp" else (_Encoder().eval(), torch.randn(2, 16, 64))
    )
    compiled = torchette.compile(
        _converted(model, (x,), _quantizer(is_dynamic=True, is_per_channel=True)), (x,)
    )
    other_inputs = torch.randn_like(x)
    expected = model(other_inputs)
    noise = (compiled(other_inputs) - expected).square().sum()
    assert 10 * (expected.square().sum() / noise).log10() >= 30
    assert any("dynamic" in operator for operator in compiled.program.operators())


# ---- accumulators that need more than 32 bits ----


@pytest.mark.parametrize("how", sweep([*STATIC, *DYNAMIC], STATIC[0], DYNAMIC[1]), ids=_words)
def test_accumulator_beyond_32_bits(how: dict[str, bool]) -> None:
    torch.manual_seed(0)
    size = 200_000
    model, args = nn.Sequential(nn.Linear(size, 2, bias=False)), (torch.rand(3, size) * 0.1 + 0.9,)
    with torch.no_grad():
        model[0].weight.uniform_(0.9, 1.0)
    assert size * 114 * 200 > 2**31, "smallest weight times smallest input, in integers"
    graph = _converted(model, args, _quantizer(**how))
    _agrees(graph, args, rounding=size**0.5 * 2**-22)  # `size` additions, each with a rounding error
    torch.testing.assert_close(torchette.compile(graph, args)(*args), model(*args), rtol=0.05, atol=0.0)


# ---- training ----


class _Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.linear = nn.Linear(16 * 16, 5)

    def forward(self, x):
        return self.linear(self.norm(self.conv(x)).relu().flatten(1))


def _figures(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of one of five patterns, with random strength and noise."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(0, 5, (count,), generator=generator)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij")
    patterns = torch.stack([x, y, x * y, (x * 6).sin(), 1 - x * x - y * y])
    strength = torch.rand(count, 1, 1, generator=generator) + 0.5
    noise = torch.randn(count, 8, 8, generator=generator) * 0.4
    return (patterns[classes] * strength + noise)[:, None], classes


@pytest.mark.slow
def test_trained_with_quantization() -> None:
    torch.manual_seed(0)
    images, classes = _figures(64, seed=1)
    many_images, truth = _figures(2000, seed=2)
    shapes = ({0: torch.export.Dim("batch", min=2, max=2000)},)
    graph = export(_Normed().train(), (images,), dynamic_shapes=shapes).module()
    prepared = prepare_qat_pt2e(graph, _quantizer(is_per_channel=True, is_qat=True))
    torchao_pt2e.allow_exported_model_train_eval(prepared)
    optimizer = torch.optim.SGD([p for p in prepared.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    for _ in range(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(prepared(images), classes).backward()
        optimizer.step()
    torchao_pt2e.move_exported_model_to_eval(prepared)
    with torch.no_grad():
        expected = prepared(many_images).argmax(1)
        assert float((expected == truth).float().mean()) > 0.8, "the network has not learned the task"
        converted = convert_pt2e(prepared)
        predicted = torchette.compile(converted, (many_images,))(many_images).argmax(1)
    assert float((predicted == expected).float().mean()) >= 0.995
