# SPDX-License-Identifier: BSD-3-Clause
# Quantization at run time by PT2E and torchao becomes cpu::quantize_rows and cpu::dynamic_linear. The integers equal those of torch
# exactly, and the results are bitwise equal on all levels.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.nn.functional import linear

pytest.importorskip("torchao")

from torchao.kernel import intmm
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    MappingType,
    quantize_,
)
from torchao.quantization.granularity import PerAxis, PerGroup, PerTensor
from torchao.quantization.quant_primitives import choose_qparams_affine, quantize_affine

import torchette
from tests.backends.engine.cases import dynamic_linear as cases
from tests.backends.engine.draw import Draw
from tests.backends.engine.test_patterns import engine_calls
from tests.kernels import kernel_call
from tests.sweep import sweep
from torchette.backends.engine.operators.dynamic_linear import dynamic_linear, quantize_rows
from torchette.backends.engine.pack import pack_linear, pack_quads
from torchette.backends.xnnpack import XNNPACKQuantizer, get_symmetric_quantization_config
from torchette.capture import pt2e
from torchette.quantization.recipes import apply, recipe_named
from torchette.runtime import kernel_levels

decomposed = torch.ops.quantized_decomposed


class Layers(nn.Module):
    """Three layers that read one tensor with 2 to 4 dimensions, then a layer with a residual and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(64, 96, bias=bias) for bias in (True, False, True))
        self.last = nn.Linear(96, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.last(self.query(x) * self.key(x) + self.value(x)))


# The sums and the activation are in the layers.
CALLS = {"quantize_rows": 2, "dynamic_linear": 4}
OPERATORS = {"cpu::quantize_rows.out", "cpu::dynamic_linear.out", "aten::mul.out"}


def pt2e_graph(module: nn.Module, x: torch.Tensor, shapes: Any = None, **how: bool) -> nn.Module:
    config = get_symmetric_quantization_config(is_dynamic=True, **how)
    graph = export(module, (x,), dynamic_shapes=shapes).module()
    return pt2e.quantize(graph, [XNNPACKQuantizer().set_global(config)], [((x,), {})])


def torchao_model(config: Any) -> Callable[..., nn.Module]:
    def quantized(module: nn.Module, x: torch.Tensor, shapes: Any = None) -> nn.Module:
        quantize_(module, config)
        return module

    return quantized


def intx(dtype: torch.dtype, granularity: Any, **how: Any) -> Callable[..., nn.Module]:
    return torchao_model(Int8DynamicActivationIntxWeightConfig(dtype, granularity, **how))


FORMS: dict[str, Callable[..., nn.Module]] = {
    "pt2e": lambda module, x, shapes=None: pt2e_graph(module, x, shapes, is_per_channel=False),
    "pt2e by channel": lambda module, x, shapes=None: pt2e_graph(module, x, shapes, is_per_channel=True),
    "8da4w": intx(torch.int4, PerGroup(32)),
    "8da4w in groups of 16": intx(torch.int4, PerGroup(16)),
    "8da4w by channel": intx(torch.int4, PerAxis(0)),
    "8da4w with zero points": intx(torch.int4, PerGroup(32), weight_mapping_type=MappingType.ASYMMETRIC),
    "8da8w": intx(torch.int8, PerAxis(0)),
    "8da8w in groups": intx(torch.int8, PerGroup(32)),
    "8da2w": intx(torch.int2, PerGroup(32)),
    "integers by row": torchao_model(Int8DynamicActivationInt8WeightConfig()),
    "integers by tensor": torchao_model(Int8DynamicActivationInt8WeightConfig(granularity=PerTensor())),
    "integers with zero points": torchao_model(Int8DynamicActivationInt8WeightConfig(act_mapping_type=MappingType.ASYMMETRIC)),
}  # fmt: skip
SHAPES = {"rows": (5, 64), "deep": (2, 1, 3, 64)}


def made(form: str, x: torch.Tensor, shapes: Any = None) -> nn.Module:
    torch.manual_seed(0)
    return FORMS[form](Layers().eval(), x, shapes)


def agree(model: Any, module: nn.Module, x: torch.Tensor) -> None:
    """Eager adds floats in another order, so a value near a tie may be quantized to the next integer."""
    expected, step = module(x), 0.02 if x.numel() > 64 else 0.05
    torch.testing.assert_close(
        model(x), expected, rtol=0, atol=step * float(expected.detach().abs().max()) + 1e-6
    )
    off = (model(x) - expected).abs() > 1e-5 * float(expected.detach().abs().max()) + 1e-6
    assert float(off.float().mean()) <= 0.2


@pytest.mark.parametrize("shape", sweep(SHAPES, "rows"))
@pytest.mark.parametrize("form", FORMS)
def test_layers_run_on_integers(form: str, shape: str) -> None:
    if form == "integers by tensor" and shape == "deep":
        pytest.skip("torchao refuses it")
    x = torch.randn(*SHAPES[shape])
    module = made(form, x)
    model = torchette.compile(module, (x,))
    assert engine_calls(model) == CALLS and set(model.program.operators()) == OPERATORS
    for data in (x, torch.randn_like(x) * 3 + 1, torch.zeros_like(x)):
        agree(model, module, data)


@pytest.mark.parametrize("unsigned", [False, True])
def test_torchao_multiplies_signed_or_unsigned_integers(
    unsigned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice depends on the processor."""
    monkeypatch.setattr(intmm, "_cpu_is_vnni_supported", lambda: unsigned)
    monkeypatch.setattr(intmm, "_cpu_is_amx_tile_supported", lambda: False)
    x = torch.randn(3, 64)
    module = made("integers by row", x)
    spelled = {str(node.target) for node in export(module, (x,)).run_decompositions().graph.nodes}
    assert ("aten.sub.Tensor" in spelled) == unsigned, "torchao spells it in another way"
    model = torchette.compile(module, (x,))
    assert engine_calls(model) == CALLS
    agree(model, module, x)


