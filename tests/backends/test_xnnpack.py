# SPDX-License-Identifier: BSD-3-Clause
"""The XNNPACK backend runs every node that it claims and computes correct results. ExecuTorch reads our payloads, and this backend
reads the payloads of ExecuTorch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from tests.backends.xnnpack_cases import kinds_of, of_the_library
from tests.models import zoo
from tests.sweep import sweep
from torchette.backends import conformance
from torchette.backends.xnnpack import XnnpackBackend, XnnpackPartitioner
from torchette.backends.xnnpack.operators import OPERATORS
from torchette.backends.xnnpack.payload import SCHEMA
from torchette.errors import DelegationWarning, InputError, TorchetteError
from torchette.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from torchette.exir.delegation.delegate import to_backend
from torchette.format import flatbuffer, pte
from torchette.runtime import Runtime


def _lower(model: nn.Module, args: tuple, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        return to_edge_transform_and_lower(
            export(model.eval(), args, **how), partitioner=XnnpackPartitioner()
        )


def damage(edge, args: tuple, times: int = 400) -> None:
    """Changes bytes of the only delegate. Loading and executing must either succeed or raise TorchetteError."""
    (module,) = (c for c in edge.exported_program().graph_module.children() if hasattr(c, "processed_bytes"))
    data, blob = edge.to_executorch().buffer, module.processed_bytes
    at = data.index(blob)
    dice = torch.Generator().manual_seed(0)
    for _ in range(times):
        changed = bytearray(data)
        for _ in range(int(torch.randint(1, 4, (), generator=dice))):
            where = at + int(torch.randint(len(blob), (), generator=dice))
            changed[where] = int(torch.randint(256, (), generator=dice))
        with contextlib.suppress(TorchetteError):
            Runtime.get().load_program(bytes(changed)).load_method("forward").execute(list(args))


def _parts(edge) -> int:
    return sum(hasattr(child, "backend_id") for child in edge.exported_program().graph_module.children())


def _run(edge, args: tuple) -> list[torch.Tensor]:
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    return [torch.as_tensor(result) for result in method.execute(list(args))]


def _check(model: nn.Module, *args: torch.Tensor, parts: int = 1) -> None:
    edge = _lower(model, args)
    assert not [item for item in edge.delegation().placements if item.backend is None], str(edge.delegation())
    assert _parts(edge) == parts
    expected = model(*args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, reference in zip(_run(edge, args), expected, strict=True):
        torch.testing.assert_close(got, reference, rtol=1e-4, atol=1e-5)


class _Of(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class _Each(nn.Module):
    """Independent layers with an input each, because one program costs less time than many."""

    def __init__(self, layers) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *inputs):
        return tuple(layer(x) for layer, x in zip(self.layers, inputs, strict=True))


X = torch.randn(2, 6, 8, 10, generator=torch.Generator().manual_seed(1))
FACTOR = torch.randn(10, 7, generator=torch.Generator().manual_seed(2))
FUNCTIONS = {
    "elementwise": lambda x: (x.abs() + 1).log().sqrt().neg().exp().rsqrt().tanh().sigmoid().floor().ceil().sin().cos(),
    "activations": lambda x: (
        nn.functional.hardswish(nn.functional.gelu(x))
        + nn.functional.silu(x)
        + nn.functional.hardsigmoid(x)
        + nn.functional.leaky_relu(x, 0.2)
        + nn.functional.elu(x)
        + nn.functional.relu6(x)
        + x.clamp(min=-0.5)
    ),
    "binary": lambda x: torch.maximum(x * x, x) - torch.minimum(x / (x * x + 1), x + 1),
    "broadcast": lambda x: x * x.mean((2, 3), keepdim=True) + x.mean(-1, keepdim=True),
    "layer norm": lambda x: nn.functional.layer_norm(x, (8, 10)),
    "softmax": lambda x: torch.softmax(x, -1),
    "matmuls": lambda x: torch.matmul(x, x.transpose(-1, -2)) @ x,
    "matmuls of matrices that broadcast": lambda x: (x @ x[:, :1].mT, x[0, 0] @ x.mT, x @ x[0, 0].t(), x[0, 0] @ x[1, 1].t()),
    "matmuls with constants": lambda x: (x @ FACTOR, x @ FACTOR.repeat(6, 1, 1), FACTOR.t() @ x.mT, x[0, 0] @ FACTOR),
    "grouped queries": lambda x: nn.functional.scaled_dot_product_attention(x, x[:, :2], x[:, :2], enable_gqa=True),
    "shapes": lambda x: torch.cat([x[:, 1:3], x[:, 3].unsqueeze(1)], 1).permute(0, 2, 3, 1).reshape(2, -1),
    "pad": lambda x: nn.functional.pad(x, (1, 2, 3, 0), value=0.5),
    "powers": lambda x: (x.abs() + 1) ** 0.5 + (x.abs() + 1) ** -0.5 + x**3 + (x.abs() + 1).reciprocal() + (x + 9) ** -1,
    "gelu by tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "sums": lambda x: (x.sum(1), x.sum((0, 2), keepdim=True), x.sum((1, 2)), x.mean((0, 1, 3)), x.mean(0)),
    "expanded": lambda x: (x[:, :1].expand(2, 6, 8, 10) * 2, x.mean((0, 1, 2)).expand(3, 10) + 1, x[:1, :1, :1].expand(4, 3, 2, 10)),
    "bilinear": lambda x: nn.functional.interpolate(x, size=(16, 15), mode="bilinear"),
    "bilinear, corners": lambda x: nn.functional.interpolate(x, size=(5, 19), mode="bilinear", align_corners=True),
    "nearest": lambda x: nn.functional.interpolate(x, scale_factor=2, mode="nearest"),
    "normalized over two dimensions, without weights": lambda x: nn.functional.layer_norm(x.reshape(12, 8, 10), (10,)),
    "rolled": lambda x: torch.roll(x, (1, -2, 16), (1, 3, 2)) + torch.roll(x, 3, 0),
    "concatenated": lambda x: (
        torch.cat([x] * 6, 1), torch.cat([x.relu(), *[x] * 10], 2).relu(), torch.cat([x]),
        torch.cat([x] * 9, 1)[:, 1:],  # starts with the sources of the first concatenation
    ),
    "other activations": lambda x: (
        nn.functional.selu(x) + nn.functional.celu(x, 0.7), nn.functional.softplus(x * 20, 2.0) + nn.functional.mish(x),
    ),
    "softmax over other dimensions": lambda x: x.softmax(1) + x.softmax(-2) + x.softmax(0),
    "split": lambda x: (torch.cat(x.split([1, 2, 3], 1)[::-1], 1), sum(x.unbind(1)), x.chunk(3, -1)[2]),
    "steps": lambda x: (x[:, :, ::2], x[:, 1::2], x[:, 1::3, :, ::5], x[..., 2:9:2], x[:, -3::2], x[..., ::4, :, ::3]),
    "averages of other windows": lambda x: (
        nn.functional.adaptive_avg_pool2d(x, (3, 16)),
        nn.functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        nn.functional.avg_pool2d(x, (3, 2), (2, 3), 1, ceil_mode=True),
        nn.functional.avg_pool2d(x, 3, 2, 1, divisor_override=5),
    ),
    "resized by other rules": lambda x: (
        nn.functional.interpolate(x, (5, 17)), nn.functional.interpolate(x, scale_factor=1.7, mode="bilinear"),
        nn.functional.interpolate(x, (5, 17), mode="bicubic"), nn.functional.interpolate(x, (5, 17), mode="nearest-exact"),
        nn.functional.interpolate(x, (5, 17), mode="bicubic", antialias=True),
        nn.functional.interpolate(x, (5, 17), mode="bilinear", antialias=True),
    ),
    "constant indices": lambda x: (x[:, [4, 5, 0]], x[..., [-1]], x[:, :, torch.tensor([1, 2, 3])], x[[1, 0, 1, 0, 1, 0, 1]]),
    "identities": lambda x: (x * torch.ones(8, 10) + torch.zeros(1), x * torch.ones(3, 1, 1, 1, 1)),
    "several results, one of them the input doubled": lambda x: (x + x, (x + x).relu(), x.reshape(2, -1) * 2),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    _check(_Of(FUNCTIONS[name]), X)


def _trained(norm: nn.Module) -> nn.Module:
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    if norm.affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm


def _slopes(channels: int) -> nn.Module:
    layer = nn.PReLU(channels)
    nn.init.normal_(layer.weight)
    return layer


class _Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.added = nn.Parameter(torch.randn(10, 7)), nn.Parameter(torch.randn(1, 7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.added, x.flatten(0, 2), self.rows)


LAYERS = {
    "convolution": lambda: nn.Conv2d(6, 8, 3, stride=2, padding=1),
    "no bias, dilation": lambda: nn.Conv2d(6, 4, (3, 2), dilation=2, bias=False),
    "groups": lambda: nn.Conv2d(6, 4, 3, groups=2),
    "depthwise": lambda: nn.Conv2d(6, 12, 3, groups=6, padding=1),
    "pointwise": lambda: nn.Conv2d(6, 4, 1),
    "transposed": lambda: nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1),
    "depthwise, transposed": lambda: nn.ConvTranspose2d(6, 18, 3, groups=6, stride=2),
    "transposed in groups": lambda: nn.ConvTranspose2d(6, 8, 3, groups=2, padding=1, bias=False),
    "added to a matmul": lambda: _Added(),
    "maximum pool": lambda: nn.MaxPool2d(3, 2, 1),
    "average pool": lambda: nn.AvgPool2d(2),
    "global average": lambda: nn.AdaptiveAvgPool2d(1),
    "maximum pool with a window over the edge": lambda: nn.MaxPool2d(3, 2, ceil_mode=True),
    "average pool that counts its padding": lambda: nn.AvgPool2d(3, 2, 1),
    "average pool that does not": lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "of sequences": lambda: nn.Sequential(
        nn.Flatten(2),
        nn.Conv1d(6, 8, 5, stride=2, padding=2),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Conv1d(8, 8, 3, groups=8, dilation=2),
        nn.SiLU(),
        nn.ConvTranspose1d(8, 4, 4, stride=2, padding=1, output_padding=1),
        nn.MaxPool1d(2),
        nn.Conv1d(4, 3, 1),
    ),
    "linear": lambda: nn.Linear(10, 7),
    "batch norm after nothing": lambda: nn.Sequential(nn.ReLU(), _trained(nn.BatchNorm2d(6)), nn.ReLU()),
    "batch norms of rows and sequences": lambda: nn.Sequential(
        nn.Flatten(2), _trained(nn.BatchNorm1d(6)), nn.Flatten(), nn.ReLU(), _trained(nn.BatchNorm1d(480))
    ),
    "batch norm without weights": lambda: nn.Sequential(
        nn.Sigmoid(), _trained(nn.BatchNorm2d(6, affine=False))
    ),
    "prelu with a slope for each channel": lambda: nn.Sequential(
        _slopes(6), nn.Conv2d(6, 4, 1), _slopes(4), nn.Flatten(), nn.Linear(320, 5), _slopes(5), nn.PReLU()
    ),
    "a small network": lambda: nn.Sequential(
        nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU6(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 5)
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    torch.manual_seed(0)
    _check(LAYERS[name]().eval(), X)


DYNAMIC = {
    "a transformer's layers": (
        lambda: nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)),
        (1, None, 10),
        (4, 32, 1, 4),
    ),
    "a batch of images": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
        ),
        (None, 3, 16, 12),
        (2, 5, 1),
    ),
    "images of any height": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Sigmoid()),
        (1, 3, None, 12),
        (16, 31, 7),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_sizes(name: str) -> None:
    torch.manual_seed(0)
    build, shape, sizes = DYNAMIC[name]
    model, dim = build().eval(), shape.index(None)

    def example(size: int) -> torch.Tensor:
        return torch.randn([size if fixed_size is None else fixed_size for fixed_size in shape])

    edge = _lower(
        model, (example(sizes[0]),), dynamic_shapes=({dim: Dim("n", min=1 if dim != 2 else 4, max=32)},)
    )
    assert _parts(edge) == 1, str(edge.delegation())
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    for size in sizes:
        x = example(size)
        torch.testing.assert_close(torch.as_tensor(method.execute([x])[0]), model(x), rtol=1e-4, atol=1e-5)


def test_dynamic_size_equal_to_a_fixed_size_in_the_example_stays_dynamic() -> None:
    scale = torch.rand(3, 4)
    model = _Of(lambda x: scale * torch.tanh(x))
    edge = _lower(model, (torch.randn(3, 3, 4),), dynamic_shapes={"args": ({0: Dim("n", max=8)},)})
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    x = torch.randn(5, 3, 4)
    torch.testing.assert_close(torch.as_tensor(method.execute([x])[0]), model(x))


def test_sequence_with_two_dynamic_dimensions_meets_a_convolution() -> None:
    """Only the convolution's result is an image."""
    conv = nn.Conv1d(4, 4, 1)
    model = _Of(lambda x, y: torch.tanh(conv(x)) * torch.sigmoid(y)).eval()
    b, n = Dim("b", max=8), Dim("n", max=8)
    x, y = torch.randn(1, 4, 5), torch.randn(2, 4, 5)
    edge = _lower(model, (x, y), dynamic_shapes={"args": ({2: n}, {0: b, 2: n})})
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    x, y = torch.randn(1, 4, 7), torch.randn(5, 4, 7)
    torch.testing.assert_close(torch.as_tensor(method.execute([x, y])[0]), model(x, y))


