# SPDX-License-Identifier: BSD-3-Clause
# In: Fourier transforms. Out: matrix multiplications with cosines and sines. A long transform is split into transforms
# of the factors of its length, so that tables stay small and the work is less than quadratic in the length.
"""`RULES`: torch's Fourier transforms, on pairs of real tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchette.exir.decompositions.complex_numbers import Pair, Value, multiply

aten = torch.ops.aten


def _waves(rows: int, columns: int, length: int, dtype: torch.dtype) -> Pair:
    """Returns cosines and sines of 2 pi j k / length for row j and column k, correctly rounded to the dtype.

    Zeros are exact, so the middle frequency of a real signal has the imaginary part 0 and the angle 0 or pi.
    """
    j, k = (torch.arange(n, dtype=torch.int64) for n in (rows, columns))
    turns = torch.remainder(j.unsqueeze(1) * k.unsqueeze(0), length)
    angles = turns.to(torch.float64) * (2 * math.pi / length)
    is_half = torch.remainder(2 * turns, length) == 0
    is_quarter = torch.logical_and(torch.remainder(4 * turns, length) == 0, torch.logical_not(is_half))
    cosines, sines = (
        torch.where(is_quarter, 0.0, torch.cos(angles)),
        torch.where(is_half, 0.0, torch.sin(angles)),
    )
    return Pair(cosines.to(dtype), sines.to(dtype))


# The maximum length of a transform with one matrix multiplication. A longer transform is split into two factors: the
# matrices of length 512 would need 1 MB, those of lengths 16 and 32 need 10 KB.
_MAX_DIRECT_LENGTH = 64


def _factors(length: object) -> tuple[int, int] | None:
    """Returns two factors of the length, smaller first; None if one matrix multiplication is sufficient."""
    if not isinstance(length, int) or length <= _MAX_DIRECT_LENGTH:
        return None
    first = next(n for n in range(math.isqrt(length), 0, -1) if length % n == 0)
    return (first, length // first) if first > 1 else None


def _product(x: torch.Tensor, waves: torch.Tensor) -> torch.Tensor:
    return torch.mm(x.reshape(-1, x.shape[-1]), waves).reshape(*x.shape[:-1], waves.shape[-1])


def _transformed(x: Value, forward: bool, columns: int | None = None) -> Pair:
    """Transforms the last dimension. Computes only the first `columns` frequencies if given. x may be real."""
    first: torch.Tensor = x.real if isinstance(x, Pair) else x
    length = first.shape[-1]
    factors = _factors(length)
    if factors is None:
        waves = _waves(length, length if columns is None else columns, length, first.dtype)
        sines = -waves.imag if forward else waves.imag
        result: Pair = multiply(x, Pair(waves.real, sines), _product)
        return result
    # Index j1 n2 + j2, frequency k1 + k2 n1: transforms of length n1, twiddle factors e^(2 pi i j2 k1 / n), transforms
    # of length n2.
    n1, n2 = factors
    table = pytree.tree_map(lambda p: p.reshape(*p.shape[:-1], n1, n2).transpose(-1, -2), x)
    rotated = _transformed(table, forward)
    waves = _waves(n2, n1, length, first.dtype)
    rotated = multiply(rotated, Pair(waves.real, -waves.imag if forward else waves.imag))
    done = _transformed(Pair(*(p.transpose(-1, -2) for p in rotated)), forward)
    parts = (p.transpose(-1, -2).reshape(first.shape) for p in done)
    return Pair(*(p if columns is None else p[..., :columns] for p in parts))


def _along(x: object, dim: int, forward: bool, columns: int | None = None) -> Pair:
    last = pytree.tree_map(lambda p: p.movedim(dim, -1), x)
    return Pair(*(p.movedim(-1, dim) for p in _transformed(last, forward, columns)))


def _scaled(x: object, norm: int, lengths: Sequence[Any]) -> Any:
    """`norm` is ATen's enum: 0 no scaling, 1 divides by the square root of the product of the lengths, 2 by the
    product."""
    if norm == 0:
        return x
    product = math.prod(lengths)
    factor = 1 / (product if norm == 2 else math.sqrt(product))
    return pytree.tree_map(lambda p: p * factor, x)


def _complex_transform(x: Pair, dims: list[int], norm: int, forward: bool) -> Pair:
    lengths = [x.real.shape[dim] for dim in dims]
    for dim in dims:
        x = _along(x, dim, forward)
    result: Pair = _scaled(x, norm, lengths)
    return result


def _transform_of_real(x: torch.Tensor, dims: list[int], norm: int, onesided: bool) -> Pair:
    lengths = [x.shape[dim] for dim in dims]
    result = _along(x, dims[-1], True, lengths[-1] // 2 + 1 if onesided else None)
    for dim in dims[:-1]:
        result = _along(result, dim, True)
    outcome: Pair = _scaled(result, norm, lengths)
    return outcome


def _transform_to_real(x: Pair, dims: list[int], norm: int, length: int) -> torch.Tensor:
    """Computes the inverse transform of half of a Hermitian spectrum."""
    lengths = [*(x.real.shape[dim] for dim in dims[:-1]), length]
    for dim in dims[:-1]:
        x = _along(x, dim, False)
    half = Pair(*(p.movedim(dims[-1], -1)[..., : length // 2 + 1] for p in x))
    if _factors(length) is None:
        # Every frequency except 0, and except length / 2 of an even length, counts twice because of its mirror image.
        rows = half.real.shape[-1]
        waves = _waves(rows, length, length, half.real.dtype)
        k = torch.arange(rows)
        alone = torch.logical_or(k == 0, 2 * k == length).to(half.real.dtype)
        real, imag = (p * (2 - alone) for p in half)
        result = _product(real, waves.real) - _product(imag, waves.imag)
    else:
        mirrored = Pair(*(p[..., 1 : (length + 1) // 2].flip(-1) for p in half))
        # The first and the middle element are real by definition: their imaginary parts are ignored.
        k = torch.arange(length // 2 + 1)
        alone = torch.logical_or(k == 0, 2 * k == length)
        imag = torch.where(alone, torch.zeros_like(half.imag), half.imag)
        spectrum = Pair(torch.cat([half.real, mirrored.real], -1), torch.cat([imag, -mirrored.imag], -1))
        result = _transformed(spectrum, False).real
    outcome: torch.Tensor = _scaled(result.movedim(-1, dims[-1]), norm, lengths)
    return outcome


RULES: dict[Any, Callable[..., Any]] = {
    aten._fft_c2c.default: _complex_transform,
    aten._fft_r2c.default: _transform_of_real,
    aten._fft_c2r.default: _transform_to_real,
}