@pytest.mark.parametrize(
    "form",
    sweep(
        ["pt2e by channel", "8da4w", "8da8w", "integers by row", "integers with zero points"],
        "pt2e by channel",
        "8da4w",
    ),
)
def test_dynamic_sizes(form: str) -> None:
    x = torch.randn(2, 3, 64)
    shapes = ({0: Dim("batch", min=1, max=4), 1: Dim("length", min=1, max=9)},)
    module = made(form, x, shapes)
    model = torchette.compile(module, (x,), dynamic_shapes=shapes)
    assert engine_calls(model) == CALLS
    for sizes in ((1, 1), (4, 9), (2, 3)):
        agree(model, module, torch.randn(*sizes, 64))


@pytest.mark.parametrize("recipe", ["int8-dynamic", "8da4w"])
def test_recipes(recipe: str) -> None:
    torch.manual_seed(0)
    module, x = Layers().eval(), torch.randn(4, 64)
    program = export(module, (x,)) if recipe == "int8-dynamic" else None
    layers = ["query", "key", "value", "last"]
    chosen = dict.fromkeys(layers, recipe_named(recipe).bits)
    quantized = apply(recipe_named(recipe), module, program, layers, chosen, [((x,), {})])
    model = torchette.compile(quantized, (x,))
    assert engine_calls(model) == CALLS
    agree(model, quantized, x)


# ---- integers equal those of torch ----


def quantized_rows(x: torch.Tensor, *scheme: Any, level: str | None = None) -> list[torch.Tensor]:
    like = [x.to(torch.int8), x.new_empty(*x.shape[:-1], 2)]
    return kernel_call.run("cpu::quantize_rows.out", x, *scheme, like=like, level=level)


def finite_rows(width: int = 37) -> torch.Tensor:
    torch.manual_seed(1)
    drawn = torch.randn(40, width) * 10.0 ** torch.randint(-20, 20, (40, 1)) + torch.randn(40, 1)
    extremes = cases.extremes(width)
    return torch.cat([drawn, extremes[extremes.isfinite().all(1) & (extremes.abs() < 1e38).all(1)]])