def test_slices_of_tensors_with_dynamic_sizes() -> None:
    def cut(x):
        y = x[:, :, 2:7] * x[..., 0:1, :]
        return torch.cat([y[..., :2], y[..., 3:]], -1) + y.select(2, 1).unsqueeze(2)[..., 1:]

    b, n = Dim("b", min=1, max=4), Dim("n", min=3, max=9)
    edge = _lower(_Of(cut), (torch.randn(2, 3, 8, 10),), dynamic_shapes={"args": (({0: b, 1: n}),)})
    left = [item for item in edge.delegation().placements if item.backend is None]
    assert [item.reasons for item in left] == [
        {"XnnpackPartitioner": ("more than one dynamic dimension",)}
    ] * len(left)
    edge = _lower(_Of(cut), (torch.randn(2, 3, 8, 10),), dynamic_shapes={"args": (({0: b}),)})
    assert _parts(edge) == 1, str(edge.delegation())
    data = edge.to_executorch().buffer
    peer = pytest.importorskip(
        "executorch.extension.pybindings.portable_lib"
    )._load_for_executorch_from_buffer(data)
    method = Runtime.get().load_program(data).load_method("forward")
    for size in (2, 4, 1, 3):
        x = torch.randn(size, 3, 8, 10)
        torch.testing.assert_close(torch.as_tensor(method.execute([x])[0]), cut(x))
        torch.testing.assert_close(peer.forward([x])[0], cut(x))
    refused = _lower(_Of(lambda x: x[:-1] + x[1:]), (torch.randn(4, 3),), dynamic_shapes={"args": ({0: n},)})
    assert "a slice of a dynamic dimension" in str(refused.delegation())


