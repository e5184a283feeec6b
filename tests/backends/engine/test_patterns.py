# SPDX-License-Identifier: BSD-3-Clause
# Compiles forms of torch, timm and transformers for the engine. Counts the engine's operators in the file and compares the results
# with eager.

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchette
from tests.exir.graphs import Function

sdpa = F.scaled_dot_product_attention


def engine_calls(model: Any) -> dict[str, int]:
    """Returns the engine's operators in the instructions of a file, without their namespace."""
    counts: Counter[str] = Counter()
    for plan in model.program._output.program.execution_plan:
        for chain in plan.chains:
            for instruction in chain.instructions:
                index = getattr(instruction.instr_args, "op_index", None)
                if index is not None and plan.operators[index].name.startswith("cpu::"):
                    counts[plan.operators[index].name.removeprefix("cpu::")] += 1
    return dict(counts)


def check(module: nn.Module | Callable, args: tuple, expected: dict[str, int], **how: Any) -> None:
    module = (module if isinstance(module, nn.Module) else Function(module)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torchette.compile(module, args, backend="cpu", **how)
        torch.testing.assert_close(compiled(*args), module(*args), rtol=1e-4, atol=1e-5)
    assert engine_calls(compiled) == expected


class With(nn.Module):
    """A function of a module's layers and its input."""

    def __init__(self, function: Callable, *layers: nn.Module, width: int = 12) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)
        self.weight, self.bias = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))
        self.register_buffer("eps", torch.tensor(1e-5))

    def forward(self, *args: Tensor) -> Any:
        return self.function(self, *args)


# ---- norms ----

EPS = 1e-5


def mean(x: Tensor) -> Tensor:
    return x.mean(-1, keepdim=True)


SQUARES: dict[str, Callable[[Tensor], Tensor]] = {
    "pow": lambda x: x.pow(2), "power": lambda x: x**2, "product": lambda x: x * x, "square": torch.square,
}  # fmt: skip
QUOTIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sqrt": lambda x, v: x / torch.sqrt(v), "rsqrt": lambda x, v: x * torch.rsqrt(v),
    "rsqrt first": lambda x, v: torch.rsqrt(v) * x, "power": lambda x, v: x / v**0.5,
    "negative power": lambda x, v: x * v.pow(-0.5), "inverse": lambda x, v: x * (1 / torch.sqrt(v)),
}  # fmt: skip


def var_mean(m: With, x: Tensor) -> Tensor:
    variance, centre = torch.var_mean(x, -1, keepdim=True, correction=0)
    return (x - centre) * torch.rsqrt(variance + EPS) * m.weight + m.bias


def channels_first_norm(m: With, x: Tensor) -> Tensor:
    x = m.layers[0](x)
    centre = x.mean(1, keepdim=True)
    x = (x - centre) / torch.sqrt((x - centre).pow(2).mean(1, keepdim=True) + 1e-6)
    return m.weight[:, None, None] * x + m.bias[:, None, None]


