# SPDX-License-Identifier: BSD-3-Clause
# Two results of one operator on the same inputs come in; numbers about their difference go out, and whether rounding can
# explain it. What rounding can do is measured, not assumed: the operator is run again, in float64, on inputs that are off
# by one rounding.
"""`measure`: how far two tensors are apart. `judge`: whether that is a fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchette.devtools.diff.operators import tensors

# How many roundings of its own result, and of its inputs, an implementation may be off.
OWN, INPUTS = 8, 32

_TINY = 5e-324

Run = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True)
class Numbers:
    """How far a tensor is from what it should be.

    Attributes:
        max_abs: the largest difference of two elements; infinite where one of them is no number.
        snr: signal to noise in decibels, 10 log10(sum of squares / sum of squared differences); infinite where equal.
        cosine: of the angle between the two as vectors.
        ulp: the largest difference in units in the last place of the element that should be there.
    """

    max_abs: float
    snr: float
    cosine: float
    ulp: float

    def worse(self, other: Numbers) -> Numbers:
        """The worse of each number."""
        return Numbers(
            max(self.max_abs, other.max_abs),
            min(self.snr, other.snr),
            min(self.cosine, other.cosine),
            max(self.ulp, other.ulp),
        )


EQUAL = Numbers(0.0, math.inf, 1.0, 0.0)


def measure(actual: Tensor, expected: Tensor) -> Numbers:
    """The difference of two tensors of one shape; elements that are the same infinity or both NaN do not differ."""
    if actual.numel() == 0:
        return EQUAL
    dtype = actual.dtype
    a, b = _wide(actual), _wide(expected)
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return EQUAL
    difference = torch.where(same, torch.zeros_like(a), a - b).abs()
    difference = torch.nan_to_num(difference, nan=math.inf, posinf=math.inf)
    a, b = (torch.where(same & ~each.isfinite(), torch.zeros_like(each), each) for each in (a, b))
    signal, noise = float((b * b).sum()), float((difference * difference).sum())
    if math.isnan(signal) or not noise < math.inf:
        snr = -math.inf
    else:
        snr = 10 * (math.log10(max(signal, _TINY)) - math.log10(max(noise, _TINY)))
    lengths = float(a.norm() * b.norm())
    cosine = float((a * b).sum()) / lengths if 0 < lengths < math.inf else 0.0
    ulp = (
        float((difference / _last_place(b, dtype)).max())
        if dtype.is_floating_point
        else float(difference.max())
    )
    return Numbers(float(difference.max()), snr, cosine, ulp)


def _wide(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.detach().to(torch.float64)


def _last_place(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance of two neighbours of a dtype near each element."""
    facts = torch.finfo(dtype)
    return (
        torch.clamp(torch.exp2(torch.floor(torch.log2(x.abs().clamp(min=facts.tiny)))), max=facts.max)
        * facts.eps
    )


@dataclass(frozen=True)
class Verdict:
    """Whether results depart, what was expected, and the numbers of the worst of them."""

    departs: bool
    reason: str
    numbers: Numbers


def judge(actual: Sequence[Any], run: Run, inputs: Sequence[Any], growth: float = 1.0) -> Verdict:
    """Compares what a kernel has written with what `run` yields on the same inputs.

    Args:
        actual: the kernel's results: tensors, numbers, or None for what is not compared.
        run: computes the results from inputs, whose floats may be float64 instead.
        inputs: tensors and other values, as the kernel has read them.
        growth: how many times more a long sum may be off than a single rounding; see `growth_of`.
    """
    failure: Exception | None = None
    actual = _flat(actual)

    def compute(values: list[Any]) -> list[Any]:
        return _flat(run(values))

    try:
        native: list[Any] | None = compute(list(inputs))
    except Exception as error:  # torch lacks some kernels of 16 bits
        native, failure = None, error
    if native is not None and _equal(actual, native):
        return Verdict(False, "", EQUAL)
    wide = _try(compute, [_widened(item) for item in inputs])
    if native is None and wide is None:
        raise NoReference(str(failure)) from failure
    worst = Verdict(False, "", EQUAL)
    shaken: list[list[Any]] | None = None
    infinite = not all(bool(item.isfinite().all()) for item in tensors(inputs))
    best: list[Any] = wide or native or []
    for number, given in enumerate(actual):
        exact = best[number]
        rounded = native[number] if native is not None else exact
        if given is None or exact is None:
            continue
        if not isinstance(given, Tensor):
            if not _same_number(given, rounded):
                return Verdict(
                    True, f"is {given}, should be {rounded}", Numbers(math.inf, -math.inf, 0.0, math.inf)
                )
            continue
        exact = exact if isinstance(exact, Tensor) else torch.as_tensor(exact)
        rounded = rounded if isinstance(rounded, Tensor) else torch.as_tensor(rounded)
        if given.shape != exact.shape:
            text = f"has the shape {list(given.shape)}, should have {list(exact.shape)}"
            return Verdict(True, text, Numbers(math.inf, -math.inf, 0.0, math.inf))
        if torch.equal(given, rounded.to(given.dtype)):
            continue
        if shaken is None:
            shaken = [
                found
                for found in (_try(compute, _shake(inputs, seed, wide is not None)) for seed in (1, 2))
                if found is not None
            ]
        verdict = _one(given, rounded, exact, [found[number] for found in shaken or ()], growth, infinite)
        if verdict.departs:
            return verdict
        worst = Verdict(False, "", worst.numbers.worse(verdict.numbers))
    return worst


class NoReference(Exception):
    """There is nothing to compare with: torch cannot run the operator on these inputs."""


