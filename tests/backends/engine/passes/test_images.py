# SPDX-License-Identifier: BSD-3-Clause
# Operators between two convolutions become operators of the engine, so that one permutation remains before the first convolution and
# one after the last. The results equal eager.

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchette
from torchette.exir.graph import calls

CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
# More channels than an image that the engine reads without a permutation.
IMAGES = {1: (2, 5, 15), 2: (2, 5, 9, 11), 3: (2, 5, 5, 6, 7)}


class Apply(nn.Module):
    """A function of a tensor between the modules of a model."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def resize(**options: Any) -> nn.Module:
    return Apply(lambda x: F.interpolate(x, **options))


def settled(norm: nn.Module) -> nn.Module:
    """Makes a batch norm that changes its input. It follows an activation, so it does not fold into a convolution."""
    norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
    norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return nn.Sequential(nn.ReLU(), norm, nn.ReLU())


# Operator, dimensions -> the module between the convolutions.
BETWEEN: list[tuple[str, int, nn.Module]] = [
    ("transposed_convolution", 1, nn.ConvTranspose1d(8, 8, 4, stride=2, padding=1)),
    ("transposed_convolution", 2, nn.ConvTranspose2d(8, 8, 3, 2, 1, output_padding=1, groups=2, dilation=2)),
    ("transposed_convolution", 3, nn.ConvTranspose3d(8, 8, 2, stride=2)),
    ("resize", 1, resize(scale_factor=1.7, mode="linear")),
    ("resize", 2, resize(scale_factor=1.7)),
    ("resize", 2, resize(scale_factor=2.0, mode="nearest-exact")),
    ("resize", 2, resize(scale_factor=1.7, mode="bilinear")),
    ("resize", 2, resize(size=(13, 14), mode="bilinear", align_corners=True)),
    ("resize", 2, resize(scale_factor=1.7, mode="bicubic")),
    ("resize", 3, resize(scale_factor=2.0, mode="trilinear")),
    ("max_pool", 1, nn.MaxPool1d(3, 2, 1)),
    ("max_pool", 2, nn.MaxPool2d(3, ceil_mode=True)),
    ("max_pool", 3, nn.MaxPool3d(2)),
    ("avg_pool", 1, nn.AvgPool1d(3, 2, 1)),
    ("avg_pool", 3, nn.AvgPool3d(3, 2, 1, count_include_pad=False)),
    ("adaptive_avg_pool", 2, nn.AdaptiveAvgPool2d((4, 5))),
    ("adaptive_avg_pool", 3, nn.AdaptiveAvgPool3d(4)),
    ("group_norm", 2, nn.GroupNorm(4, 8)),
    ("depthwise", 2, settled(nn.BatchNorm2d(8))),
]


@pytest.mark.parametrize(
    ("name", "dims", "between"), BETWEEN, ids=lambda value: value if isinstance(value, str) else ""
)
def test_operators_between_convolutions_need_no_permutation(name: str, dims: int, between: nn.Module) -> None:
    convolution = CONVOLUTIONS[dims]
    model = nn.Sequential(convolution(5, 8, 3, padding=1), between, convolution(8, 5, 3, padding=1)).eval()
    compiled = torchette.compile(model, (torch.randn(IMAGES[dims]),), backend="cpu")
    called = [str(node.target) for node in calls(compiled.program.exported_program())]
    assert called.count(f"cpu.{name}.out") == 1
    assert called.count("aten.permute_copy.out") == 2
    compiled.verify()


class Beside(nn.Module):
    """Resizes of the image, and a convolution in the same program."""

    def __init__(self, channels: int, mode: str) -> None:
        super().__init__()
        self.convolution, self.mode = nn.Conv2d(channels, 8, 3, padding=1), mode

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        resized = F.interpolate(x * 2 + 1, scale_factor=2.0, mode=self.mode).relu()
        return F.interpolate(resized, size=(7, 5), mode=self.mode), self.convolution(x)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [3, 6])
def test_resize_without_neighbours_with_channels_last_stays_planar(mode: str, channels: int) -> None:
    compiled = torchette.compile(
        Beside(channels, mode).eval(), (torch.randn(1, channels, 9, 11),), backend="cpu"
    )
    called = [str(node.target) for node in calls(compiled.program.exported_program())]
    assert sum("upsample" in name for name in called) == 2
    assert called.count("aten.permute_copy.out") == (1 if channels == 3 else 2)  # of the convolution
    compiled.verify()


def test_resize_before_a_convolution_has_channels_last() -> None:
    """The permutation reads the smaller image."""
    model = nn.Sequential(resize(scale_factor=2.0), nn.ReLU(), nn.Conv2d(6, 8, 3)).eval()
    compiled = torchette.compile(model, (torch.randn(1, 6, 9, 11),), backend="cpu")
    assert "cpu::resize.out" in compiled.program.operators()
    compiled.verify()


@pytest.mark.parametrize("end", [None, Apply(lambda x: x.argmax(1)), nn.Conv2d(21, 5, 1)])
def test_enlarged_result_of_a_convolution_is_planar_if_it_is_an_output(end: nn.Module | None) -> None:
    """The permutation reads the smaller image. A reduction or a convolution needs no permutation before it."""
    modules = (nn.Conv2d(6, 21, 3), resize(scale_factor=3.0, mode="bilinear"), nn.Sigmoid())
    compiled = torchette.compile(
        nn.Sequential(*modules, *([end] if end else [])).eval(), (torch.randn(1, 6, 9, 11),), backend="cpu"
    )
    assert ("cpu::resize.out" in compiled.program.operators()) == (end is not None)
    compiled.verify()


def test_instance_norm_of_one_image() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.Conv2d(8, 4, 1)).eval()
    compiled = torchette.compile(model, (torch.randn(1, 3, 9, 9),), backend="cpu")
    assert "cpu::group_norm.out" in compiled.program.operators()
    compiled.verify()


def test_dynamic_image() -> None:
    """A resize by a scale works on an image with a dynamic size."""
    size = torch.export.Dim("size", min=4, max=20)
    up = nn.Upsample(scale_factor=2.0, mode="bilinear")
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), up, nn.Conv2d(8, 4, 1)).eval()
    compiled = torchette.compile(
        model, (torch.randn(1, 3, 8, 9),), backend="cpu", dynamic_shapes=({2: size},)
    )
    assert "cpu::resize.out" in compiled.program.operators()
    for rows in (4, 13, 20):
        x = torch.randn(1, 3, rows, 9)
        torch.testing.assert_close(torch.as_tensor(compiled(x)), model(x), rtol=1e-4, atol=1e-5)


def test_pool_with_read_indices_does_not_change() -> None:
    """If a node reads the indices of a pool, the pool does not change."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return F.max_pool2d(self.convolution(x), 2, return_indices=True)

    compiled = torchette.compile(Model().eval(), (torch.randn(1, 3, 8, 8),), backend="cpu")
    assert "aten::max_pool2d_with_indices.out" in compiled.program.operators()
    compiled.verify()


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("pool", [nn.AvgPool2d, nn.MaxPool2d])
def test_window_larger_than_the_image(pool: Any, size: int) -> None:
    module = nn.Sequential(nn.Conv2d(8, 16, 1), pool(8, ceil_mode=True), nn.Conv2d(16, 8, 1)).eval()
    image = torch.randn(1, 8, size, size)
    compiled = torchette.compile(module, (image,))
    torch.testing.assert_close(compiled(image), module(image), rtol=1e-4, atol=1e-5)
    assert any(name.startswith("cpu::") and "pool" in name for name in compiled.program.operators())