LAYER_NORMS: dict[str, nn.Module] = {
    "whole": nn.LayerNorm(12),
    "bare": nn.LayerNorm(12, elementwise_affine=False),
    "without bias": nn.LayerNorm(12, bias=False),
    "two dimensions": nn.LayerNorm((5, 12)),
    **{
        f"square: {name}": With(lambda m, x, f=f: m.weight * ((x - mean(x)) / torch.sqrt(mean(f(x - mean(x))) + EPS)) + m.bias)
        for name, f in SQUARES.items()
    },
    **{
        f"quotient: {name}": With(lambda m, x, f=f: f(x - mean(x), mean((x - mean(x)).pow(2)) + EPS) * m.weight + m.bias)
        for name, f in QUOTIENTS.items()
    },
    "var": With(lambda m, x: (x - mean(x)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + EPS) * m.weight + m.bias),
    "var_mean": With(var_mean),
    "eps stored": With(lambda m, x: m.weight * ((x - mean(x)) / torch.sqrt(mean((x - mean(x)) ** 2) + m.eps)) + m.bias),
    "eps first": With(lambda m, x: m.bias + m.weight * ((x - mean(x)) / torch.sqrt(EPS + mean((x - mean(x)) ** 2)))),
}  # fmt: skip
RMS_NORMS: dict[str, nn.Module] = {
    "whole": nn.RMSNorm(12),
    "bare": nn.RMSNorm(12, elementwise_affine=False),
    "two dimensions": nn.RMSNorm((5, 12), eps=1e-6),
    **{
        f"square: {name}": With(lambda m, x, f=f: m.weight * (x * torch.rsqrt(mean(f(x)) + EPS)))
        for name, f in SQUARES.items()
    },
    **{
        f"quotient: {name}": With(lambda m, x, f=f: f(x, mean(x.pow(2)) + EPS) * m.weight)
        for name, f in QUOTIENTS.items()
    },
    "gemma": With(lambda m, x: x * torch.rsqrt(mean(x.pow(2)) + EPS) * (1.0 + m.weight.float())),
    "llama": With(lambda m, x: m.weight * (x.float() * torch.rsqrt(mean(x.float().pow(2)) + EPS)).to(x.dtype)),
}  # fmt: skip
OTHER_NORMS: dict[str, nn.Module | Callable] = {
    "eps behind the root": With(lambda m, x: (x - mean(x)) / (x.std(-1, keepdim=True) + EPS)),
    "another dimension": lambda x: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + EPS),
    "unbiased": lambda x: (x - mean(x)) * torch.rsqrt(x.var(-1, keepdim=True) + EPS),
    "another mean": lambda x: (x - mean(x)) * torch.rsqrt(mean((x - mean(x * 2)) ** 2) + EPS),
    "another value": lambda x: (x + 1) * torch.rsqrt(mean(x**2) + EPS),
    "no quotient": lambda x: torch.exp(torch.rsqrt(mean(x**2) + EPS) * 1),
}


@pytest.mark.parametrize("name", LAYER_NORMS)
def test_layer_norms(name: str) -> None:
    check(LAYER_NORMS[name], (torch.randn(2, 5, 12),), {"layer_norm": 1})


@pytest.mark.parametrize("name", RMS_NORMS)
def test_rms_norms(name: str) -> None:
    check(RMS_NORMS[name], (torch.randn(2, 5, 12),), {"rms_norm": 1})


@pytest.mark.parametrize("name", OTHER_NORMS)
def test_similar_patterns_are_not_norms(name: str) -> None:
    module = OTHER_NORMS[name]
    module = module if isinstance(module, nn.Module) else Function(module)
    compiled = torchette.compile(module.eval(), (x := torch.randn(2, 5, 12),), backend="cpu")
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
    assert not {"layer_norm", "rms_norm"} & engine_calls(compiled).keys()


def test_norm_of_channels_that_were_first() -> None:
    check(
        With(channels_first_norm, nn.Conv2d(3, 12, 3)),
        (torch.randn(1, 3, 6, 6),),
        {"planar_convolution": 1, "layer_norm": 1},
    )


# ---- activations ----

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "clamp": lambda y: y.clamp(min=0), "relu6": F.relu6, "hardtanh": lambda y: F.hardtanh(y, 0.0, 6.0),
    "gelu": F.gelu, "gelu tanh": lambda y: F.gelu(y, approximate="tanh"),
    "erf": lambda y: y * 0.5 * (1.0 + torch.erf(y / math.sqrt(2.0))),
    "half first": lambda y: 0.5 * y * (1.0 + torch.erf(y / math.sqrt(2.0))),
    "half last": lambda y: y * (0.5 * (1.0 + torch.erf(y * 0.7071067811865476))),
    "gelu_new": lambda y: 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0)))),
    "silu": F.silu, "silu by hand": lambda y: y * torch.sigmoid(y), "hardswish": F.hardswish,
    "hardswish by hand": lambda y: y * F.relu6(y + 3) / 6, "gate first": lambda y: F.relu6(y + 3.0) * y * (1 / 6),
    "clamp gate": lambda y: y * (y + 3).clamp(0, 6) / 6, "hardsigmoid gate": lambda y: y * F.hardsigmoid(y),
    "hardsigmoid": F.hardsigmoid, "hardsigmoid by hand": lambda y: F.relu6(y + 3) / 6, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_join_the_layer(name: str) -> None:
    model = With(lambda m, x: ACTIVATIONS[name](m.layers[0](x)), nn.Linear(6, 9))
    expected = {"linear": 1}
    check(model, (torch.randn(3, 6) * 3,), expected)
    compiled = torchette.compile(model.eval(), (torch.randn(3, 6),), backend="cpu")
    assert set(compiled.program.operators()) == {"cpu::linear.out"}