@pytest.mark.parametrize("level", kernel_levels())
@pytest.mark.parametrize("symmetric", [False, True])
def test_integers_equal_those_of_pt2e(symmetric: bool, level: str) -> None:
    choose = decomposed.choose_qparams_symmetric.tensor if symmetric else decomposed.choose_qparams.tensor
    for x in (*finite_rows(), finite_rows()):
        x = x.reshape(-1, x.shape[-1])
        for low, epsilon in ((-128, 2.0**-12), (-127, 1e-5)):
            scale, zero = choose(x, low, 127, epsilon, torch.int8)
            expected = decomposed.quantize_per_tensor.tensor(x, scale, zero, low, 127, torch.int8)
            steps = (127 - low) / (2 if symmetric else 1)
            numbers, rows = quantized_rows(x, low, 127, steps, epsilon, symmetric, True, level=level)
            assert torch.equal(rows, torch.tensor([float(scale), float(zero)]).expand_as(rows))
            assert torch.equal(numbers, expected)


@pytest.mark.parametrize("level", kernel_levels())
@pytest.mark.parametrize("mapping", [MappingType.ASYMMETRIC, MappingType.SYMMETRIC])
def test_integers_equal_those_of_torchao(mapping: MappingType, level: str) -> None:
    x, symmetric = finite_rows(), mapping is MappingType.SYMMETRIC
    for epsilon in (torch.finfo(torch.float32).eps, torch.finfo(torch.float32).tiny):
        block = (1, x.shape[1])
        scale, zero = choose_qparams_affine(x, mapping, block, torch.int8, -128, 127, epsilon, torch.float32)
        expected = quantize_affine(x, block, scale, zero, torch.int8, -128, 127)
        steps = 127.5 if symmetric else 255.0
        numbers, rows = quantized_rows(x, -128, 127, steps, epsilon, symmetric, False, level=level)
        assert torch.equal(rows, torch.stack([scale.flatten(), zero.flatten().float()], -1))
        assert torch.equal(numbers, expected)


@pytest.mark.parametrize("form", FORMS)
def test_nan_and_infinity_stay_in_their_row(form: str) -> None:
    """A row with NaN or an infinite range becomes NaN, like in eager. Other rows do not change."""
    x = torch.randn(6, 64)
    is_per_tensor = form.startswith("pt2e") or form == "integers by tensor"
    torch.manual_seed(0)
    module = FORMS[form](nn.Sequential(nn.Linear(64, 40)).eval(), x)
    model = torchette.compile(module, (x,))
    symmetric = form in ("integers by row", "integers by tensor")
    for bad in (float("nan"), float("inf"), float("-inf"), *(() if symmetric else (3e38,))):
        inputs = x.clone()
        inputs[2, 5], inputs[2, 9] = bad, -3e38
        expected, got = module(inputs), model(inputs)
        assert expected[2].isnan().all(), "what eager gives"
        assert torch.equal(got.isnan(), expected.isnan()) and bool(got.isnan().all()) == is_per_tensor
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


# ---- bitwise equal on all levels ----


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two tensors are equal. All bit patterns of NaN are equal."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.parametrize("level", kernel_levels())
def test_levels_have_the_bits_of_the_pattern(level: str) -> None:
    """The operators of the pattern round separately in eager float32. The kernel must also round after each operator."""
    for case in cases.quantize_rows(Draw(5)):
        expected = quantize_rows(*case)
        for got, reference in zip(quantized_rows(*case, level=level), expected, strict=True):
            assert same_bits(got.float(), reference.float())
    for case in cases.dynamic_linear(Draw(6)):
        if case[-1] in ("none", "relu"):  # other functions are polynomials
            expected = dynamic_linear(*case)
            (got,) = kernel_call.run("cpu::dynamic_linear.out", *case, like=[expected], level=level)
            assert same_bits(got, expected)


# ---- patterns that the pass does not change ----


