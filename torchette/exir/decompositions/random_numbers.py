# SPDX-License-Identifier: BSD-3-Clause
# torch's distributions in terms of uniform and normal random values, which have kernels. decompose_to_core uses the
# table.
"""Decompositions of random operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchette.exir.decompositions import rrelu

aten = torch.ops.aten


def _uniform(like: torch.Tensor) -> torch.Tensor:
    """Returns values in [0, 1), in float32 if the tensor's dtype is narrower or an integer."""
    return torch.rand(like.shape, dtype=_wide(like.dtype), device=like.device)


def _normal(like: torch.Tensor) -> torch.Tensor:
    return torch.randn(like.shape, dtype=_wide(like.dtype), device=like.device)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _uniform_between(
    x: torch.Tensor, low: float = 0.0, high: float = 1.0, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    return (_uniform(x) * (high - low) + low).to(x.dtype)


def _normal_like(
    x: torch.Tensor, mean: float = 0.0, std: float = 1.0, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    return (_normal(x) * std + mean).to(x.dtype)


def _normal_of_tensors(
    mean: float | torch.Tensor, std: float | torch.Tensor = 1.0, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    tensors = [x for x in (mean, std) if isinstance(x, torch.Tensor)]
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    result = torch.randn(shape, dtype=_wide(tensors[0].dtype), device=tensors[0].device) * std + mean
    outcome: torch.Tensor = result.to(tensors[0].dtype)
    return outcome


def _normal_of_scalars(
    mean: float, std: float, size: Sequence[int], *, generator: torch.Generator | None = None, dtype: torch.dtype | None = None, device: torch.device | None = None,
    **_: object,
) -> torch.Tensor:  # fmt: skip
    return torch.randn(size, dtype=dtype, device=device) * std + mean


def _log_normal(
    x: torch.Tensor, mean: float = 1.0, std: float = 2.0, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    return torch.exp(_normal(x) * std + mean).to(x.dtype)


def _exponential(
    x: torch.Tensor, rate: float = 1.0, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    return (-torch.log(1 - _uniform(x)) / rate).to(x.dtype)


def _geometric(x: torch.Tensor, p: float, *, generator: torch.Generator | None = None) -> torch.Tensor:
    # A uniform value can be 0, which also represents the first trial.
    return torch.ceil(torch.log(1 - _uniform(x)) / math.log1p(-p)).clamp(min=1).to(x.dtype)


def _cauchy(
    x: torch.Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    return (median + sigma * torch.tan(math.pi * (_uniform(x) - 0.5))).to(x.dtype)


def _bernoulli(p: torch.Tensor, *, generator: torch.Generator | None = None) -> torch.Tensor:
    return (_uniform(p) < p).to(p.dtype)


def _bernoulli_of(
    x: torch.Tensor, p: torch.Tensor, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    return (_uniform(x) < p).to(x.dtype)


def _drawn_like(draw: Callable[..., Any]) -> Callable[..., Any]:
    def decomposed(
        x: torch.Tensor, *, dtype: torch.dtype | None = None, device: torch.device | None = None, **_: object
    ) -> torch.Tensor:
        result: torch.Tensor = draw(x.shape, dtype=dtype or x.dtype, device=device or x.device)
        return result

    return decomposed


def _randint_like(
    x: torch.Tensor,
    low: int,
    high: int | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **_: object,
) -> torch.Tensor:
    low, high = (0, low) if high is None else (low, high)
    drawn = torch.randint(low, high, x.shape, dtype=torch.int64, device=device or x.device)
    return drawn.to(dtype or x.dtype)


def _integers(
    x: torch.Tensor, low: int, high: int | None = None, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Integers in [low, high). Without `high`, the largest one is the limit of the dtype: the largest integer, or for a
    floating-point dtype 2 to the number of bits of its significand."""
    if high is None:
        if x.is_floating_point():
            high = round(2 / torch.finfo(x.dtype).eps) + 1
        else:
            high = min(torch.iinfo(x.dtype).max, torch.iinfo(torch.int64).max - 1) + 1
    return _randint_like(x, low, high)


def _without_generator(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Supports `generator=None`. torch.export cannot capture a generator."""

    def decomposed(*args: object, generator: torch.Generator | None = None, **kwargs: object) -> Any:
        return draw(*args, **kwargs)

    return decomposed


def _multinomial(
    weights: torch.Tensor, count: int, replacement: bool = False, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    wide = weights.to(_wide(weights.dtype))
    if not replacement:
        # Each index has the largest weight / exponential time with a probability proportional to its weight.
        return torch.topk(wide / -torch.log(1 - _uniform(wide)), count, -1)[1]
    ends = torch.cumsum(wide, -1)
    drawn = torch.rand(*weights.shape[:-1], count, dtype=wide.dtype, device=wide.device) * ends[..., -1:]
    return torch.searchsorted(ends, drawn, right=True).clamp(max=weights.shape[-1] - 1)


def _fractional_max_pool(rank: int) -> Callable[..., Any]:
    """Pools windows with positions that follow from one random value per plane and dimension (Graham, "Fractional
    max-pooling")."""

    def decomposed(
        x: torch.Tensor, kernel: Sequence[int], size: Sequence[int], samples: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        planes, spatial = x.shape[:-rank], x.shape[-rank:]
        if len(planes) == 1:  # without a batch, use the samples of the first one
            samples = samples[0]
        kernel, size = [list(v) * (rank if len(v) == 1 else 1) for v in (kernel, size)]
        offsets = torch.zeros([1] * (2 * rank), dtype=torch.int64)
        for d in range(rank):
            # torch orders the samples of images from the last dimension, those of volumes from the first dimension.
            u = samples[..., rank - 1 - d if rank == 2 else d].reshape(*planes, 1)
            last = spatial[d] - kernel[d]
            start = torch.full([*planes, 1], last, dtype=torch.int64)
            if size[d] > 1:
                step = last / (size[d] - 1)
                steps = torch.arange(size[d] - 1, dtype=u.dtype)
                inner = ((steps + u) * step).to(torch.int64) - (u * step).to(torch.int64)
                start = torch.cat([inner, start], -1)
            places = start.unsqueeze(-1) + torch.arange(kernel[d])
            shape = [1] * (2 * rank)
            shape[d], shape[rank + d] = size[d], kernel[d]
            offsets = offsets * spatial[d] + places.reshape(*planes, *shape)
        flat = offsets.reshape(*planes, *size, math.prod(kernel))
        values = x.flatten(-rank).gather(-1, flat.flatten(len(planes))).reshape(flat.shape)
        best, at = values.max(-1, keepdim=True)
        return best.squeeze(-1), flat.gather(-1, at).squeeze(-1)

    return decomposed


def _native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    if train is False:
        return x.clone(), torch.ones(x.shape, dtype=torch.bool, device=x.device)
    mask = _uniform(x) >= p
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return x * (mask * scale).to(x.dtype), mask


def _bernoulli_of_scalar(
    x: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    return (_uniform(x) < p).to(x.dtype)


def _rrelu(
    x: torch.Tensor, noise: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    if not training:
        result: tuple[torch.Tensor, torch.Tensor] = rrelu(x, noise, lower, upper)
        return result
    slope = torch.where(x <= 0, _uniform(x) * (upper - lower) + lower, 1.0).to(x.dtype)
    return x * slope, slope


# Random operators of layers in training mode; added to the table on request.
IN_TRAINING: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _native_dropout,
    aten.bernoulli.p: _bernoulli_of_scalar,
    aten.rrelu_with_noise_functional.default: _rrelu,
}
TABLE: dict[Any, Callable[..., Any]] = {
    aten.rand.generator: _without_generator(torch.rand),
    aten.randn.generator: _without_generator(torch.randn),
    aten.randperm.generator: _without_generator(torch.randperm),
    aten.randint.generator: _without_generator(torch.randint),
    aten.randint.low_generator: _without_generator(torch.randint),
    aten.rand_like.default: _drawn_like(torch.rand),
    aten.rand_like.generator: _drawn_like(torch.rand),
    aten.randn_like.default: _drawn_like(torch.randn),
    aten.randn_like.generator: _drawn_like(torch.randn),
    aten.uniform.default: _uniform_between,
    aten.normal_functional.default: _normal_like,
    aten.normal.Tensor_float: _normal_of_tensors,
    aten.normal.float_Tensor: _normal_of_tensors,
    aten.normal.Tensor_Tensor: _normal_of_tensors,
    aten.normal.float_float: _normal_of_scalars,
    aten.log_normal.default: _log_normal,
    aten.exponential.default: _exponential,
    aten.geometric.default: _geometric,
    aten.cauchy.default: _cauchy,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.Tensor: _bernoulli_of,
    aten.randint_like.default: _randint_like,
    aten.randint_like.low_dtype: _randint_like,
    aten.randint_like.generator: _randint_like,
    aten.randint_like.low_generator_dtype: _randint_like,
    aten.random.default: lambda x, **options: _integers(x, 0),
    aten.random.to: lambda x, high, **options: _integers(x, 0, high),
    aten.multinomial.default: _multinomial,
    aten.fractional_max_pool2d.default: _fractional_max_pool(2),
    aten.fractional_max_pool3d.default: _fractional_max_pool(3),
}
