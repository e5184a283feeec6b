# SPDX-License-Identifier: BSD-3-Clause
# Results of the engine reuse the memory of operands that are no longer read, and the computed values stay correct.

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchette
from torchette.exir import ops


def check(module: nn.Module, *args: torch.Tensor) -> torchette.Model:
    """Compiles for the engine and compares the results with eager."""
    model = torchette.compile(module, args, backend="cpu")
    torch.testing.assert_close(torch.as_tensor(model(*args)), module(*args), rtol=1e-4, atol=1e-5)
    return model


class Residual(nn.Module):
    """Three layers with a residual."""

    def __init__(self, layer: nn.Module, between: nn.Module) -> None:
        super().__init__()
        self.first, self.layers = layer, nn.ModuleList([between, between, between])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = F.relu(layer(x) + x)
        return torch.sigmoid(x)


LAYERS = {
    # name: first layer, layers with a residual, input, bytes of an activation between them
    "linear": (nn.Linear(8, 40), nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40)), (50, 8), 50 * 40 * 4),
    "deep linear": (nn.Linear(8, 800), nn.Sequential(nn.Linear(800, 40), nn.Linear(40, 800)), (5, 8), 5 * 800 * 4),
    "convolution": (nn.Conv2d(3, 20, 3), nn.Sequential(nn.Conv2d(20, 20, 3, padding=1), nn.Conv2d(20, 20, 1)), (1, 3, 12, 12), 20 * 100 * 4),
    "depthwise": (nn.Conv2d(3, 20, 3), nn.Sequential(nn.Conv2d(20, 20, 1), nn.Conv2d(20, 20, 3, padding=1, groups=20)), (1, 3, 12, 12), 20 * 100 * 4),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_residual_is_overwritten(name: str) -> None:
    """At most two activations are live at the same time."""
    torch.manual_seed(0)
    first, between, shape, nbytes = LAYERS[name]
    model = check(Residual(first, between).eval(), torch.randn(shape))
    assert nbytes <= model.planned_bytes <= 2 * nbytes


def test_a_residual_that_is_read_later_stays() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 40), nn.Linear(40, 40)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            return torch.cat([self.second(torch.relu(x)) + x, x])

    check(Twice().eval(), torch.randn(5, 8))


@pytest.mark.parametrize(
    ("first", "second", "shape"),
    [
        (nn.Linear(8, 40), nn.Linear(40, 40), (50, 8)),
        (nn.Conv2d(3, 20, 3), nn.Conv2d(20, 20, 3, padding=1), (1, 3, 12, 12)),
        (nn.Conv2d(3, 20, 3), nn.Conv2d(20, 20, 3, padding=1, groups=20), (1, 3, 12, 12)),
    ],
    ids=["linear", "convolution", "depthwise"],
)
def test_a_residual_that_is_also_the_input_stays(
    first: nn.Module, second: nn.Module, shape: tuple[int, ...]
) -> None:
    class Self(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            return torch.softmax(self.second(x) + x, -1)  # the sum is planned memory, not an output

    check(Self().eval(), torch.randn(shape))


@pytest.mark.parametrize("norm", [nn.LayerNorm(37), nn.RMSNorm(37, eps=1e-6)])
def test_a_norm_overwrites_its_input(norm: nn.Module) -> None:
    model = check(nn.Sequential(nn.Linear(8, 37), norm, nn.Linear(37, 8)).eval(), torch.randn(50, 8))
    assert model.planned_bytes <= 50 * 37 * 4 + 16


def test_only_operands_are_overwritten() -> None:
    for op, operands in ops.OVERWRITABLE.items():
        assert {*operands} <= {argument.name for argument in op._schema.arguments}, op


def test_frame_of_zeros_becomes_padding() -> None:
    frames = [(1, 1, 2, 2), (1, 1), (0, 1, 0, 1)]  # the last frame is asymmetric, so it is not padding
    module = nn.Sequential(
        *(
            nn.Sequential(nn.ZeroPad2d(p) if len(p) == 4 else nn.ConstantPad1d(p, 0.0), nn.Conv2d(3, 3, 3))
            for p in frames
        )
    ).eval()
    model = check(module, torch.randn(1, 3, 9, 9))
    called = [name for name in model.program.operators() if "pad" in name]
    assert called == ["aten::constant_pad_nd.out"]
    without = check(module[:2], torch.randn(1, 3, 9, 9))
    assert not [name for name in without.program.operators() if "pad" in name]


def test_readers_of_one_image_share_a_permutation() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(5, 4, 3), nn.Conv2d(5, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) + self.b(x)

    model = check(Two().eval(), torch.randn(1, 5, 9, 9))
    graph = model.program.exported_program().graph
    permutes = [n for n in graph.nodes if "permute" in str(n.target) and "alias" not in n.meta]
    assert len(permutes) == 2  # to and from the engine's order


def test_image_is_read_without_a_permutation() -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 1)
            self.register_buffer("mean", torch.rand(3, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first((x - self.mean) / 0.5)).mean((2, 3))

    model = check(Normalised().eval(), torch.randn(1, 3, 9, 9))
    called = model.program.operators()
    assert "cpu::planar_convolution.out" in called and "aten::permute_copy.out" not in called
