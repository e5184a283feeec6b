# SPDX-License-Identifier: BSD-3-Clause
# In: two results of one operator on the same inputs. Out: metrics of their difference, and whether rounding explains
# it. The effect of rounding is measured: the operator runs again, in float64, on inputs that are perturbed by one
# rounding.
"""`measure` computes the difference of two tensors; `judge` decides whether it is a fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchette.devtools.diff.operators import tensors

# Allowed error in roundings: of the result (MAX_RESULT_ROUNDINGS), and of the inputs (MAX_INPUT_ROUNDINGS).
MAX_RESULT_ROUNDINGS, MAX_INPUT_ROUNDINGS = 8, 32

_TINY = 5e-324

Run = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True)
class Numbers:
    """Metrics of the difference between a tensor and its expected value.

    Attributes:
        max_abs: maximum absolute difference; infinite if an element is NaN in only one tensor.
        snr: signal-to-noise ratio in decibels, 10 log10(sum of squares / sum of squared differences); infinite if
            equal.
        cosine: cosine similarity of the flattened tensors.
        ulp: maximum difference in units in the last place of the expected element.
    """

    max_abs: float
    snr: float
    cosine: float
    ulp: float

    def worse(self, other: Numbers) -> Numbers:
        """Returns the worse value of each metric."""
        return Numbers(
            max(self.max_abs, other.max_abs),
            min(self.snr, other.snr),
            min(self.cosine, other.cosine),
            max(self.ulp, other.ulp),
        )


EQUAL = Numbers(0.0, math.inf, 1.0, 0.0)


def measure(actual: Tensor, expected: Tensor) -> Numbers:
    """Compares two tensors of one shape. Equal infinities are equal, and so are two NaNs."""
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
    """Returns the distance between adjacent values of a dtype near each element."""
    info = torch.finfo(dtype)
    return (
        torch.clamp(torch.exp2(torch.floor(torch.log2(x.abs().clamp(min=info.tiny)))), max=info.max)
        * info.eps
    )


@dataclass(frozen=True)
class Verdict:
    """Whether results depart, the reason, and the metrics of the worst result."""

    departs: bool
    reason: str
    numbers: Numbers


def judge(actual: Sequence[Any], run: Run, inputs: Sequence[Any], growth: float = 1.0) -> Verdict:
    """Compares the results of a kernel with those of `run` on the same inputs.

    Args:
        actual: the kernel's results: tensors, scalars, or None for values that are not compared.
        run: computes the expected results from inputs, which can be float64 instead of their own dtype.
        inputs: tensors and other values that the kernel read.
        growth: factor by which the error of long sums can exceed a single rounding; see `growth_of`.

    Raises:
        NoReference: torch cannot run the operator on these inputs.
    """
    failure: Exception | None = None
    actual = _flat(actual)

    def compute(values: list[Any]) -> list[Any]:
        return _flat(run(values))

    try:
        native: list[Any] | None = compute(list(inputs))
    except Exception as error:  # torch lacks some 16-bit kernels
        native, failure = None, error
    if native is not None and _equal(actual, native):
        return Verdict(False, "", EQUAL)
    wide = _try(compute, [_widened(item) for item in inputs])
    if native is None and wide is None:
        raise NoReference(str(failure)) from failure
    worst = Verdict(False, "", EQUAL)
    perturbed: list[list[Any]] | None = None
    infinite = not all(bool(item.isfinite().all()) for item in tensors(inputs))
    best: list[Any] = wide or native or []
    for number, result in enumerate(actual):
        exact = best[number]
        rounded = native[number] if native is not None else exact
        if result is None or exact is None:
            continue
        if not isinstance(result, Tensor):
            if not _same_number(result, rounded):
                return Verdict(
                    True, f"is {result}, expected {rounded}", Numbers(math.inf, -math.inf, 0.0, math.inf)
                )
            continue
        exact = exact if isinstance(exact, Tensor) else torch.as_tensor(exact)
        rounded = rounded if isinstance(rounded, Tensor) else torch.as_tensor(rounded)
        if result.shape != exact.shape:
            text = f"has shape {list(result.shape)}, expected {list(exact.shape)}"
            return Verdict(True, text, Numbers(math.inf, -math.inf, 0.0, math.inf))
        if torch.equal(result, rounded.to(result.dtype)):
            continue
        if perturbed is None:
            perturbed = [
                results
                for results in (_try(compute, _perturb(inputs, seed, wide is not None)) for seed in (1, 2))
                if results is not None
            ]
        verdict = _one(
            result, rounded, exact, [results[number] for results in perturbed or ()], growth, infinite
        )
        if verdict.departs:
            return verdict
        worst = Verdict(False, "", worst.numbers.worse(verdict.numbers))
    return worst


class NoReference(Exception):
    """torch cannot run the operator on these inputs."""


def _one(
    actual: Tensor, rounded: Tensor, exact: Tensor, perturbed: list[Tensor], growth: float, infinite: bool
) -> Verdict:
    a, e, r = _wide(actual), _wide(exact), _wide(rounded)
    numbers = measure(actual, rounded)
    response = torch.zeros_like(e)
    for perturbed_values in map(_wide, perturbed):
        same = (perturbed_values == e) | (perturbed_values.isnan() & e.isnan())
        change = torch.nan_to_num((perturbed_values - e).abs(), nan=math.inf, posinf=math.inf)
        response = torch.maximum(response, torch.where(same, 0.0, change))
    finite = e.isfinite() & r.isfinite()
    if not actual.dtype.is_floating_point and not actual.is_complex():
        wrong = (a != r) & (a != e) & (response == 0)
        if not bool(wrong.any()):
            return Verdict(False, "", numbers)
        return Verdict(True, f"{int(wrong.sum())} of {a.numel()} elements differ", numbers)
    info = torch.finfo(actual.dtype)
    kind = (a.isnan() != r.isnan()) | (a.isinf() != r.isinf()) | (a.isinf() & (a != r))
    if infinite:  # an infinite input can produce an infinity or NaN
        kind = a.isfinite() != r.isfinite()
    agreed = (e.isnan() == r.isnan()) & (e.isinf() == r.isinf()) & (e.isfinite() | (e == r) | e.isnan())
    odd = kind & agreed & (response != math.inf) & ~(finite & (e.abs() > 0.9 * info.max))
    if bool(odd.any()):
        at = int(odd.flatten().nonzero()[0])
        text = f"{int(odd.sum())} of {a.numel()} elements have an unexpected infinity, NaN or finite value, such as {a.flatten()[at]} instead of {r.flatten()[at]}"
        return Verdict(True, text, numbers)
    finite_response = response[response.isfinite() & finite]
    typical = float(finite_response.square().mean().sqrt()) if finite_response.numel() else 0.0
    theirs = (r - e).abs()[finite]
    most = float(theirs.max()) if theirs.numel() else 0.0
    allowed = (
        info.eps * MAX_RESULT_ROUNDINGS * e.abs()
        + growth * MAX_INPUT_ROUNDINGS * (response + typical)
        + 4 * most
        + 2 * info.tiny
    )
    beyond = ((a - e).abs() > allowed) & finite & a.isfinite()
    if not bool(beyond.any()):
        return Verdict(False, "", numbers)
    excess = torch.where(beyond, (a - e).abs() / allowed, torch.zeros_like(a))
    at = int(excess.argmax())
    text = (
        f"{int(beyond.sum())} of {a.numel()} elements exceed the rounding error, the worst by a factor of "
        f"{excess.flatten()[at]:.3g}: {a.flatten()[at]:.6g} instead of {e.flatten()[at]:.6g}"
    )
    return Verdict(True, text, numbers)


def growth_of(inputs: Sequence[Any], outputs: Sequence[Any], pointwise: bool) -> float:
    """Estimates the factor by which the error of a sum exceeds one rounding: the square root of its number of terms.

    The number of terms is estimated from the sizes of inputs and outputs.
    """
    sizes = sorted((item.numel() for item in tensors(inputs) if item.is_floating_point()), reverse=True)
    out = max((item.numel() for item in tensors(outputs)), default=0)
    if pointwise or not sizes or not out:
        return 1.0
    terms = max(sizes[0] / out, math.sqrt(sizes[0] * sizes[1] / out) if len(sizes) > 1 else 1.0, 1.0)
    return min(math.sqrt(terms), 64.0)


def _flat(values: Sequence[Any]) -> list[Any]:
    """Returns the items of nested lists."""
    items: list[Any] = []
    for value in values:
        items += _flat(value) if isinstance(value, (list, tuple)) else [value]
    return items


def _equal(actual: Sequence[Any], expected: Sequence[Any]) -> bool:
    for actual_item, expected_item in zip(actual, expected, strict=False):
        if actual_item is None or expected_item is None:
            continue
        if isinstance(actual_item, Tensor) and isinstance(expected_item, Tensor):
            if (
                actual_item.shape != expected_item.shape
                or actual_item.dtype != expected_item.dtype
                or not _same_elements(actual_item, expected_item)
            ):
                return False
        elif not _same_number(actual_item, expected_item):
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
    """Returns floating-point tensors as float64, also in lists."""
    if isinstance(value, Tensor):
        if value.is_complex():
            return value.to(torch.complex128)
        return value.to(torch.float64) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return [_widened(item) for item in value]
    return value


def _perturb(inputs: Sequence[Any], seed: int, wide: bool) -> list[Any]:
    """Perturbs each input element by one rounding of its dtype, up or down at random; returns float64 if `wide`."""
    generator = torch.Generator().manual_seed(seed)

    def perturbed(value: object) -> Any:
        if isinstance(value, (list, tuple)):
            return [perturbed(item) for item in value]
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        exact = _widened(value)
        signs = torch.randint(0, 2, value.shape, generator=generator).double() * 2 - 1
        moved = exact * (1 + signs * torch.finfo(value.dtype).eps)
        return moved if wide else moved.to(value.dtype)

    return [perturbed(value) for value in inputs]


def _try(run: Run, inputs: list[Any]) -> list[Any] | None:
    try:
        return run(inputs)
    except Exception:  # torch may lack a float64 kernel
        return None
