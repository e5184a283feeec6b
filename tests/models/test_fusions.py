# SPDX-License-Identifier: BSD-3-Clause
# All optimizations together: the number of remaining calls of two reference models, with and without each optimization.
# A changed count means that a pattern is no longer recognized.

from __future__ import annotations

import warnings
from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import torchette
from tests.sweep import sweep
from torchette.exir import EdgeCompileConfig
from torchette.exir.pipeline import optional_passes


def conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(outputs)
    with torch.no_grad():
        norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return [layer, norm]


class Inverted(nn.Module):
    """An inverted residual block: expand, depthwise convolution, project."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = inputs * 4
        self.residual = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            *conv(inputs, wide, 1),
            nn.ReLU6(),
            *conv(wide, wide, 3, stride, wide),
            nn.ReLU6(),
            *conv(wide, outputs, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        return x + y if self.residual else y


class Mv2Tiny(nn.Module):
    """A stem, two inverted residual blocks, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*conv(3, 8, 3, 2), nn.ReLU6(), Inverted(8, 8, 1), Inverted(8, 16, 2))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class Block(nn.Module):
    """Attention and two linear layers, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.RMSNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        query, key, value = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x.shape)
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def tiny_tx() -> nn.Module:
    return nn.Sequential(Block(32, 4), Block(32, 4))


MODELS = {"mv2_tiny": (Mv2Tiny, (1, 3, 32, 32)), "tiny_tx": (tiny_tx, (1, 6, 32))}


def calls(name: str, backend: str, *disabled: str) -> Counter[str]:
    """Returns the calls of a compiled model and checks its results against eager."""
    torch.manual_seed(0)
    build, shape = MODELS[name]
    module, x = build().eval(), torch.randn(shape)  # type: ignore[operator]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # calls that now run on portable kernels
        edge = EdgeCompileConfig(disable_passes=disabled)
        model = torchette.compile(module, (x,), backend=backend, edge=edge)
        torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-4)
    program = model.program.exported_program()
    called = [
        node for node in program.graph.nodes if hasattr(node.target, "_schema") and "alias" not in node.meta
    ]
    return Counter(node.target._schema.name.removeprefix("aten::") for node in called)


GOLDEN: dict[tuple[str, str], dict[str, int]] = {
    ("mv2_tiny", "portable"): {"convolution": 7, "hardtanh": 5, "add": 1, "mean": 1, "linear": 1},
    ("mv2_tiny", "cpu"): {"cpu::planar_convolution": 1, "cpu::convolution": 4, "cpu::depthwise": 2, "mean": 1, "cpu::linear": 1},
    ("tiny_tx", "portable"): {
        "native_layer_norm": 2, "linear": 8, "split_with_sizes_copy": 2, "permute_copy": 10, "mul": 6, "bmm": 4,
        "_softmax": 2, "add": 6, "pow": 2, "mean": 2, "rsqrt": 2, "gelu": 2,
    },
    ("tiny_tx", "cpu"): {"cpu::layer_norm": 2, "cpu::linear": 12, "cpu::attention": 2, "cpu::rms_norm": 2},
}  # fmt: skip


@pytest.mark.parametrize("name, backend", GOLDEN)
def test_remaining_calls(name: str, backend: str) -> None:
    assert calls(name, backend) == GOLDEN[name, backend]


CASES = [(name, without) for name in MODELS for without in sorted(optional_passes())]


@pytest.mark.parametrize(
    "name, without",
    sweep(CASES, ("mv2_tiny", "fuse_epilogues"), ("tiny_tx", "place_attention"), ("tiny_tx", "fuse_linear")),
)
def test_results_without_an_optimization(name: str, without: str) -> None:
    assert calls(name, "cpu", without)


def test_weight_norm_is_folded_to_a_plain_convolution() -> None:
    layer = parametrizations.weight_norm(nn.Conv1d(4, 8, 3)).eval()
    x = torch.randn(1, 4, 9)
    for backend in ("portable", "cpu"):
        model = torchette.compile(layer, (x,), backend=backend)
        plain = torchette.compile(nn.Conv1d(4, 8, 3).eval(), (x,), backend=backend)
        assert model.program.operators() == plain.program.operators()
        torch.testing.assert_close(model(x), layer(x), rtol=1e-4, atol=1e-5)