class _Prompt(nn.Module):
    """A decoder that processes all tokens of a prompt in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.model = zoo.Decoder(256).model

    def forward(self, tokens):
        return self.model(input_ids=tokens, use_cache=False).logits


def _same(method, model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(torch.as_tensor(method.execute([x])[0]), model(x), rtol=1e-4, atol=2e-5)


@pytest.mark.slow
def test_a_decoder_of_any_length() -> None:
    """Two layers with attention matrices of two dynamic sizes are one call. Only integer operators stay outside."""
    torch.manual_seed(0)
    model, n = _Prompt().eval(), Dim("n", min=2, max=64)
    edge = _lower(model, (torch.randint(0, 256, (1, 7)),), dynamic_shapes=({1: n},))
    assert _parts(edge) == 1, str(edge.delegation())
    assert not [item.op for item in edge.delegation().placements if item.backend is None and item.macs]
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    for length in (7, 2, 64, 33):
        _same(method, model, torch.randint(0, 256, (1, length)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v2", "vit_tiny"])
def test_networks_of_any_batch_are_one_call(name: str) -> None:
    model, (image,) = zoo.build(name)
    edge = _lower(model, (torch.cat([image, image]),), dynamic_shapes=({0: Dim("b", min=1, max=4)},))
    assert _parts(edge) == 1, str(edge.delegation())
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    for batch in (2, 4, 1, 3):
        _same(method, model, torch.randn(batch, *image.shape[1:]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", ["none", "mask", "numbers", "causal"])
def test_attention_with_masks_is_one_call(kind: str, dtype: torch.dtype) -> None:
    query, key, value = (torch.randn(2, 3, 5, 8, dtype=dtype) for _ in range(3))
    mask = torch.rand(2, 1, 5, 5) > 0.5
    mask[0, 0, 2] = False  # a row with all keys masked returns zeros
    if kind == "numbers":
        mask = torch.randn(2, 1, 5, 5, dtype=dtype).masked_fill(~mask, -torch.inf)
        if dtype is torch.float32:
            mask[0, 0, 1] = torch.finfo(dtype).min  # a low but finite mask does not mask a key

    def attend(query, key, value, mask):
        mask = mask if kind in ("mask", "numbers") else None
        once = nn.functional.scaled_dot_product_attention(query, key, value, mask, is_causal=kind == "causal")
        return nn.functional.scaled_dot_product_attention(once, key, value, mask)

    edge = _lower(_Of(attend), (query, key, value, mask))
    assert _parts(edge) == 1
    rtol, atol = (1e-4, 1e-5) if dtype is torch.float32 else (1e-2, 1e-2)
    for got in _run(edge, (query, key, value, mask)):
        torch.testing.assert_close(got, attend(query, key, value, mask), rtol=rtol, atol=atol)


@pytest.mark.parametrize("kind", ["causal", "numbers"])
def test_attention_over_any_length_is_one_call(kind: str) -> None:
    def attend(x, mask):
        mask = mask if kind == "numbers" else None
        x = nn.functional.scaled_dot_product_attention(x, x, x, mask, is_causal=mask is None)
        return nn.functional.scaled_dot_product_attention(x, x * 2, x, mask, is_causal=mask is None)

    def example(length: int) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.randn(length, length).masked_fill(torch.rand(length, length) > 0.5, -torch.inf)
        mask[:, 0] = 0
        mask[1] = -torch.inf
        return torch.randn(1, 3, length, 8), mask

    n = Dim("n", min=2, max=32)
    edge = _lower(_Of(attend), example(7), dynamic_shapes={"args": ({2: n}, {0: n, 1: n})})
    assert _parts(edge) == 1, str(edge.delegation())
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    for length in (7, 2, 32):
        x, mask = example(length)
        got = torch.as_tensor(method.execute([x, mask])[0])
        torch.testing.assert_close(got, attend(x, mask), rtol=1e-4, atol=1e-5)


def test_empty_part_of_a_split() -> None:
    def split(x: torch.Tensor) -> torch.Tensor:
        empty, rest = x.split([0, 8], -1)
        return torch.cat([empty, rest * 2 + 1], -1) + 1

    x = torch.randn(2, 8)
    torch.testing.assert_close(_run(_lower(_Of(split), (x,)), (x,))[0], split(x))


@pytest.mark.parametrize("number", [2.5, -torch.inf, torch.inf, torch.finfo(torch.float32).min])
def test_where_with_an_external_condition_does_not_split_the_graph(number: float) -> None:
    def choose(x, mask):
        x = torch.where(mask, x * 2, number).clamp(-5, 5)
        return (x * 2).masked_fill(mask[:, :1], number).softmax(-1) if number < 3 else x

    x, mask = torch.randn(2, 6, 8, 10), torch.rand(8, 10) > 0.5
    mask[:, 0] = False
    edge = _lower(_Of(choose), (x, mask))
    assert _parts(edge) == 1, str(edge.delegation())
    torch.testing.assert_close(_run(edge, (x, mask))[0], choose(x, mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limits", [(0.1, None), (0.1, 0.4), (None, -0.1), (-0.5, 0.25)])
def test_clamp_after_a_convolution(limits: tuple) -> None:
    convolution = nn.Conv2d(3, 3, 3).requires_grad_(False)
    _check(_Of(lambda x: convolution(x).clamp(*limits)), torch.randn(2, 3, 5, 5))


def test_mutated_constants_keep_their_changes() -> None:
    class Zeroed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 9)

        def forward(self, x):
            bias = self.linear.bias.clone()
            bias[3:6].zero_()
            return nn.functional.linear(x, self.linear.weight, bias)

    _check(Zeroed().requires_grad_(False), torch.randn(2, 6))


# The number of delegate calls. A decoder writes its caches between them.
CALLS = {"mobilenet_v3_small": 1, "efficientnet_b0": 1, "vit_tiny": 1, "minilm": 1, "llama": 3}


@pytest.mark.parametrize("name", sweep(CALLS, "mobilenet_v3_small", "llama"))
def test_networks_are_few_calls(name: str) -> None:
    model, args = zoo.build(name)
    edge = _lower(model, args)
    assert _parts(edge) == CALLS[name], str(edge.delegation())
    assert not [item.op for item in edge.delegation().placements if item.backend is None and item.macs]
    (expected,) = torch.utils._pytree.tree_leaves(model(*args))
    torch.testing.assert_close(_run(edge, args)[0], expected, rtol=1e-4, atol=1e-5)


# Small models of timm with operators that XNNPACK lacks as nodes: batch norms that do not fold into a convolution, long
# concatenations, batch norms of sums, rolled images and table lookups.
WHOLE = {
    "densenet121": ({"growth_rate": 8, "block_config": (2, 8, 3)}, 64),
    "repvgg_a0": ({}, 64),
    "swin_tiny_patch4_window7_224": (
        {"img_size": 112, "window_size": 7, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)},
        112,
    ),
}


@pytest.mark.parametrize("name", sweep(WHOLE, "repvgg_a0"))
def test_networks_are_one_call(name: str) -> None:
    zoo.declare_torchvision_operators()
    timm = pytest.importorskip("timm")
    options, size = WHOLE[name]
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=10, **options).eval()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.1)
    _check(model.requires_grad_(False), torch.randn(1, 3, size, size))


_CLAMPED = {
    "a convolution": lambda x: nn.functional.relu6(nn.functional.conv2d(x, torch.ones(4, 4, 1, 1))),
    "a linear layer": lambda x: nn.functional.linear(x, torch.eye(5) * 9, -torch.ones(5)).clamp(-1, 2),
    "a product of matrices with a bias": lambda x: torch.addmm(x[0, 0, 0], x[0, 0], x[0, 1]).relu(),
    "a sum": lambda x: (x + x).relu(),
    "a sum with zero": lambda x: (x + torch.zeros(4, 1, 1)).relu() * x,
}


@pytest.mark.parametrize("name", _CLAMPED)
def test_node_before_a_clamp_applies_its_limits(name: str) -> None:
    edge = _lower(_Of(_CLAMPED[name]), (x := torch.randn(1, 4, 5, 5),))
    assert "XNNClamp" not in kinds_of(edge)
    torch.testing.assert_close(_run(edge, (x,))[0], _CLAMPED[name](x), rtol=1e-5, atol=1e-5)


def test_squeeze_and_excitation_becomes_few_nodes() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.squeeze, self.excite = (nn.Conv2d(*c, 1) for c in ((3, 8), (8, 4), (4, 8)))

        def forward(self, x):
            x = self.stem(x)
            scale = nn.functional.hardsigmoid(self.excite(self.squeeze(x.mean((2, 3), keepdim=True)).relu()))
            return nn.functional.hardswish(x * scale, inplace=True)

    model, x = Gate().eval(), torch.randn(1, 3, 6, 6)
    edge = _lower(model, (x,))
    torch.testing.assert_close(_run(edge, (x,))[0], model(x), rtol=1e-4, atol=1e-5)
    kinds = kinds_of(edge)
    assert kinds.count("XNNHardswish") == 1
    assert not {"XNNStaticReshape", "XNNDiv"} & set(kinds)
    # two transposes, three convolutions, a mean, hard sigmoid (two nodes), a multiplication
    assert len(kinds) == 10


def test_payloads_are_compatible_with_executorch() -> None:
    peer = pytest.importorskip("executorch.extension.pybindings.portable_lib")
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner as Theirs
    from executorch.exir import to_edge_transform_and_lower as their_lowering

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(392, 4), nn.Softmax(-1),
    ).eval()  # fmt: skip
    args = (torch.randn(1, 3, 16, 16),)
    ours = _lower(model, args).to_executorch().buffer
    torch.testing.assert_close(peer._load_for_executorch_from_buffer(ours).forward(args)[0], model(*args))
    theirs = their_lowering(export(model, args), partitioner=[Theirs()]).to_executorch().buffer
    method = Runtime.get().load_program(theirs).load_method("forward")
    torch.testing.assert_close(torch.as_tensor(method.execute(list(args))[0]), model(*args))


_IN_THE_PEER = """
import sys
import torch
from executorch.extension.pybindings.portable_lib import _load_for_executorch