def _one(
    given: Tensor, rounded: Tensor, exact: Tensor, shaken: list[Tensor], growth: float, infinite: bool
) -> Verdict:
    a, e, r = _wide(given), _wide(exact), _wide(rounded)
    numbers = measure(given, rounded)
    response = torch.zeros_like(e)
    for other in map(_wide, shaken):
        same = (other == e) | (other.isnan() & e.isnan())
        change = torch.nan_to_num((other - e).abs(), nan=math.inf, posinf=math.inf)
        response = torch.maximum(response, torch.where(same, 0.0, change))
    finite = e.isfinite() & r.isfinite()
    if not given.dtype.is_floating_point and not given.is_complex():
        wrong = (a != r) & (a != e) & (response == 0)
        if not bool(wrong.any()):
            return Verdict(False, "", numbers)
        return Verdict(True, f"{int(wrong.sum())} of {a.numel()} elements differ", numbers)
    facts = torch.finfo(given.dtype)
    kind = (a.isnan() != r.isnan()) | (a.isinf() != r.isinf()) | (a.isinf() & (a != r))
    if infinite:  # an infinity that goes in may come out as one or as NaN
        kind = a.isfinite() != r.isfinite()
    agreed = (e.isnan() == r.isnan()) & (e.isinf() == r.isinf()) & (e.isfinite() | (e == r) | e.isnan())
    odd = kind & agreed & (response != math.inf) & ~(finite & (e.abs() > 0.9 * facts.max))
    if bool(odd.any()):
        at = int(odd.flatten().nonzero()[0])
        text = f"{int(odd.sum())} of {a.numel()} elements are of another kind, such as {a.flatten()[at]} for {r.flatten()[at]}"
        return Verdict(True, text, numbers)
    settled = response[response.isfinite() & finite]
    typical = float(settled.square().mean().sqrt()) if settled.numel() else 0.0
    theirs = (r - e).abs()[finite]
    most = float(theirs.max()) if theirs.numel() else 0.0
    allowed = facts.eps * OWN * e.abs() + growth * INPUTS * (response + typical) + 4 * most + 2 * facts.tiny
    beyond = ((a - e).abs() > allowed) & finite & a.isfinite()
    if not bool(beyond.any()):
        return Verdict(False, "", numbers)
    excess = torch.where(beyond, (a - e).abs() / allowed, torch.zeros_like(a))
    at = int(excess.argmax())
    text = (
        f"{int(beyond.sum())} of {a.numel()} elements are off by more than rounding can be, one by "
        f"{excess.flatten()[at]:.3g} times that: {a.flatten()[at]:.6g} for {e.flatten()[at]:.6g}"
    )
    return Verdict(True, text, numbers)


def growth_of(inputs: Sequence[Any], outputs: Sequence[Any], pointwise: bool) -> float:
    """How much more than one rounding a result may be off that sums many terms: the root of their number, estimated
    from the sizes of what goes in and out."""
    sizes = sorted((item.numel() for item in tensors(inputs) if item.is_floating_point()), reverse=True)
    out = max((item.numel() for item in tensors(outputs)), default=0)
    if pointwise or not sizes or not out:
        return 1.0
    terms = max(sizes[0] / out, math.sqrt(sizes[0] * sizes[1] / out) if len(sizes) > 1 else 1.0, 1.0)
    return min(math.sqrt(terms), 64.0)


def _flat(values: Sequence[Any]) -> list[Any]:
    """Lists of tensors taken apart."""
    found: list[Any] = []
    for value in values:
        found += _flat(value) if isinstance(value, (list, tuple)) else [value]
    return found


def _equal(actual: Sequence[Any], expected: Sequence[Any]) -> bool:
    for given, wanted in zip(actual, expected, strict=False):
        if given is None or wanted is None:
            continue
        if isinstance(given, Tensor) and isinstance(wanted, Tensor):
            if (
                given.shape != wanted.shape
                or given.dtype != wanted.dtype
                or not _same_elements(given, wanted)
            ):
                return False
        elif not _same_number(given, wanted):
            return False
    return True


def _same_elements(a: Tensor, b: Tensor) -> bool:
    if a.is_complex():
        a, b = (torch.view_as_real(each.resolve_conj()) for each in (a, b))
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _same_number(a: object, b: object) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return bool(_same_elements(torch.as_tensor(a).double(), torch.as_tensor(b).double()))
    if isinstance(a, float) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-12) or (math.isnan(a) and math.isnan(b)) or a == b
    return bool(a == b)


def _widened(value: object) -> Any:
    """Floats as float64, also those in lists."""
    if isinstance(value, Tensor):
        if value.is_complex():
            return value.to(torch.complex128)
        return value.to(torch.float64) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return [_widened(item) for item in value]
    return value


def _shake(inputs: Sequence[Any], seed: int, wide: bool) -> list[Any]:
    """The inputs, as float64 if `wide`, each element off by one rounding of its own dtype, up or down at random."""
    generator = torch.Generator().manual_seed(seed)

    def shaken(value: object) -> Any:
        if isinstance(value, (list, tuple)):
            return [shaken(item) for item in value]
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        exact = _widened(value)
        signs = torch.randint(0, 2, value.shape, generator=generator).double() * 2 - 1
        moved = exact * (1 + signs * torch.finfo(value.dtype).eps)
        return moved if wide else moved.to(value.dtype)

    return [shaken(value) for value in inputs]


def _try(run: Run, inputs: list[Any]) -> list[Any] | None:
    try:
        return run(inputs)
    except Exception:  # torch may have no such kernel for float64
        return None
