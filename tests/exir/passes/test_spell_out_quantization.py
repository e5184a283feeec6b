# SPDX-License-Identifier: BSD-3-Clause
"""Quantization that no backend takes gives the integers that torch's own gives."""

from __future__ import annotations

import torch
import torch.ao.quantization.fx._decomposed  # declares the operators
from torch import nn

import torchette

ops = torch.ops.quantized_decomposed


class Quantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scales", torch.tensor([0.1, 0.2, 0.05]))
        self.register_buffer("zeros", torch.tensor([0, 3, -2]))
        self.register_buffer("weight", torch.randint(-127, 127, (3, 40), dtype=torch.int8))

    def forward(self, x):
        scale, zero = ops.choose_qparams.tensor(x, -128, 127, 2**-12, torch.int8)
        rows = ops.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        fixed = ops.quantize_per_tensor(x, 0.02, 5, -128, 127, torch.int8)
        channels = ops.quantize_per_channel(x, self.scales, self.zeros, 0, -128, 127, torch.int8)
        weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8)
        real = ops.dequantize_per_tensor(fixed, 0.02, 5, -128, 127, torch.int8)
        again = ops.dequantize_per_tensor.tensor(rows, scale, zero, -128, 127, torch.int8)
        return scale, zero, rows, fixed, channels, weight * 2, real, again


def test_the_integers_are_torchs() -> None:
    torch.manual_seed(0)
    module, x = Quantized().eval(), torch.randn(3, 40)
    model = torchette.compile(module, (x,))
    expected = module(x)
    for got, wanted in zip(model(x), expected, strict=True):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        if wanted.dtype is torch.int8:  # a half may round either way
            assert (got.int() - wanted.int()).abs().max() <= 1
            assert (got != wanted).float().mean() < 0.02
        else:
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=0.02 if wanted is expected[-1] else 1e-5)
    stored = [t for t in model.program.exported_program().state_dict.values() if t.dtype is torch.int8]
    assert [tuple(t.shape) for t in stored] == [(3, 40)]