x, expected = torch.load(sys.argv[2])
torch.testing.assert_close(_load_for_executorch(sys.argv[1]).forward((x,))[0], expected, rtol=1e-4, atol=1e-5)
"""


class _PacksAndReads(nn.Module):
    """A layer packs its bias and weights, and other nodes read them at run time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.other = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x) + self.first.bias) * self.second.weight
        return self.other(y) + self.second.bias


@pytest.mark.slow
def test_executorch_runs_a_memory_mapped_file(tmp_path: Path) -> None:
    """ExecuTorch unmaps constants that it has packed."""
    pytest.importorskip("executorch.extension.pybindings.portable_lib")
    model, x = _PacksAndReads().eval(), torch.randn(64, 64)
    file, values = tmp_path / "model.pte", tmp_path / "values.pt"
    file.write_bytes(_lower(model, (x,)).to_executorch().buffer)
    _check(model, x)
    torch.save((x, model(x).detach()), values)
    command = [sys.executable, "-W", "ignore", "-c", _IN_THE_PEER, str(file), str(values)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_executorch_runs_each_function_and_layer() -> None:
    peer = pytest.importorskip("executorch.extension.pybindings.portable_lib")
    torch.manual_seed(0)
    models = {name: _Of(function) for name, function in FUNCTIONS.items()}
    models |= {name: build().eval() for name, build in LAYERS.items()}
    for name, model in models.items():
        expected = model(X)
        data = _lower(model, (X,)).to_executorch().buffer  # keep a reference: the peer holds none
        got = peer._load_for_executorch_from_buffer(data).forward((X,))
        expected = expected if isinstance(expected, tuple) else (expected,)
        for one, reference in zip(got, expected, strict=True):
            torch.testing.assert_close(
                one, reference, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
            )


class _Computed(nn.Module):
    """Layers with computed weights: scaled, passed as an input, concatenated; with computed and stored biases."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 10))
        self.bias = nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = nn.functional.linear(x, self.weight * scale, self.bias)
        y = nn.functional.linear(y, weight, self.bias * scale).relu()
        y = torch.addmm(self.bias * 2, y, weight.exp())
        return nn.functional.linear(y, torch.cat([weight, weight + 1]))


def test_computed_weights_here_and_in_executorch() -> None:
    torch.manual_seed(0)
    model, args = _Computed(), (torch.randn(7, 10), torch.randn(1), torch.randn(5, 5))
    _check(model, *args)
    peer = pytest.importorskip("executorch.extension.pybindings.portable_lib")
    data = _lower(model, args).to_executorch().buffer
    torch.testing.assert_close(peer._load_for_executorch_from_buffer(data).forward(args)[0], model(*args))


def test_unsupported_computed_weights_have_a_reason() -> None:
    linear = nn.functional.linear
    stored, rows = torch.randn(4, 6), Dim("rows", min=2, max=8)
    cases = {
        "but not in float32": (
            _Of(lambda x, w: linear(x, w)),
            (torch.randn(2, 6).half(), torch.randn(4, 6).half()),
            None,
        ),
        "a dynamic size": (
            _Of(lambda x, w: linear(x, w)),
            (torch.randn(2, 6), stored),
            ({}, {0: rows}),
        ),
        "the bias is computed": (
            _Of(lambda x, b: linear(x, stored, b)),
            (torch.randn(2, 6), torch.randn(4)),
            None,
        ),
    }
    for reason, (model, args, sizes) in cases.items():
        report = _lower(model, args, dynamic_shapes=sizes and (sizes,)).delegation()
        (why,) = (item.reasons["XnnpackPartitioner"] for item in report.placements if "linear" in item.op)
        assert reason in str(why)


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x).relu()) * self.first.weight
        return torch.addmm(self.last.weight[:, 0], self.last(y), self.last.weight[:, :3])


def test_weights_as_inputs_here_and_in_executorch() -> None:
    torch.manual_seed(0)
    model, args = _Tied().eval(), (torch.randn(6, 6),)
    partitioner = XnnpackPartitioner(force_non_static_weights_for_f32_linear=True)
    edge = to_edge_transform_and_lower(export(model, args), partitioner=partitioner)
    (call,) = (
        n
        for n in edge.exported_program().graph.nodes
        if n.target is torch.ops.higher_order.executorch_call_delegate
    )
    assert len(call.all_input_nodes) - 1 == 7  # x, three weights (two layers share one), three biases
    torch.testing.assert_close(_run(edge, args)[0], model(*args))
    peer = pytest.importorskip("executorch.extension.pybindings.portable_lib")
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner as Theirs
    from executorch.exir import to_edge_transform_and_lower as their_lowering

    ours = edge.to_executorch().buffer
    torch.testing.assert_close(peer._load_for_executorch_from_buffer(ours).forward(args)[0], model(*args))
    simple = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).eval()
    theirs = their_lowering(
        export(simple, args), partitioner=[Theirs(force_non_static_weights_for_f32_linear=True)]
    ).to_executorch()
    method = Runtime.get().load_program(theirs.buffer).load_method("forward")
    torch.testing.assert_close(torch.as_tensor(method.execute(list(args))[0]), simple(*args))


def test_bfloat16_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="enable_bf16"):
        XnnpackPartitioner(enable_bf16=True)


HALVES = {
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 4)
    ),
    "a transformer's": lambda: nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.LayerNorm(16), nn.Softmax(-1)),
}  # fmt: skip


@pytest.mark.parametrize("name", HALVES)
def test_half_precision_here_and_in_executorch(name: str) -> None:
    torch.manual_seed(0)
    model, args = HALVES[name]().eval().half(), (X.half(),)
    edge = _lower(model, args)
    assert _parts(edge) == 1 and not [item for item in edge.delegation().placements if item.backend is None]
    (got,) = _run(edge, args)
    assert got.dtype is torch.float16
    torch.testing.assert_close(got, model(*args), rtol=2e-2, atol=2e-3)
    peer = pytest.importorskip("executorch.extension.pybindings.portable_lib")
    buffer = edge.to_executorch().buffer
    theirs = peer._load_for_executorch_from_buffer(buffer).forward(args)[0]
    torch.testing.assert_close(theirs, got, rtol=2e-2, atol=2e-3)


def test_half_precision_payload_of_executorch() -> None:
    peer = pytest.importorskip("executorch.extension.pybindings.portable_lib")
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner as Theirs
    from executorch.exir import to_edge_transform_and_lower as their_lowering

    torch.manual_seed(0)
    model, args = nn.Sequential(nn.Linear(10, 16), nn.Sigmoid(), nn.Linear(16, 3)).eval().half(), (X.half(),)
    data = bytes(their_lowering(export(model, args), partitioner=[Theirs()]).to_executorch().buffer)
    expected = peer._load_for_executorch_from_buffer(data).forward(args)[0]
    method = Runtime.get().load_program(data).load_method("forward")
    torch.testing.assert_close(torch.as_tensor(method.execute(list(args))[0]), expected, rtol=2e-3, atol=2e-3)


@of_the_library
def test_options_of_the_library() -> None:
    registry, name = Runtime.get().backend_registry, "XnnpackBackend"
    model = nn.Sequential(nn.Conv2d(6, 8, 3), nn.ReLU()).eval()
    buffer = _lower(model, (X,)).to_executorch().buffer
    before = {key: registry.get_option(name, key) for key in ("num_threads", "library")}
    assert before == {"num_threads": 1, "library": True}
    try:
        for threads, library in ((1, True), (os.cpu_count() or 1, True), (1, False)):
            registry.set_option(name, num_threads=threads, library=library)
            assert registry.get_option(name, "num_threads") == threads
            method = Runtime.get().load_program(buffer).load_method("forward")
            runs_on = registry.get_option(name, "last_payload")
            assert runs_on == ("XNNPACK's library" if library else "Torchette's kernels: the library is off")
            for _ in range(2):
                got = torch.as_tensor(method.execute([X])[0])
                torch.testing.assert_close(got, model(X), rtol=1e-4, atol=1e-5)
        for option, value in (("num_threads", 100_000), ("num_threads", 0), ("speed", 1), ("library", 1)):
            with pytest.raises(InputError, match=option):
                registry.set_option(name, **{option: value})
    finally:
        registry.set_option(name, **before)


@of_the_library
@pytest.mark.parametrize(
    ("module", "shape", "reason"),
    [
        (nn.MaxPool2d(2), (1, 3, 8, 8), "node 1 is XNNMaxPooling2d"),
        (nn.Linear(64, 8), (2, 64), "node 0 is XNNFullyConnected"),
        (nn.Linear(64, 64).half(), (2, 64), "value 0 has type 2"),
    ],
)
def test_kernels_run_payloads_that_the_library_computes_differently(
    module: nn.Module, shape: tuple[int, ...], reason: str
) -> None:
    x = torch.randn(shape, dtype=next(iter(module.state_dict().values()), torch.zeros(())).dtype)
    x[0, 0] = torch.nan
    method = Runtime.get().load_program(_lower(module, (x,)).to_executorch().buffer).load_method("forward")
    runs_on = Runtime.get().backend_registry.get_option("XnnpackBackend", "last_payload")
    assert runs_on == f"Torchette's kernels: {reason}"
    got = torch.as_tensor(method.execute([x])[0])
    torch.testing.assert_close(got, module(x), rtol=2e-3, atol=2e-3, equal_nan=True)


SHARED = {
    "a linear layer": (lambda: nn.Linear(64, 64), (3, 64)),
    "a narrow one": (lambda: nn.Linear(64, 3), (3, 64)),
    "a convolution": (lambda: nn.Conv2d(16, 48, 3), (1, 16, 8, 8)),
    "one of each channel": (lambda: nn.Conv2d(16, 16, 3, groups=16), (1, 16, 8, 8)),
}


@pytest.mark.parametrize("name", SHARED)
def test_methods_share_weights(name: str) -> None:
    build, shape = SHARED[name]
    layer, x = build().eval(), torch.randn(shape)
    one, two = nn.Sequential(layer, nn.ReLU()).eval(), nn.Sequential(layer, nn.Sigmoid()).eval()
    programs = {"one": export(one, (x,)), "two": export(two, (x,))}
    data = to_edge_transform_and_lower(programs, partitioner=XnnpackPartitioner()).to_executorch().buffer
    program = Runtime.get().load_program(data)
    methods = {name: program.load_method(name) for name in ("one", "two", "one")}
    for name, model in (("one", one), ("two", two), ("one", one)):
        torch.testing.assert_close(
            torch.as_tensor(methods[name].execute([x])[0]), model(x), rtol=1e-4, atol=1e-5
        )


_FORKED = """
import os, sys
import numpy as np
from torchette.runtime import Runtime

programs = [Runtime.get().load_program(sys.argv[1]) for _ in range(8)]
methods = [program.load_method("forward", threads=2) for program in programs]
x = np.ones((2, 2048), np.float32)
expected = np.array(methods[0].execute([x])[0])
child = os.fork()
if not child and os.cpu_count() > 1:
    try:
        methods[0].execute([x])
        raise SystemExit("the threads of the parent do not run here")
    except RuntimeError as error:
        assert "XNNPACK's threads exist only there" in str(error), error
    method = programs[0].load_method("forward", threads=2)
    assert np.array_equal(method.execute([x])[0], expected)
del methods, programs
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@of_the_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_does_not_wait_for_threads_of_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "large.pte"
    path.write_bytes(_lower(nn.Linear(2048, 2048), (torch.ones(2, 2048),)).to_executorch().buffer)
    command = [sys.executable, "-W", "ignore", "-c", _FORKED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_weights_of_layers_with_one_row_are_last_and_adjacent() -> None:
    torch.manual_seed(0)
    gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(160, 170, 1), nn.Conv2d(170, 180, 1))
    net = nn.Sequential(nn.Conv2d(160, 160, 3), gate, nn.Conv2d(180, 180, 3, padding=1), nn.Flatten())
    program = pte.read(_lower(net, (torch.randn(1, 160, 9, 9),)).to_executorch().buffer).program
    stored = [program.segments[item.segment_index] for item in program.named_data]
    large = [segment for segment in stored if segment.size > 1 << 16]
    assert large == sorted(large, key=lambda segment: segment.offset)
    assert [segment.size for segment in large] == [
        160 * 160 * 9 * 4,
        180 * 180 * 9 * 4,
        160 * 170 * 4,
        170 * 180 * 4,
    ]


@pytest.mark.parametrize("order", [("one", "many", "also"), ("many", "one", "also"), ("one", "also", "many")])
def test_methods_share_large_weights_of_one_or_many_rows(order: tuple[str, ...]) -> None:
    layer = nn.Linear(900, 1000).eval()
    models = {"one": layer, "many": nn.Sequential(layer, nn.ReLU()), "also": nn.Sequential(layer, nn.Tanh())}
    inputs = {"one": torch.randn(1, 900), "many": torch.randn(9, 900), "also": torch.randn(1, 900)}
    programs = {name: export(model.eval(), (inputs[name],)) for name, model in models.items()}
    data = to_edge_transform_and_lower(programs, partitioner=XnnpackPartitioner()).to_executorch().buffer
    program = Runtime.get().load_program(data)
    methods = {name: program.load_method(name) for name in order}
    del methods[order[0]]  # the other methods still use its weights
    methods |= {order[0]: program.load_method(order[0])}
    for name in order:
        torch.testing.assert_close(
            torch.as_tensor(methods[name].execute([inputs[name]])[0]),
            models[name](inputs[name]),
            rtol=1e-4,
            atol=1e-5,
        )


@pytest.mark.parametrize("outputs", [1, 7, 8, 9, 16, 17, 23, 24, 25, 31, 40, 48, 56, 63])
def test_layers_with_partial_tiles_read_only_their_weights(outputs: int) -> None:
    torch.manual_seed(outputs)
    layers: list[nn.Module] = []
    inputs = []
    for rows in (1, 2, 6, 7, 8, 9, 15, 16):
        layers.append(nn.Sequential(nn.Conv2d(5, outputs, 1), nn.ReLU6()))
        layers.append(nn.Sequential(nn.Linear(11, outputs), nn.Linear(outputs, 33)))
        inputs += [torch.randn(1, 5, 1, rows), torch.randn(rows, 11)]
    for stride in (1, 2):
        layers.append(nn.Sequential(nn.Conv2d(3, outputs, 3, stride, padding=1), nn.Hardtanh(-0.5, 0.5)))
        inputs.append(torch.randn(2, 3, 9, 11))
    layers.append(nn.Conv2d(6, 2 * outputs, 3, groups=2))
    _check(_Each(layers), *inputs, torch.randn(1, 6, 7, 8))


@pytest.mark.parametrize("shape", [(1, 1), (1, 15), (4, 4), (3, 11), (9, 33), (64, 65)])
def test_images_of_every_size(shape: tuple[int, int]) -> None:
    for channels in (2, 3, 4):
        _check(nn.Conv2d(channels, 4, 1), torch.randn(2, channels, *shape))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(64, 96, 3, groups=2),
        nn.Conv1d(64, 128, 5),
        nn.ConvTranspose2d(64, 96, 3, stride=2),
        nn.Conv2d(2048, 2048, (3, 5), groups=2048),
        nn.Conv2d(128, 96, 1),
        nn.Linear(128, 96),
    ],
    ids=lambda layer: f"{type(layer).__name__}{getattr(layer, 'kernel_size', '')}",
)
def test_a_portable_plan_reads_the_weights_of_the_delegate(layer: nn.Module) -> None:
    torch.manual_seed(0)
    shape = (
        (2, 7, 128)
        if isinstance(layer, nn.Linear)
        else (1, layer.in_channels, *[6] * (layer.weight.dim() - 2))
    )
    model, x = nn.Sequential(layer, nn.ReLU()).eval(), torch.randn(shape)
    edge = _lower(model, (x,))
    plain, both = (
        edge.to_executorch(ExecutorchBackendConfig(portable_fallback=portable)).buffer
        for portable in (False, True)
    )
    assert len(both) - len(plain) < 4096 < layer.weight.nbytes / 8
    file = pte.read(both)
    assert {plan.name for plan in file.program.execution_plan} == {"forward", "forward" + pte.PORTABLE}
    absent = Runtime.get().load_program(both.replace(b"XnnpackBackend\0", b"?nnpackBackend\0"))
    with pytest.warns(RuntimeWarning, match="portable"):
        method = absent.load_method("forward")
    torch.testing.assert_close(torch.as_tensor(method.execute([x])[0]), model(x), rtol=1e-4, atol=1e-5)
    here = Runtime.get().load_program(both).load_method("forward")
    torch.testing.assert_close(torch.as_tensor(here.execute([x])[0]), model(x), rtol=1e-4, atol=1e-5)


