# SPDX-License-Identifier: BSD-3-Clause
# Random operators: ranges, moments, and different results for different draws.
from __future__ import annotations

import copy

import pytest
import torch

import torchette
from torchette.exir import EdgeCompileConfig
from torchette.runtime import _native

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype: torch.dtype) -> None:
    out, second = torch.empty(100, 200, dtype=dtype), torch.empty(100, 200, dtype=dtype)
    _native.call_kernel("aten::rand.out", [100, 200], out)
    _native.call_kernel("aten::rand_like.out", out, None, second)
    assert out.min() >= 0 and out.max() < 1 and not torch.equal(out, second)
    assert abs(out.double().mean() - 0.5) < 0.02 and abs(out.double().var() - 1 / 12) < 0.01


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(dtype: torch.dtype) -> None:
    out, second = torch.empty(20001, dtype=dtype), torch.empty(20001, dtype=dtype)
    _native.call_kernel("aten::randn.out", [20001], out)
    _native.call_kernel("aten::randn_like.out", out, None, second)
    x = out.double()
    assert abs(x.mean()) < 0.05 and abs(x.var() - 1) < 0.05 and not torch.equal(out, second)
    assert abs((x.abs() < 1).double().mean() - 0.6827) < 0.02


def test_integers_and_permutations() -> None:
    out = torch.empty(10000, dtype=torch.int64)
    _native.call_kernel("aten::randint.low_out", -3, 4, [10000], out)
    assert set(out.tolist()) == set(range(-3, 4))
    _native.call_kernel("aten::randint.out", 2, [10000], out)
    assert 0.45 < out.double().mean() < 0.55
    _native.call_kernel("aten::randperm.out", 10000, out)
    assert torch.equal(out.sort().values, torch.arange(10000)) and not torch.equal(out, torch.arange(10000))
    with pytest.raises(RuntimeError, match="must be less than high"):
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


COUNT = 20000


class Draws(torch.nn.Module):
    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.clone().uniform_(-2, 3),
            x.clone().normal_(1, 2),
            x.clone().log_normal_(0, 0.5),
            x.clone().exponential_(2),
            x.clone().geometric_(0.25),
            x.clone().cauchy_(1, 0.5),
            torch.normal(x, 2.0),
            torch.normal(1.0, x + 1),
            torch.normal(x, x + 1),
            torch.bernoulli(x * 0 + 0.3),
            torch.randint_like(x, -3, 4),
            x.clone().random_(),
            x.clone().random_(9),
            torch.randn(COUNT, generator=None),
            torch.rand(COUNT, generator=None),
            torch.randint(-5, 6, (COUNT,), generator=None),
            torch.randperm(COUNT, generator=None),
            torch.multinomial(weights, COUNT, replacement=True),
            torch.multinomial(weights.expand(COUNT // 5, 5), 3).flatten(),
            torch.nn.functional.gumbel_softmax(weights.log().expand(COUNT, 5), hard=True).argmax(-1),
        ]


def test_distributions_equal_eager() -> None:
    inputs = torch.zeros(COUNT), torch.tensor([0.1, 0.0, 0.5, 0.3, 0.1])
    torch.manual_seed(0)
    expected = Draws()(*inputs)
    model = torchette.compile(Draws().eval(), inputs)
    results, repeated = model(*inputs), model(*inputs)
    for i, (ours, repeat, theirs) in enumerate(zip(results, repeated, expected, strict=True)):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert not torch.equal(ours, repeat), i
        # Kolmogorov-Smirnov distance of two samples of at least 12,000: exceeds 0.025 once in a thousand times.
        places = torch.cat([ours, theirs]).unique()
        below = [torch.searchsorted(x.sort()[0], places, right=True) / x.numel() for x in (ours, theirs)]
        assert (below[0] - below[1]).abs().max() < 0.025, i


class Trained(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = torch.nn.BatchNorm2d(3), torch.nn.Dropout(0.25)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.norm(x), self.drop(x)


def test_training_mode_layers_match_eager_if_requested() -> None:
    eager, x = Trained().train(), torch.rand(5, 3, 40, 40) + 1
    model = torchette.compile(copy.deepcopy(eager), (x,), edge=EdgeCompileConfig(train_mode=True))
    masks = []
    for factor in (1, 2):  # the second iteration uses the running statistics of the first
        normed, dropped = model(x * factor)
        torch.testing.assert_close(normed, eager(x * factor)[0])
        masks.append(dropped != 0)
        torch.testing.assert_close(dropped, torch.where(masks[-1], x * factor / 0.75, 0))
        assert abs(masks[-1].double().mean() - 0.75) < 0.01
    assert not torch.equal(*masks)


def test_multinomial_without_replacement_draws_distinct_indices() -> None:
    weights = torch.tensor([[0.1, 0.0, 0.5, 0.3, 0.1]]).expand(200, 5)

    class Picks(torch.nn.Module):
        def forward(self, weights: torch.Tensor) -> torch.Tensor:
            return torch.multinomial(weights, 4)

    picked = torchette.compile(Picks().eval(), (weights,))(weights).sort(-1)[0]
    assert torch.equal(picked, torch.tensor([0, 2, 3, 4]).expand(200, 4))


@pytest.mark.parametrize("rank", [2, 3])
def test_fractional_pools_with_given_samples(rank: int) -> None:
    pool = getattr(torch.nn.functional, f"fractional_max_pool{rank}d")

    class Pools(torch.nn.Module):
        def forward(self, x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return pool(x, 2, [5, 4, 3][-rank:], _random_samples=places, return_indices=True)

    x, places = torch.randn(2, 3, *[8, 9, 7][-rank:]), torch.rand(2, 3, rank)
    for inputs in ((x, places), (x[0], places)):
        model = torchette.compile(Pools().eval(), inputs)
        for ours, theirs in zip(model(*inputs), Pools()(*inputs), strict=True):
            assert torch.equal(ours, theirs)
