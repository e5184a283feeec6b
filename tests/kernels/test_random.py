# SPDX-License-Identifier: BSD-3-Clause
# What is drawn at random: ranges, moments, and that no two draws are alike.
from __future__ import annotations

import pytest
import torch

from torchette.runtime import _native

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype: torch.dtype) -> None:
    out, other = torch.empty(100, 200, dtype=dtype), torch.empty(100, 200, dtype=dtype)
    _native.call_kernel("aten::rand.out", [100, 200], out)
    _native.call_kernel("aten::rand_like.out", out, None, other)
    assert out.min() >= 0 and out.max() < 1 and not torch.equal(out, other)
    assert abs(out.double().mean() - 0.5) < 0.02 and abs(out.double().var() - 1 / 12) < 0.01


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(dtype: torch.dtype) -> None:
    out, other = torch.empty(20001, dtype=dtype), torch.empty(20001, dtype=dtype)
    _native.call_kernel("aten::randn.out", [20001], out)
    _native.call_kernel("aten::randn_like.out", out, None, other)
    x = out.double()
    assert abs(x.mean()) < 0.05 and abs(x.var() - 1) < 0.05 and not torch.equal(out, other)
    assert abs((x.abs() < 1).double().mean() - 0.6827) < 0.02


def test_whole_numbers_and_permutations() -> None:
    out = torch.empty(10000, dtype=torch.int64)
    _native.call_kernel("aten::randint.low_out", -3, 4, [10000], out)
    assert set(out.tolist()) == set(range(-3, 4))
    _native.call_kernel("aten::randint.out", 2, [10000], out)
    assert 0.45 < out.double().mean() < 0.55
    _native.call_kernel("aten::randperm.out", 10000, out)
    assert torch.equal(out.sort().values, torch.arange(10000)) and not torch.equal(out, torch.arange(10000))
    with pytest.raises(RuntimeError, match="no number from"):
        _native.call_kernel("aten::randint.out", 0, [10000], out)


@pytest.mark.parametrize("dtype", FLOATS)
def test_dropout(dtype: torch.dtype) -> None:
    x = torch.full((20000,), 3.0, dtype=dtype)
    out, mask = torch.empty_like(x), torch.empty(20000, dtype=torch.bool)
    _native.call_kernel("aten::native_dropout.out", x, 0.25, True, out, mask)
    assert abs(mask.double().mean() - 0.75) < 0.02
    torch.testing.assert_close(out, torch.where(mask, 4.0, 0.0).to(dtype))
    _native.call_kernel("aten::native_dropout.out", x, 0.25, False, out, mask)
    assert torch.equal(out, x) and mask.all()
    _native.call_kernel("aten::native_dropout.out", x, 1.0, None, out, mask)
    assert not out.any() and not mask.any()