def test_damaged_payloads_are_errors() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    ).eval()
    args = (torch.randn(1, 2, 8, 8),)
    damage(_lower(model, args), args)


def test_payloads_of_another_version_are_refused() -> None:
    edge = _lower(nn.Sequential(nn.Linear(4, 4)), (torch.randn(1, 4),))
    data = edge.to_executorch().buffer
    for mark, wrong_mark in ((b"XN01", b"XN99"), (b"XN00", b"XN99"), (b"XH00", b"XH99")):
        if mark in data:
            with pytest.raises(TorchetteError, match=r"version|mark|XNNPACK"):
                Runtime.get().load_program(data.replace(mark, wrong_mark)).load_method("forward")


def test_loaded_programs_have_independent_weights() -> None:
    x = torch.randn(3, 64)
    models = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval() for _ in range(2)]
    files = [_lower(model, (x,)).to_executorch().buffer for model in models]
    loaded = [Runtime.get().load_program(files[i]).load_method("forward") for i in (0, 1, 0, 1)]
    for _ in range(2):
        for i, method in zip((0, 1, 0, 1), loaded, strict=True):
            got = torch.as_tensor(method.execute([x])[0])
            torch.testing.assert_close(got, models[i](x), rtol=1e-4, atol=1e-5)
    del loaded[2], loaded[0]  # the other methods keep their weights
    for method in loaded:
        got = torch.as_tensor(method.execute([x])[0])
        torch.testing.assert_close(got, models[1](x), rtol=1e-4, atol=1e-5)


