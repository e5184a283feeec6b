# SPDX-License-Identifier: BSD-3-Clause
# Graphs that PT2E quantized become operators on integers, one for each layer. The results equal those of the graph.

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchette
from tests.exir.graphs import Function
from torchette.backends.engine import CpuPartitioner
from torchette.backends.xnnpack import XNNPACKQuantizer, get_symmetric_quantization_config
from torchette.exir import EdgeCompileConfig
from torchette.exir.program import to_edge_transform_and_lower
from torchette.runtime import Runtime

pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")


def quantized(module: nn.Module, x: torch.Tensor, per_channel: bool = True) -> torch.fx.GraphModule:
    """Returns the module in int8, calibrated on four batches like `x`."""
    graph = torch.export.export(module.eval(), (x,)).module()
    config = get_symmetric_quantization_config(is_per_channel=per_channel)
    prepared = pt2e.prepare_pt2e(graph, XNNPACKQuantizer().set_global(config))
    with torch.no_grad():
        for _ in range(4):
            prepared(torch.randn_like(x))
    return pt2e.convert_pt2e(prepared)


def operators(graph: torch.fx.GraphModule, x: torch.Tensor) -> Counter[str]:
    """Returns how often the compiled program calls each operator."""
    program = to_edge_transform_and_lower(torch.export.export(graph, (x,)), partitioner=[CpuPartitioner()])
    lowered = program.to_executorch().exported_program()
    calls = [node for node in lowered.graph.nodes if node.op == "call_function"]
    return Counter(node.target._schema.name.rpartition("::")[2] for node in calls)


def check(graph: torch.fx.GraphModule, x: torch.Tensor) -> None:
    """Compares: at most one element in a hundred differs, by one step, because float32 rounds a sum differently."""
    model = torchette.compile(graph, (x,))
    for _ in range(3):
        data = torch.randn_like(x) * 1.3  # exceeds the calibrated range, so results saturate
        expected, result = graph(data), model(data)
        off = (result - expected).abs()
        steps = off[off > 0]
        assert steps.numel() <= 0.01 * off.numel(), steps.numel() / off.numel()
        assert not steps.numel() or steps.max() <= 1.01 * steps.min()