# ---- attention ----

B, T, H, D = 2, 5, 4, 8
SEEN = torch.ones(T, T, dtype=torch.bool).tril()
FAR = torch.finfo(torch.float32).min


def heads(count: int = H, rows: int = T) -> Tensor:
    return torch.randn(B, count, rows, D)


def repeat_kv(x: Tensor, times: int) -> Tensor:
    batch, groups, tokens, depth = x.shape
    return (
        x[:, :, None]
        .expand(batch, groups, times, tokens, depth)
        .reshape(batch, groups * times, tokens, depth)
    )


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The form of transformers."""
    scores = torch.matmul(q, k.transpose(2, 3)) * D**-0.5
    scores = scores if mask is None else scores + mask
    return (
        torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)
        .transpose(1, 2)
        .contiguous()
    )


def filled(hidden: Callable[[Tensor], Tensor], fill: float) -> Callable:
    def forward(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(D)
        return scores.masked_fill(hidden(*mask), fill).softmax(-1) @ v

    return forward


def baddbmm(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.bmm(torch.baddbmm(mask, q, k.transpose(1, 2), beta=1.0, alpha=D**-0.5).softmax(-1), v)


def of_windows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Swin: a batch of windows, a mask of each window, and a bias and a scale of each head."""
    scores = q @ k.transpose(-2, -1) * SCALES + BIAS
    scores = (scores.view(1, B, H, T, T) + mask[None, :, None]).view(B, H, T, T)
    return scores.softmax(-1) @ v