@of_the_library
def test_threads_execute_methods_concurrently() -> None:
    conformance.threads(XnnpackPartitioner)


def test_window_larger_than_its_image_is_refused() -> None:
    """XNNPACK would read outside of the image, so the sizes are checked before it runs."""
    args = (torch.randn(1, 2, 8, 8),)
    edge = _lower(nn.Conv2d(2, 4, 3), args)
    (part,) = (c for c in edge.exported_program().graph_module.children() if hasattr(c, "processed_bytes"))
    blob = bytes(part.processed_bytes)
    at, size = (int.from_bytes(blob[i : i + 4], "little") for i in (10, 14))
    graph = flatbuffer.decode(SCHEMA, blob[at : at + size])
    (node,) = [n.xnode_union for n in graph.xnodes if type(n.xnode_union).__name__ == "XNNConv2d"]
    node.dilation_height = 100
    changed = bytes(flatbuffer.encode(SCHEMA, graph))
    assert len(changed) == size
    data = edge.to_executorch().buffer.replace(blob, blob[:at] + changed + blob[at + size :])
    with pytest.raises(TorchetteError, match=r"values of these sizes|a window of 201 exceeds"):
        Runtime.get().load_program(data).load_method("forward").execute(list(args))


def test_claimed_nodes_lower_and_other_nodes_have_a_reason() -> None:
    model = _Of(lambda x: torch.cumsum(nn.functional.gelu(x, approximate="tanh"), 0) + x.double().float())
    report = _lower(model, (torch.randn(3, 4),)).delegation()
    reasons = {item.op: item.reasons for item in report.placements if item.backend is None}
    assert reasons["aten.cumsum.default"] == {"XnnpackPartitioner": ("XNNPACK has no such operator",)}
    assert reasons["aten._to_copy.default"] == {"XnnpackPartitioner": ("dtype float64",)}
    assert len(OPERATORS) > 40