class Block(nn.Module):
    """All kinds of convolution, a residual, functions, a pool, a concatenation, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU())
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.grouped = nn.Conv2d(24, 24, 3, padding=2, dilation=2, groups=3)
        self.pointwise = nn.Conv2d(24, 24, 1)
        self.last = nn.Linear(48, 10)

    def image(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y = nn.functional.hardswish(self.depthwise(x))
        y = torch.relu(self.pointwise(self.grouped(y)) + x)
        return nn.functional.max_pool2d(y, 3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.image(x)
        return self.last(torch.cat([y, y], 1).mean([2, 3]))


def test_each_layer_becomes_one_operator() -> None:
    x = torch.randn(1, 3, 20, 20)
    counts = operators(quantized(Block(), x), x)
    assert counts == {
        "quantize": 1, "dequantize": 1, "permute_copy": 1, "quantized_convolution": 2, "quantized_depthwise": 1,
        "lookup": 1, "quantized_convolution_add": 1, "max_pool": 1, "cat": 1, "quantized_avg_pool": 1, "quantized_linear": 1,
        "view_copy": 1,
    }  # fmt: skip


class Residuals(nn.Module):
    """Residuals after 1 x 1 and 3 x 3 convolutions, with and without a convolution of the other operand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.shortcut = (
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Conv2d(8, 24, 1),
            nn.Conv2d(8, 24, 1),
        )
        self.stem = nn.Conv2d(8, 8, 1)
        self.again = nn.Conv2d(24, 24, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = torch.relu(x + self.first(x))
        x = torch.relu(self.last(x) + self.shortcut(x))
        return self.again(x) + x


def test_residuals_are_added_by_the_convolution() -> None:
    torch.manual_seed(3)
    x = torch.randn(2, 8, 9, 7)
    graph = quantized(Residuals(), x)
    counts = operators(graph, x)
    assert counts["quantized_convolution_add"] == 3 and counts["quantized_convolution"] == 2, counts
    assert not counts["quantized_add"]
    edge = EdgeCompileConfig(disable_passes=["fuse_epilogues"])
    fused, separate = torchette.compile(graph, (x,)), torchette.compile(graph, (x,), edge=edge)
    for _ in range(3):
        data = torch.randn_like(x) * 1.3
        assert torch.equal(fused(data), separate(data))


def test_addition_stays_if_the_convolution_has_another_user() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(8, 8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            return torch.cat([y + x, y], 1)

    x = torch.randn(1, 8, 5, 5)
    counts = operators(quantized(Twice(), x), x)
    assert counts["quantized_add"] == counts["quantized_convolution"] == 1, counts


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(
    "module, sizes",
    [
        (nn.Conv2d(5, 21, 3, padding=1), (2, 5, 9, 8)),
        (nn.Sequential(nn.Conv2d(8, 8, 5, padding=2, groups=8), nn.ReLU6()), (1, 8, 7, 7)),
        (nn.Sequential(nn.Linear(33, 50), nn.ReLU(), nn.Linear(50, 7)), (4, 33)),
        (nn.Linear(16, 20, bias=False), (2, 3, 16)),
        (nn.Sequential(nn.Conv1d(4, 6, 3), nn.ReLU()), (1, 4, 12)),
    ],
)
def test_layers_equal_the_graph(module: nn.Module, sizes: tuple[int, ...], per_channel: bool) -> None:
    torch.manual_seed(1)
    x = torch.randn(sizes)
    graph = quantized(module, x, per_channel)
    counts = operators(graph, x)
    assert not {"convolution", "linear", "addmm", "mm", "weight_only_linear"} & set(counts), counts
    check(graph, x)


def test_network_equals_the_graph() -> None:
    torch.manual_seed(2)
    x = torch.randn(1, 3, 20, 20)
    graph = quantized(Block(), x)
    model = torchette.compile(graph, (x,))
    for _ in range(4):
        data = torch.randn_like(x)
        expected, result = graph(data), model(data)
        # A different rounding in an early layer can become a few steps at the end.
        assert (result - expected).abs().max() <= 0.02 * expected.abs().max()


def test_squeeze_and_excitation() -> None:
    class Excite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.squeeze, self.excite = (
                nn.Conv2d(3, 20, 3),
                nn.Conv2d(20, 8, 1),
                nn.Conv2d(8, 20, 1),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.before(x)
            y = torch.relu(self.squeeze(x.mean([2, 3], keepdim=True)))
            return x * nn.functional.hardsigmoid(self.excite(y))

    torch.manual_seed(3)
    x = torch.randn(1, 3, 12, 12)
    graph = quantized(Excite(), x)
    counts = operators(graph, x)
    assert counts["quantized_mul"] == 1 and "mul" not in counts and "chain" not in counts, counts
    check(graph, x)


@pytest.mark.parametrize("function", [nn.PReLU(18), nn.ReLU()], ids=["slopes", "relu"])
def test_pool_after_a_function_reads_8_bit_integers(function: nn.Module) -> None:
    torch.manual_seed(3)
    pool = nn.MaxPool2d(3, 2, 1, ceil_mode=True)
    network = nn.Sequential(nn.Conv2d(3, 18, 3), function, pool, nn.Conv2d(18, 5, 1)).eval()
    x = torch.randn(2, 3, 14, 15)
    graph = quantized(network, x)
    counts = operators(graph, x)
    assert counts["max_pool"] == 1 and "max_pool2d_with_indices" not in counts, counts
    assert counts["chain"] == isinstance(function, nn.PReLU), counts
    check(graph, x)


class Averaged(nn.Module):
    """An average between two layers."""

    def __init__(self, between: Callable, before: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.before, self.after, self.between = before, after, between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.between(self.before(x)))


F = nn.functional
AVERAGES: dict[str, tuple[Callable, nn.Module, nn.Module, tuple[int, ...]]] = {
    name: (between, nn.Conv2d(3, 18, 3), nn.Conv2d(18, 5, 1), (2, 3, 14, 14))
    for name, between in {
        "mean": lambda x: x.mean([2, 3], keepdim=True),
        "mean of the last": lambda x: x.mean((-1, -2), True),
        "pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
        "pool of pairs": lambda x: F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False),
        "divisor": lambda x: F.avg_pool2d(x, (3, 2), (1, 2), divisor_override=7),
        "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
        "one": lambda x: F.adaptive_avg_pool2d(x, 1),
        "relu": lambda x: F.avg_pool2d(x, 2).relu(),
    }.items()
} | {
    "flat": (lambda x: x.mean([2, 3]), nn.Conv2d(3, 18, 3), nn.Linear(18, 4), (2, 3, 9, 9)),
    "tokens": (lambda x: x.mean(1), nn.Linear(8, 20), nn.Linear(20, 4), (2, 7, 8)),
    "tokens kept": (lambda x: x.mean(1, keepdim=True), nn.Linear(8, 20), nn.Linear(20, 4), (2, 7, 8)),
    "signal": (lambda x: x.mean(2), nn.Conv1d(3, 18, 3), nn.Linear(18, 4), (2, 3, 21)),
    "pool of a signal": (lambda x: F.avg_pool1d(x, 2), nn.Conv1d(3, 18, 3), nn.Conv1d(18, 4, 1), (2, 3, 21)),
}  # fmt: skip


def with_averages_in_integers(module: nn.Module, x: torch.Tensor, uint8: bool) -> torch.fx.GraphModule:
    """Quantizes each value, also averages, which XNNPACK's quantizer does not always annotate."""
    low, high, dtype = (0, 255, torch.uint8) if uint8 else (-128, 127, torch.int8)

    class Between(nn.Module):
        def __init__(self, one: nn.Module, scale: float, zero: int) -> None:
            super().__init__()
            self.one, self.how = one, (scale, zero, low, high, dtype)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ops = torch.ops.quantized_decomposed
            return ops.dequantize_per_tensor(ops.quantize_per_tensor(self.one(x), *self.how), *self.how)

    middle = low + 120
    # no ties, which floats may round up or down
    between = Between(Function(module.between), 0.01973, middle + 9)
    return nn.Sequential(Between(module.before, 0.03121, middle), between, module.after).eval()


@pytest.mark.parametrize("uint8", [False, True])
@pytest.mark.parametrize("name", AVERAGES)
def test_averages_of_integers(name: str, uint8: bool) -> None:
    torch.manual_seed(4)
    between, before, after, sizes = AVERAGES[name]
    x = torch.randn(sizes)
    network = with_averages_in_integers(Averaged(between, before, after), x, uint8)
    program = torch.export.export(network, (x,))
    model = torchette.compile(program)
    names = {name.removeprefix("cpu::").removesuffix(".out") for name in model.program.operators()}
    assert "quantized_avg_pool" in names and not names & {"avg_pool", "adaptive_avg_pool", "aten::mean"}, (
        names
    )
    pooled = nn.Sequential(*network[:2])
    alone, expected = torchette.compile(pooled, (x,))(x), pooled(x)
    off = (alone - expected).abs()
    # float32 may round differently in the previous layer and in the sum of floats
    assert off.max() <= 0.0201 and (off > 1e-6).float().mean() <= 0.01
    torch.testing.assert_close(model(x), network(x), rtol=0, atol=0.05)


@pytest.mark.parametrize(
    "between",
    [
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        lambda x: F.avg_pool2d(x, 5, 2, ceil_mode=True),
        lambda x: F.adaptive_avg_pool2d(x, 5),
        lambda x: x.mean(3),
    ],
)
def test_averages_of_unequal_windows_stay_in_float(between: Callable) -> None:
    torch.manual_seed(5)
    x = torch.randn(1, 3, 14, 14)
    module = Averaged(between, nn.Conv2d(3, 18, 3), nn.Identity())
    network = with_averages_in_integers(module, x, False)
    model = torchette.compile(network, (x,))
    assert "cpu::quantized_avg_pool.out" not in model.program.operators()
    torch.testing.assert_close(model(x), network(x), rtol=0, atol=0.0201)


def test_bits_do_not_depend_on_threads() -> None:
    x = torch.randn(1, 3, 160, 160)
    program = Runtime.get().load_program(bytes(torchette.compile(quantized(Block(), x), (x,))))
    results = [program.load_method("forward", threads=count).execute((x,))[0] for count in (1, 2, 3)]
    assert all(torch.equal(torch.as_tensor(results[0]), torch.as_tensor(result)) for result in results[1:])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_dynamic_sizes(dtype: torch.dtype) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = torch.randint(-127, 128, (12, 20), dtype=torch.int8)
            self.register_buffer("weight", weight)
            self.register_buffer("scales", torch.rand(12) * 0.01 + 1e-3)
            self.register_buffer("zeros", torch.zeros(12, dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ops = torch.ops.quantized_decomposed
            tensor = (low, high, dtype)
            x = ops.quantize_per_tensor(x, 0.02, low + 120, *tensor)
            x = ops.dequantize_per_tensor(x, 0.02, low + 120, *tensor)
            weight = ops.dequantize_per_channel(
                self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8
            )
            y = torch.relu(nn.functional.linear(x, weight))
            y = ops.quantize_per_tensor(y, 0.03, low + 5, *tensor)
            return ops.dequantize_per_tensor(y, 0.03, low + 5, *tensor)

    layer = Layer().eval()
    rows = torch.export.Dim("rows", min=1, max=64)
    program = torch.export.export(layer, (torch.randn(4, 20),), dynamic_shapes=({0: rows},))
    model = torchette.compile(program)
    assert "quantized_linear" in str(model.report())
    for count in (1, 5, 64):
        x = torch.randn(count, 20)
        off = model(x) != layer(x)
        assert off.float().mean() <= 0.01


class Heads(nn.Module):
    """Attention as timm writes it: queries, keys and values are slices of one quantized layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * 8**-0.5) @ k.transpose(-2, -1)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width))


@pytest.mark.parametrize("batch", [1, 2])
def test_attention_between_quantized_layers_is_one_operator(batch: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(batch, 10, 32)
    graph = quantized(Heads(), x)
    called = operators(graph, x)
    assert (called["attention"], called["_softmax"], called["bmm"]) == (1, 0, 0)
    assert called["quantized_linear"] == 2
    assert called["permute_copy"] == 0, "integers or floats are permuted around it"
    check(graph, x)