QKV = (heads(), heads(), heads())
GROUPED = (heads(), heads(2), heads(2))
FLAT = tuple(torch.randn(B * H, T, D) for _ in range(3))
BIAS = torch.linspace(-1, 1, H * T * T).view(1, H, T, T)
SCALES = torch.linspace(0.1, 0.9, H).view(H, 1, 1)
ATTENTIONS: dict[str, tuple[Callable, tuple[Tensor, ...]]] = {
    "sdpa": (lambda q, k, v: sdpa(q, k, v), QKV),
    "causal": (lambda q, k, v: sdpa(q, k, v, is_causal=True), QKV),
    "causal, fewer queries": (lambda q, k, v: sdpa(q, k, v, is_causal=True), (heads(rows=3), *QKV[1:])),
    "scale": (lambda q, k, v: sdpa(q, k, v, scale=0.3), QKV),
    "bool mask": (lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), (*QKV, torch.rand(T, T) > 0.3)),
    "bool mask, dead rows": (lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), (*QKV, ~SEEN)),
    "padding mask": (lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), (*QKV, torch.rand(B, 1, 1, T) > 0.3)),
    "bool constant": (lambda q, k, v: sdpa(q, k, v, attn_mask=SEEN), QKV),
    "added mask": (lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), (*QKV, torch.randn(T, T))),
    "added mask of a batch": (lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), (*QKV, torch.randn(B, 1, T, T))),
    "-inf": (lambda q, k, v: sdpa(q, k, v, attn_mask=torch.zeros(T, T).masked_fill(~SEEN, -math.inf)), QKV),
    "finfo.min": (lambda q, k, v: sdpa(q, k, v, attn_mask=torch.zeros(T, T).masked_fill(~SEEN, FAR)), QKV),
    "grouped": (lambda q, k, v: sdpa(q, k, v, enable_gqa=True), GROUPED),
    "grouped, causal": (lambda q, k, v: sdpa(q, k, v, enable_gqa=True, is_causal=True), GROUPED),
    "repeat_kv": (lambda q, k, v: sdpa(q, repeat_kv(k, 2), repeat_kv(v, 2), is_causal=True), GROUPED),
    "repeat_interleave": (lambda q, k, v: sdpa(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)), GROUPED),
    "heads in the batch": (lambda q, k, v: sdpa(q, k, v), FLAT),
    "by hand": (by_hand, QKV),
    "by hand, mask": (by_hand, (*QKV, torch.randn(B, 1, T, T))),
    "by hand, grouped": (lambda q, k, v, m: by_hand(q, repeat_kv(k, 2), repeat_kv(v, 2), m), (*GROUPED, torch.randn(B, 1, T, T))),
    "divided": (lambda q, k, v: (q @ k.transpose(-2, -1) / math.sqrt(D)).softmax(-1) @ v, QKV),
    "query scaled": (lambda q, k, v: ((q * D**-0.5) @ k.transpose(-2, -1)).softmax(-1) @ v, QKV),
    "both scaled": (lambda q, k, v: ((q * D**-0.25) @ (k * D**-0.25).transpose(-2, -1)).softmax(-1) @ v, QKV),
    "filled with -inf": (filled(lambda: ~SEEN, -math.inf), QKV),
    "filled by an input": (filled(lambda m: m == 0, -1e9), (*QKV, SEEN.float())),
    "filled with finfo.min": (filled(lambda m: m == 0, FAR), (*QKV, SEEN.float())),
    "nothing but finfo.min": (filled(lambda m: m == 0, FAR), (*QKV, torch.zeros(T, T))),
    "where": (lambda q, k, v: torch.where(SEEN, q @ k.transpose(-1, -2) / math.sqrt(D), torch.full([], FAR)).softmax(-1) @ v, QKV),
    "inverted mask": (lambda q, k, v, m: by_hand(q, k, v, (1.0 - m[:, None, None]) * FAR), (*QKV, torch.ones(B, T))),
    "bias": (lambda q, k, v: ((q * D**-0.5) @ k.transpose(-2, -1) + BIAS).softmax(-1) @ v, QKV),
    "bias and mask": (lambda q, k, v, m: (q @ k.transpose(-2, -1) + BIAS + m).softmax(-1) @ v, (*QKV, torch.randn(B, 1, T, T))),
    "scale of each head": (lambda q, k, v: (q @ k.transpose(-2, -1) * SCALES + BIAS).softmax(-1) @ v, QKV),
    "windows": (of_windows, (*QKV, torch.randn(B, T, T))),
    "safe softmax": (lambda q, k, v, m: torch._safe_softmax((q @ k.transpose(-1, -2)).masked_fill(~m, -math.inf), -1) @ v, (*QKV, torch.rand(T, T) > 0.5)),
    "bmm": (lambda q, k, v: torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1), v), FLAT),
    "baddbmm": (baddbmm, (*FLAT, torch.randn(B * H, 1, T))),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str) -> None:
    function, args = ATTENTIONS[name]
    of_the_mask = {"chain": 1} if name == "inverted mask" else {}
    check(function, args, {"attention": 1, **of_the_mask})


def test_a_scale_of_each_key_is_not_fused() -> None:
    def forward(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        return ((q @ k.transpose(-2, -1)) * scale).softmax(-1) @ v

    args = (*QKV, torch.rand(B, H, 1, T))
    compiled = torchette.compile(Function(forward), args, backend="cpu")
    torch.testing.assert_close(compiled(*args), forward(*args), rtol=1e-4, atol=1e-5)
    assert "attention" not in engine_calls(compiled)


def test_rows_that_another_mask_zeroes_stay_zero() -> None:
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, second_mask: Tensor) -> Tensor:
        return torch.where(~second_mask.any(-1, keepdim=True), 0.0, sdpa(q, k, v, attn_mask=mask))

    second_mask = torch.zeros(T, T, dtype=torch.bool)
    check(forward, (*QKV, torch.ones(T, T, dtype=torch.bool), second_mask), {"attention": 1})


def test_mask_of_merged_batch_and_heads_is_not_fused() -> None:
    """The form of Bloom, which adds positions before it separates the heads."""

    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        turned = k.transpose(-1, -2).reshape(B * H, D, T)
        q, v = q.reshape(B * H, T, D), v.reshape(B * H, T, D)
        scores = mask.baddbmm(q, turned, beta=1.0, alpha=D**-0.5).view(B, H, T, T)
        return torch.bmm(scores.softmax(-1).view(B * H, T, T), v).view(B, H, T, D)

    compiled = torchette.compile(Function(forward), args := (*QKV, torch.randn(B * H, 1, T)), backend="cpu")
    torch.testing.assert_close(compiled(*args), forward(*args), rtol=1e-4, atol=1e-5)
    assert "attention" not in engine_calls(compiled)