def test_unsupported_program_is_refused() -> None:
    program = _lower(_Of(lambda x: torch.cumsum(x, 0)), (torch.randn(3),)).exported_program()
    with pytest.raises(TorchetteError, match=r"aten\.cumsum\.default: XNNPACK has no such operator"):
        to_backend(XnnpackBackend.__name__, program, [])


@of_the_library
def test_tracer_receives_the_time_of_each_operator() -> None:
    """An event has XNNPACK's name of the operator and the debug handle of its node. A fused clamp has no event, and its layer's handle."""
    model = nn.Sequential(
        nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.ReLU(), nn.Sigmoid(), nn.Linear(64, 64)
    )
    args = (torch.randn(32, 64),)
    edge = _lower(model, args)
    (module,) = (c for c in edge.exported_program().graph_module.children() if hasattr(c, "processed_bytes"))
    first, *handles = sorted(module.meta["debug_handle_map"])
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward", tracing=True)
    for _ in range(2):
        (got,) = method.execute(args)
        torch.testing.assert_close(torch.as_tensor(got), model(*args), rtol=1e-4, atol=1e-5)
    events = method.take_events()
    for block in (1, 2):
        _, call, *inner_events = [event for event in events if event.block == block]
        assert call.name == "DELEGATE_CALL"
        linear = ["Fully Connected" in event.name for event in inner_events]
        assert linear == [False, True, False, True, False, True]
        assert [event.part for event in inner_events] == [first, *handles]
        assert all(event.in_delegate for event in inner_events) and inner_events[-1].end <= call.end


