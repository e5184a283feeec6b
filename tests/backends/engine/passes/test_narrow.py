# SPDX-License-Identifier: BSD-3-Clause
# Models in bfloat16 and float16 compute in float32 on 16-bit weights. Their error is not larger than that of torch.

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torchette
from tests.backends.engine.cases.linear import NARROW
from torchette.backends.engine.pack import pack_linear
from torchette.quantization import recipes
from torchette.runtime import _native, kernel_levels


class Net(nn.Module):
    """A convolution with a norm, a tied embedding, and scalars."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 40, 3, padding=1), nn.BatchNorm2d(40)
        self.norm.running_var.uniform_(0.5, 2)  # type: ignore[operator, union-attr]
        self.table, self.layer_norm = nn.Embedding(300, 40), nn.LayerNorm(40)
        self.last = nn.Linear(40, 300)
        self.last.weight = self.table.weight

    def forward(self, image: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.norm(self.convolution(image))).mean((2, 3))
        return self.last(self.layer_norm(features * 0.3 + self.table(word))).softmax(-1)


def _net() -> tuple[Net, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(2, 3, 9, 9), torch.tensor([3, 299]))


def _noise(result: torch.Tensor, truth: torch.Tensor) -> float:
    return (result.double() - truth).norm().item()


def _dtypes(model: torchette.CompiledModel) -> set[torch.dtype]:
    """Returns the dtypes of the inputs of the engine's operators, without weights."""
    graph = model.program.exported_program().graph
    engines = [node for node in graph.nodes if str(node.target).startswith("cpu.")]
    return {
        source.meta["val"].dtype
        for node in engines
        for source in node.all_input_nodes
        if source.op != "placeholder"
    }


@pytest.mark.parametrize("dtype", NARROW)
def test_16_bit_model(dtype: torch.dtype) -> None:
    net, (image, word) = _net()
    plain = torchette.compile(net, (image, word))
    narrow, args = copy.deepcopy(net).to(dtype), (image.to(dtype), word)
    model = torchette.compile(narrow, args)
    with torch.no_grad():
        truth, eager = copy.deepcopy(net).double()(image.double(), word), narrow(*args)
    result = model(*args)
    assert result.dtype is dtype and _noise(result, truth) <= _noise(eager, truth)
    assert {"cpu::planar_convolution.out", "cpu::linear.out", "cpu::packed_embedding.out"} <= set(
        model.program.operators()
    )
    assert model.program.operators().keys() - plain.program.operators().keys() <= {"aten::_to_copy.out"}
    assert _dtypes(model) <= {torch.float32, torch.int64}
    weights = 40 * 27 + 304 * 40
    assert 1.9 * weights < plain.nbytes - model.nbytes < 2.1 * weights


@pytest.mark.parametrize("recipe", ["bfloat16", "float16"])
def test_recipe_rounds_only_weights(recipe: str) -> None:
    net, args = _net()
    scheme = recipes.recipe_named(recipe)
    layers = recipes.layers_of(scheme, net, None)
    assert list(layers) == ["convolution", "table", "last"]
    stored = recipes.apply(scheme, net, None, layers, layers, ())
    model, plain = torchette.compile(stored, args), torchette.compile(net, args)
    with torch.no_grad():
        torch.testing.assert_close(model(*args), stored(*args), rtol=0.02, atol=1e-6)
    assert model.program.operators().keys() == plain.program.operators().keys() | {
        "cpu::packed_embedding.out"
    }
    assert plain.nbytes - model.nbytes > 1.9 * (40 * 27 + 304 * 40)


@pytest.mark.parametrize(
    "layer", [nn.LSTM(20, 30), nn.GRU(20, 30), nn.ConvTranspose2d(20, 18, 3), nn.Conv2d(20, 20, 3, groups=20)]
)
@pytest.mark.parametrize("dtype", NARROW)
def test_layers_of_all_kinds(layer: nn.Module, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 2, 20) if isinstance(layer, nn.RNNBase) else torch.randn(1, 20, 6, 6)
    narrow = copy.deepcopy(layer).eval().to(dtype)
    model = torchette.compile(narrow, (x.to(dtype),))
    with torch.no_grad():
        exact = copy.deepcopy(narrow).double()(x.to(dtype).double())
    result = model(x.to(dtype))
    for actual, expected in zip(
        *((value[0], value[1]) if isinstance(value, tuple) else (value,) for value in (result, exact)),
        strict=True,
    ):
        for one, reference in zip(
            *(value if isinstance(value, tuple) else (value,) for value in (actual, expected)), strict=True
        ):
            assert (one.dtype is dtype and torch.equal(one, reference.to(dtype))) or torch.allclose(
                one.double(), reference, rtol=torch.finfo(dtype).eps, atol=1e-5
            )
    assert any(name.startswith("cpu::") for name in model.program.operators())


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        self.seen.index_copy_(0, place, x)
        return self.seen * 2


def test_state_persists() -> None:
    cache, x = Cache().bfloat16(), torch.randn(1, 8).bfloat16()
    model, expected = torchette.compile(cache, (x, torch.tensor([1]))), copy.deepcopy(cache)
    for place in (1, 3, 1):
        x = torch.randn(1, 8).bfloat16()
        assert torch.equal(model(x, torch.tensor([place])), expected(x, torch.tensor([place])))


def test_scalars_are_as_exact_as_in_torch() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 0.1

    x = torch.randn(1000).bfloat16()
    assert torch.equal(torchette.compile(Scaled(), (x,))(x), x * 0.1)


def test_overflow_is_infinite() -> None:
    layer, x = nn.Linear(4, 3, bias=False).half(), torch.full((1, 4), 6e4).half()
    layer.weight.data = torch.tensor([[1, 1, 0, 0], [-1, -1, 0, 0], [1, 1, -1, 0]]).half()
    assert torchette.compile(layer, (x,))(x).tolist() == [
        [float("inf"), -float("inf"), torch.tensor(6e4).half().item()]
    ]


def test_bit_operations_and_branches_do_not_change() -> None:
    class Bits(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = x + x
            turned = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (y,))
            return torch.hash_tensor(y), turned

    x = torch.randn(64).bfloat16()
    for value in (x, -x):
        bits, turned = torchette.compile(Bits(), (x,))(value)
        assert torch.equal(bits, Bits()(value)[0])
        torch.testing.assert_close(turned, Bits()(value)[1], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("level", kernel_levels())
@pytest.mark.parametrize("dtype", NARROW)
def test_every_16_bit_value_is_exact(dtype: torch.dtype, level: str) -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).view(4096, 16)
    for rows in (1, 30):
        x, result, expected = torch.zeros(rows, 16), torch.empty(rows, 4096), torch.empty(rows, 4096)
        x[:, 5], x[:, 6] = 2.0, 1.0
        numbers = every.roll(1, 1) if rows == 1 else every
        for weight, into in ((numbers, result), (numbers.float(), expected)):
            _native.call_kernel(
                "cpu::linear.out", x, pack_linear(weight), None, None, 4096, "none", into, level=level
            )
        assert torch.equal(result.isnan(), expected.isnan())
        assert torch.equal(result.nan_to_num(7).view(torch.int32), expected.nan_to_num(7).view(torch.int32))
