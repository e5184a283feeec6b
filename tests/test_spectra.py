# SPDX-License-Identifier: BSD-3-Clause
# Fourier transforms within a model, whose inputs and outputs are real, against eager.

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchette
from torchette.rewrites import Rewrites

WAVES = torch.randn(2, 6, 8)
fft = torch.fft
TRANSFORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fnet": lambda x: fft.fftn(x, dim=(1, 2)).real,
    "power": lambda x: fft.rfft(x, norm="ortho").abs() ** 2,
    "phase": lambda x: torch.angle(fft.rfft2(x + 3)[..., 1:3]),
    "low pass": lambda x: fft.irfft(fft.rfft(x) * torch.linspace(1, 0, 5), n=8),
    "filter": lambda x: fft.irfft2(fft.rfft2(x, norm="ortho") * fft.rfft2(x.flip(0)), s=(6, 8), norm="forward"),
    "round trip": lambda x: torch.real(fft.ifftn(fft.fftn(x, norm="forward"), norm="forward")),
    "padded": lambda x: torch.view_as_real(fft.fft(x, n=11, dim=1)),
    "cut": lambda x: fft.ifft2(x, s=(4, -1)).imag,
    "whole numbers": lambda x: fft.rfftn((x * 4).to(torch.int64), s=(4, 10)).real,
    "odd": lambda x: fft.irfftn(fft.rfftn(x[..., :7]), s=(2, 6, 7)),
}  # fmt: skip


class Function(nn.Module):
    def __init__(self, functions: list[Callable]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function in self.functions]


def test_transforms_within_a_model() -> None:
    model = Function(list(TRANSFORMS.values())).eval()
    compiled = torchette.compile(model, (WAVES,))
    x = torch.randn(2, 6, 8)
    for name, ours, eager in zip(TRANSFORMS, compiled(x), model(x), strict=True):
        torch.testing.assert_close(
            ours, eager, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision(dtype: torch.dtype) -> None:
    x = torch.randn(3, 200, dtype=dtype)
    with Rewrites():
        ours = torch.view_as_real(fft.fft(x))
    eager = torch.view_as_real(fft.fft(x))
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=50 * torch.finfo(dtype).eps)


def test_a_complex_result_is_refused_as_one() -> None:
    with pytest.raises(torchette.TorchetteError):
        torchette.compile(Function([fft.fft]).eval(), (WAVES,))