@of_the_library
def test_operator_for_limits_has_the_handle_of_its_node() -> None:
    edge = _lower(_Of(lambda x, y: torch.relu(x + y) * y), args := (torch.randn(8, 8), torch.randn(8, 8)))
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward", tracing=True)
    method.execute(args)
    inner_events = [event for event in method.take_events() if event.in_delegate]
    assert [event.name.split()[0] for event in inner_events] == ["Binary", "Unary", "Binary"]
    assert (
        all(event.part is not None for event in inner_events) and inner_events[0].part != inner_events[2].part
    )


_FORK = """
import os, sys, threading, time
import numpy as np
from torchette.errors import ExecutionError, RuntimeLoadError
from torchette.runtime import Runtime

path, threads, rounds = sys.argv[1], *map(int, sys.argv[2:])
registry = Runtime.get().backend_registry
registry.set_option("XnnpackBackend", num_threads=threads)
x = np.ones((256, 256), np.float32)
program = Runtime.get().load_program(path)
busy, idle = (program.load_method("forward") for _ in range(2))
idle.execute([x])
running = True

def run():
    while running:
        busy.execute([x])

def load():
    while running:
        Runtime.get().load_program(path).load_method("forward")

workers = [threading.Thread(target=run), threading.Thread(target=load)]
for worker in workers:
    worker.start()
outcomes = []
for i in range(rounds):
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        try:
            (idle if i % 2 else Runtime.get().load_program(path).load_method("forward")).execute([x])
            del idle
        except (ExecutionError, RuntimeLoadError) as error:
            os._exit(3 if "forked" in str(error) else 4)
        os._exit(0)
    end = time.time() + 20
    while (status := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.time() > end:
            os.kill(child, 9)
        time.sleep(0.005)
    outcomes.append(os.waitstatus_to_exitcode(status[1]))
running = False
for worker in workers:
    worker.join()
print(*outcomes)
"""


@of_the_library
@pytest.mark.safety
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_process_does_not_wait_for_methods_of_its_parent(threads: int, tmp_path: Path) -> None:
    """One thread of the parent executes a method, another thread loads methods. The child loads a method, or executes another
    method of the parent, which requires the parent's threads if it uses more than one."""
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    path = tmp_path / "model.pte"
    _lower(model, (torch.ones(256, 256),)).to_executorch().save(str(path))
    command = [sys.executable, "-W", "ignore", "-c", _FORK, path, str(threads), "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = [int(one) for one in done.stdout.split()]
    assert len(outcomes) == 20 and set(outcomes[::2]) == {0}
    assert set(outcomes[1::2]) == ({3} if threads == 2 else {0})