# ---- queries, keys and values of one layer; gate and up; rotary positions ----


def split_heads(x: Tensor) -> Tensor:
    return x.view(2, 5, 4, 8).transpose(1, 2)


def timm(y: Tensor) -> Tensor:
    return y.reshape(2, 5, 3, 4, 8).permute(2, 0, 3, 1, 4)


SPLITS: dict[str, Callable[[Tensor], Any]] = {
    "chunk": lambda y: map(split_heads, y.chunk(3, -1)),
    "split": lambda y: map(split_heads, y.split(32, -1)),
    "slices": lambda y: map(split_heads, (y[..., :32], y[..., 32:64], y[..., 64:])),
    "unbind": lambda y: timm(y).unbind(0),
    "indices": lambda y: (timm(y)[0], timm(y)[1], timm(y)[2]),
}


@pytest.mark.parametrize("name", SPLITS)
def test_queries_keys_and_values_are_not_copied(name: str) -> None:
    def forward(m: With, x: Tensor) -> Tensor:
        y = sdpa(*SPLITS[name](m.layers[0](x)))
        return m.layers[1](y.transpose(1, 2).reshape(x.shape))

    model = With(forward, nn.Linear(32, 96), nn.Linear(32, 32))
    check(model, (torch.randn(2, 5, 32),), {"linear": 4, "attention": 1})
    left = set(torchette.compile(model.eval(), (torch.randn(2, 5, 32),), backend="cpu").program.operators())
    assert left <= {"cpu::linear.out", "cpu::attention.out", "executorch_prim::et_view.default"}


def test_queries_keys_and_values_of_windows_are_not_copied() -> None:
    """The layer reads images [windows, height, width, channels]; the heads read rows [windows, height * width]."""

    def forward(m: With, x: Tensor) -> Tensor:
        q, k, v = m.layers[0](x).reshape(2, 12, 3, 4, 8).unbind(2)
        y = sdpa(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return m.layers[1](y.transpose(1, 2).reshape(x.shape))

    model = With(forward, nn.Linear(32, 96), nn.Linear(32, 32))
    check(model, (x := torch.randn(2, 3, 4, 32),), {"linear": 4, "attention": 1})
    left = set(torchette.compile(model.eval(), (x,), backend="cpu").program.operators())
    assert left <= {"cpu::linear.out", "cpu::attention.out", "executorch_prim::et_view.default"}


def test_gate_and_up() -> None:
    def forward(m: With, x: Tensor) -> Tensor:
        gate, up = m.layers[0](x).chunk(2, -1)
        return m.layers[1](F.silu(gate) * up)

    model = With(forward, nn.Linear(6, 48), nn.Linear(24, 6)).eval()
    compiled = torchette.compile(model, (x := torch.randn(2, 5, 6),), backend="cpu")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert engine_calls(compiled)["linear"] == 3 and "aten::sigmoid.out" not in compiled.program.operators()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def test_rotary_positions() -> None:
    def forward(m: With, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (layer(x).view(2, 5, -1, 8).transpose(1, 2) for layer in m.layers[:3])
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = sdpa(q, repeat_kv(k, 2), repeat_kv(v, 2), is_causal=True)
        return m.layers[3](y.transpose(1, 2).reshape(2, 5, 32))

    model = With(forward, nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16), nn.Linear(32, 32))
    args = (torch.randn(2, 5, 32), torch.randn(1, 5, 8), torch.randn(1, 5, 8))
    check(model, args, {"linear": 4, "rotary": 2, "attention": 1})


# ---- convolutions ----


def gated(m: With, x: Tensor) -> Tensor:
    x = m.layers[2](x)
    return x * torch.sigmoid(m.layers[1](F.relu(m.layers[0](x.mean((2, 3), keepdim=True)))))


def batch_norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            tensor.uniform_(0.5, 2)
    return norm


CONVOLUTIONS: dict[str, tuple[nn.Module, dict[str, int]]] = {
    "norm and relu": (
        nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), batch_norm(8), nn.ReLU()),
        {"planar_convolution": 1},
    ),
    "add and relu": (
        With(
            lambda m, x: F.relu(m.layers[1](F.relu(m.layers[0](x))) + m.layers[2](x)),
            nn.Conv2d(4, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(4, 8, 1, 2),
        ),
        {"planar_convolution": 2, "convolution": 1},
    ),
    "depthwise": (
        nn.Sequential(nn.Conv2d(4, 24, 1), nn.ReLU6(), nn.Conv2d(24, 24, 3, 1, 1, groups=24), nn.ReLU6(), nn.Conv2d(24, 4, 1)),
        {"planar_convolution": 1, "convolution": 1, "depthwise": 1},
    ),
    "patches": (
        With(lambda m, x: m.layers[1](m.layers[0](x).flatten(2).transpose(1, 2)), nn.Conv2d(4, 8, 4, 4), nn.Linear(8, 8)),
        {"planar_convolution": 1, "linear": 1},
    ),
    "pools": (
        nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 1), nn.AvgPool2d(2)),
        {"planar_convolution": 1, "convolution": 1, "max_pool": 1, "avg_pool": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    module, expected = CONVOLUTIONS[name]
    check(module, (torch.randn(1, 4, 8, 8),), expected)


def test_squeeze_and_excitation() -> None:
    model = With(gated, nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1), nn.Conv2d(4, 8, 3)).eval()
    compiled = torchette.compile(model, (x := torch.randn(1, 4, 8, 8),), backend="cpu")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert (
        engine_calls(compiled)["convolution"] == 2 and "aten::sigmoid.out" not in compiled.program.operators()
    )