class Spelled(nn.Module):
    """Dynamic quantization in single operators."""

    def __init__(self, scale: Callable, numbers: Callable) -> None:
        super().__init__()
        self.scale, self.numbers = scale, numbers
        self.register_buffer("whole", torch.randint(-127, 128, (40, 64), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(40, 1) * 0.02 + 1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.scale(x)
        return linear(self.numbers(x, scale) * scale, self.whole.float() * self.scales)


def spread(x: torch.Tensor) -> torch.Tensor:
    zero = torch.zeros_like(x.amax(-1, keepdim=True))
    return torch.maximum(
        -torch.minimum(x.amin(-1, keepdim=True), zero), torch.maximum(x.amax(-1, keepdim=True), zero)
    )


def scale_of(x: torch.Tensor) -> torch.Tensor:
    return (spread(x) / 127.0).clamp(min=1e-6)


def numbers_of(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.clamp(torch.round(x * (1.0 / scale)), -127, 127)


OTHERS: dict[str, tuple[Callable, Callable]] = {
    "no least scale": (lambda x: spread(x) / 127.0, numbers_of),
    "a least scale that has no inverse": (lambda x: (spread(x) / 127.0).clamp(min=1e-40), numbers_of),
    "a largest scale": (lambda x: (spread(x) / 127.0).clamp(1e-6, 1.0), numbers_of),
    "a range without zero": (lambda x: ((x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)) / 127.0).clamp(min=1e-6), numbers_of),
    "a range of columns": (lambda x: (x.abs().amax(0, keepdim=True) / 127.0).clamp(min=1e-6), numbers_of),
    "another range": (lambda x: scale_of(x * 2.0), numbers_of),
    "a quotient": (scale_of, lambda x, scale: torch.clamp(torch.round(x / scale), -127, 127)),
    "cut, not rounded": (scale_of, lambda x, scale: torch.clamp(torch.floor(x * (1.0 / scale)), -127, 127)),
    "more than 8 bits": (scale_of, lambda x, scale: torch.clamp(torch.round(x * (1.0 / scale)), -255, 255)),
    "halves": (scale_of, lambda x, scale: torch.clamp(torch.round(x * (1.0 / scale)) + 0.5, -127, 127)),
}  # fmt: skip


def test_dynamic_quantization_in_single_operators() -> None:
    module, x = Spelled(scale_of, numbers_of).eval(), torch.randn(5, 64)
    model = torchette.compile(module, (x,))
    assert engine_calls(model) == {"quantize_rows": 1, "dynamic_linear": 1}
    torch.testing.assert_close(model(x), module(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", OTHERS)
def test_other_quantization_is_not_replaced(name: str) -> None:
    torch.manual_seed(0)
    module, x = Spelled(*OTHERS[name]).eval(), torch.randn(5, 64)
    model = torchette.compile(module, (x,))
    assert "quantize_rows" not in engine_calls(model)
    torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("form", ["pt2e by channel", "8da8w", "integers by row"])
def test_accumulators_beyond_32_bits_are_not_replaced(form: str) -> None:
    x, layer = torch.rand(2, 70_000) + 1.0, nn.Linear(70_000, 2, bias=False)
    module = FORMS[form](nn.Sequential(layer).eval(), x)
    assert "dynamic_linear" not in engine_calls(torchette.compile(module, (x,)))


# ---- damaged files ----


@pytest.mark.parametrize("level", kernel_levels())
def test_any_scale_and_zero_point_is_safe(level: str) -> None:
    rows = torch.tensor(
        [[1e38, 1e30], [float("inf"), float("-inf")], [float("nan"), float("nan")], [-1.0, 256.0]]
    )
    x, weight = torch.full([4, 9], 127, dtype=torch.int8), pack_quads(torch.full([5, 9], 127).char())
    args = (x, rows, weight, pack_linear(torch.ones(5, 1)), None, None, 5, "none")
    kernel_call.run("cpu::dynamic_linear.out", *args, like=[torch.empty(4, 5)], level=level)


RIGHT = [torch.ones(3, 8), -128, 127, 255.0, 1e-5, False, False]


@pytest.mark.parametrize(
    ("place", "wrong"),
    [(1, -129), (1, 128), (2, 128), (2, -129), (3, 0.0), (3, float("nan")), (4, 0.0), (4, -1.0), (0, torch.ones(3, 8).double())],
)  # fmt: skip
def test_invalid_scheme_is_refused(place: int, wrong: Any) -> None:
    quantized_rows(*RIGHT)
    like = [torch.empty(3, 8, dtype=torch.int8), torch.empty(3, 2)]
    args = [*RIGHT[:place], wrong, *RIGHT[place + 1 :]]
    with pytest.raises(RuntimeError, match="quantize_rows: "):
        kernel_call.run("cpu::quantize_rows.out", *args, like=like)
