# SPDX-License-Identifier: BSD-3-Clause
"""Decomposed quantization yields the same integers as torch's quantization."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
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


def test_integers_equal_those_of_torch() -> None:
    torch.manual_seed(0)
    module, x = Quantized().eval(), torch.randn(3, 40)
    model = torchette.compile(module, (x,))
    expected = module(x)
    for actual, reference in zip(model(x), expected, strict=True):
        assert actual.dtype == reference.dtype and actual.shape == reference.shape
        if (
            reference.dtype is torch.int8
        ):  # a value halfway between integers may be rounded in both directions
            assert (actual.int() - reference.int()).abs().max() <= 1
            assert (actual != reference).float().mean() < 0.02
        else:
            torch.testing.assert_close(
                actual, reference, rtol=1e-5, atol=0.02 if reference is expected[-1] else 1e-5
            )
    stored = [t for t in model.program.exported_program().state_dict.values() if t.dtype is torch.int8]
    assert [tuple(t.shape) for t in stored] == [(3, 40)]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_parameters_of_a_symmetric_range(dtype: torch.dtype) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max

    class Symmetric(nn.Module):
        def forward(self, x):
            scale, zero = ops.choose_qparams_symmetric.tensor(x, low, high, 2**-12, dtype)
            rows = ops.quantize_per_tensor.tensor(x, scale, zero, low, high, dtype)
            return scale, zero, ops.dequantize_per_tensor.tensor(rows, scale, zero, low, high, dtype)

    torch.manual_seed(0)
    for x in (torch.randn(3, 40), -torch.rand(3, 40), torch.zeros(3, 40)):
        for actual, expected in zip(torchette.compile(Symmetric(), (x,))(x), Symmetric()(x), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_halves_are_rounded_as_torch_rounds_them() -> None:
    """Quantization multiplies by 1 / scale in double precision."""

    class Static(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scales", torch.tensor([0.1, 14 / 15, 0.3]))
            self.register_buffer("zeros", torch.zeros(3, dtype=torch.int64))

        def forward(self, x):
            one = ops.quantize_per_tensor(x, 14 / 15, 0, -128, 127, torch.int8)
            return one, ops.quantize_per_channel(x, self.scales, self.zeros, 0, -128, 127, torch.int8)

    x = (torch.arange(3 * 200).reshape(3, 200) - 300) * 0.1
    for actual, expected in zip(torchette.compile(Static().eval(), (x,))(x), Static()(x), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_integers_in_a_loop() -> None:
    class Loop(nn.Module):
        def forward(self, x, turns):
            def body(i, h):
                h = ops.quantize_per_tensor(h * 1.5, 0.02, 5, -128, 127, torch.int8)
                return i + 1, ops.dequantize_per_tensor(h, 0.02, 5, -128, 127, torch.int8)

            start = torch.zeros((), dtype=torch.int64)
            return torch._higher_order_ops.while_loop(lambda i, h: i < turns, body, (start, x))[1]

    args = (torch.linspace(-2, 2, 60), torch.tensor(3))
    torch.testing.assert_close(torchette.compile(Loop().eval(), args)(*args), Loop()(*args))