# ---- dynamic sizes and control flow ----


def test_dynamic_sizes() -> None:
    batch, tokens = torch.export.Dim("batch", min=1, max=4), torch.export.Dim("tokens", min=2, max=9)
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu").eval()
    example = (torch.randn(2, 5, 32),)
    compiled = torchette.compile(model, example, backend="cpu", dynamic_shapes=({0: batch, 1: tokens},))
    calls = engine_calls(compiled)
    assert calls["linear"] >= 4 and calls["layer_norm"] == 2
    for sizes in ((1, 2), (2, 5), (4, 9), (3, 7)):
        x = torch.randn(*sizes, 32)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_dynamic_images() -> None:
    batch = torch.export.Dim("batch", min=1, max=5)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)).eval()  # fmt: skip
    compiled = torchette.compile(
        model, (torch.randn(2, 3, 9, 9),), backend="cpu", dynamic_shapes=({0: batch},)
    )
    assert engine_calls(compiled) == {"planar_convolution": 1, "depthwise": 1, "linear": 1}
    for size in (1, 2, 5):
        x = torch.randn(size, 3, 9, 9)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        def left(x: Tensor) -> Tensor:
            return self.left(x).relu().mean((2, 3))

        def right(x: Tensor) -> Tensor:
            return self.right(x).amax((2, 3))

        return self.head(torch.cond(x.sum() > 0, left, right, (x,)))


@pytest.mark.filterwarnings("ignore::torchette.errors.DelegationWarning")
def test_control_flow() -> None:
    model = _Branches().eval().requires_grad_(False)
    compiled = torchette.compile(model, (torch.randn(1, 3, 6, 6),), backend="cpu")
    assert engine_calls(compiled)["linear"] == 1
    for sign in (1, -1):
        x = torch.rand(1, 3, 6, 6) * sign
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


class _MaskedBranches(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return sdpa(q, k, v, is_causal=True)

        return torch.cond(q.sum() > 0, masked, lambda q, k, v: sdpa(q, k, v) + 1, (q, k, v))


def test_attention_in_branches() -> None:
    model = _MaskedBranches().eval()
    compiled = torchette.compile(model, QKV, backend="cpu")
    for sign in (1, -1):
        args = (QKV[0].abs() * sign, *QKV[1:])
        torch.testing.assert_close(compiled(*args), model(*args), rtol=1e-4, atol=1e-5)
