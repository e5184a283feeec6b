# SPDX-License-Identifier: BSD-3-Clause
# Calls of torch.fft on real tensors come in, which give complex ones; out go pairs of real tensors, computed by products
# with cosines and sines that are folded ahead of time. Neither files nor the runtime's plans have complex tensors.
"""`TABLE`: the functions of torch.fft, for `torchette.rewrites`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree


class Spectrum:
    """Complex numbers as two real tensors. What is not written down here happens to the complex tensor that it is."""

    def __init__(self, real: torch.Tensor, imag: torch.Tensor) -> None:
        self.real, self.imag = real, imag

    def abs(self) -> torch.Tensor:
        """How far from zero they lie."""
        return torch.sqrt(self.real * self.real + self.imag * self.imag)

    def angle(self) -> torch.Tensor:
        """Their directions in radians."""
        return torch.atan2(self.imag, self.real)

    def joined(self) -> torch.Tensor:
        """The complex tensor that this stands for."""
        return torch.complex(self.real, self.imag)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.joined(), name)

    def __getitem__(self, index: Any) -> Spectrum:
        return Spectrum(self.real[index], self.imag[index])

    def __mul__(self, other: Any) -> Spectrum:
        if isinstance(other, torch.Tensor) and other.is_complex():
            other = Spectrum(other.real, other.imag)
        if isinstance(other, Spectrum):
            real = self.real * other.real - self.imag * other.imag
            return Spectrum(real, self.real * other.imag + self.imag * other.real)
        return Spectrum(self.real * other, self.imag * other)

    __rmul__ = __mul__
    __abs__ = abs

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        known = _PARTS.get(func)
        if known is not None and len(args) == 1 and not kwargs:
            return known(args[0])
        args, kwargs = pytree.tree_map_only(cls, cls.joined, (args, kwargs or {}), is_leaf=_is_spectrum)
        return func(*args, **kwargs)


def _is_spectrum(value: Any) -> bool:
    return isinstance(value, Spectrum)


# Returned from a model it is a complex tensor, which the compiler then refuses as one.
pytree.register_pytree_node(
    Spectrum,
    lambda spectrum: ([spectrum.joined()], None),
    lambda children, _: Spectrum(children[0].real, children[0].imag),
    serialized_type_name="torchette.Spectrum",
    to_dumpable_context=lambda context: context,
    from_dumpable_context=lambda context: context,
)

_PARTS: dict[Any, Callable[[Spectrum], torch.Tensor]] = {
    torch.abs: Spectrum.abs,
    torch.absolute: Spectrum.abs,
    torch.angle: Spectrum.angle,
    torch.real: lambda spectrum: spectrum.real,
    torch.imag: lambda spectrum: spectrum.imag,
    torch.view_as_real: lambda spectrum: torch.stack([spectrum.real, spectrum.imag], -1),
}


def _waves(rows: int, columns: int, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(cosines, sines) of 2 pi j k / length, j counting rows and k columns; exact to the rounding of the dtype."""
    turns = torch.outer(torch.arange(rows), torch.arange(columns)) % length
    angles = turns.to(torch.float64) * (2 * math.pi / length)
    return torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)


def _scale(length: int, norm: str | None, inverse: bool) -> float:
    if norm == "ortho":
        return 1 / math.sqrt(length)
    return 1 / length if (norm == "forward") != inverse else 1.0


def _along(
    x: Spectrum, dim: int, length: int | None, norm: str | None, inverse: bool, half: bool = False
) -> Spectrum:
    """The transform along a dimension, cut or filled with zeros to a length; half of it if the rest mirrors it."""
    given = x.real.shape[dim]
    length = length or given
    rows = min(given, length)
    cosines, sines = _waves(rows, length // 2 + 1 if half else length, length, x.real.dtype)
    factor = _scale(length, norm, inverse)
    real, imag = (part.narrow(dim, 0, rows).movedim(dim, -1) for part in (x.real, x.imag))
    sines = -sines if inverse else sines
    results: tuple[torch.Tensor, ...] = (real @ cosines + imag @ sines, imag @ cosines - real @ sines)
    results = results if factor == 1 else tuple(result * factor for result in results)
    return Spectrum(*(result.movedim(-1, dim) for result in results))


def _real_along(x: Spectrum, dim: int, length: int | None, norm: str | None) -> torch.Tensor:
    """The real signal of which this is half of the spectrum."""
    length = length or 2 * (x.real.shape[dim] - 1)
    rows = min(x.real.shape[dim], length // 2 + 1)
    cosines, sines = _waves(rows, length, length, x.real.dtype)
    twice = torch.tensor([1.0 if k == 0 or 2 * k == length else 2.0 for k in range(rows)], dtype=x.real.dtype)
    real, imag = (part.narrow(dim, 0, rows).movedim(dim, -1) * twice for part in (x.real, x.imag))
    return ((real @ cosines - imag @ sines) * _scale(length, norm, True)).movedim(-1, dim)


def _transform(
    x: Any, s: Sequence[int] | None = None, dim: Sequence[int] | None = None, norm: str | None = None, *,
    inverse: bool, real: bool,
) -> Any:  # fmt: skip
    if isinstance(x, torch.Tensor):
        if x.is_complex():
            return NotImplemented
        x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
        x = Spectrum(x, torch.zeros_like(x))
    dims = list(dim) if dim is not None else list(range(x.real.dim()))
    dims = dims[-len(s) :] if s is not None and dim is None else dims
    lengths: list[int | None] = [None if n == -1 else n for n in s] if s is not None else [None] * len(dims)
    pairs = list(zip(dims, lengths, strict=True))
    if real and not inverse:
        x = _along(x, *pairs.pop(), norm, False, half=True)
    last = pairs.pop() if real and inverse else None
    for at, length in pairs:
        x = _along(x, at, length, norm, inverse)
    return x if last is None else _real_along(x, *last, norm)


def _of_one(transform: Callable) -> Callable:
    def of_one(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
        return transform(input, None if n is None else [n], [dim], norm)

    return of_one


def _of_two(transform: Callable) -> Callable:
    def of_two(
        input: Any, s: Sequence[int] | None = None, dim: Sequence[int] = (-2, -1), norm: str | None = None
    ) -> Any:
        return transform(input, s, dim, norm)

    return of_two


TABLE: dict[Any, Callable] = {}
for _inverse in (False, True):
    for _real in (False, True):
        _name = f"{'i' * _inverse}{'r' * _real}fft"
        _function = functools.partial(_transform, inverse=_inverse, real=_real)
        TABLE[getattr(torch.fft, _name)] = _of_one(_function)
        TABLE[getattr(torch.fft, f"{_name}2")] = _of_two(_function)
        TABLE[getattr(torch.fft, f"{_name}n")] = _function
