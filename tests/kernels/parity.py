# SPDX-License-Identifier: BSD-3-Clause
# Checks the operators of torch's sample database against eager: which samples export, compile, run and return the same
# results, per dtype. Several samples share a program, because capture and compilation have a fixed cost. As a command,
# it checks all operators and writes the table that `torchette ops --coverage` shows.
"""Checks the operators against eager and stores the result.

python -m tests.kernels.parity [--samples N] [--dtypes float32,int64] [--out FILE] [operator ...]
"""

from __future__ import annotations

import argparse
import functools
import gc
import hashlib
import itertools
import json
import logging
import os
import sys
import unittest.mock
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import torchette
from tests.kernels import direct
from tests.kernels.machine import Machine, kernels_of
from tests.kernels.test_special import EXACT
from torchette.cli.ops import DTYPES as COLUMNS
from torchette.cli.ops import stored as read
from torchette.exir import EdgeCompileConfig, ops

EXCLUSIONS = Path(__file__).with_name("parity_exclusions.json")
RESULT = Path(torchette.__file__).parent / "kernels" / "parity.json"
SAMPLES = 6
# Operators for which the order of equal elements is unspecified.
WITH_TIES = {"argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk"}
# Number of draws per side for random samples, and the maximum Kolmogorov-Smirnov distance of an element. Two samples of
# the same distribution exceed this distance once in 10^9 times.
DRAWS, APART = 400, 0.23
# Vectors are unique up to signs, or up to rotations for equal values, so the comparison uses products of the factors
# and their orthogonality. Eigenvalues may be in any order.
FACTORS: dict[str, Callable] = {
    "linalg.eigh": lambda w, v: [w, (v * w.unsqueeze(-2)) @ v.mT, v.mT @ v],
    "linalg.eig": lambda w, v: _eigen(w, v),
    "linalg.eigvals": lambda w: _eigen(w),
    "linalg.svd": lambda u, s, vh: [s, _product(u, s, vh), u.mT @ u, vh @ vh.mT],
    "svd": lambda u, s, v: [s, _product(u, s, v.mT), u.mT @ u, v.mT @ v],
}
# The results of these operators are uninitialized or random (tests/kernels/test_random.py checks the distributions), so
# only shape and dtype are compared.
WITHOUT_VALUES = {
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "normal",
    "normal.in_place",
    "normal.number_mean",
    "pca_lowrank",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "svd_lowrank",
    "uniform",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_as_",
}


def _of_thirty_digits(name: str) -> Callable:
    def right(theirs: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if theirs.dtype != torch.float64:
            return theirs
        values = [float(EXACT[name](value).real) for value in x.flatten().tolist()]
        return torch.where(theirs.isfinite(), torch.tensor(values).reshape(x.shape), theirs)

    return right


def _trigamma_at_its_poles(theirs: torch.Tensor, x: torch.Tensor, n: int) -> torch.Tensor:
    is_pole = (x <= 0) & x.isfinite() & (x.double() == x.double().floor())
    return torch.where(is_pole, torch.inf, theirs) if n == 1 else theirs


# Corrections for results in which eager is inaccurate: functions of its result and the operands. In float64, its Bessel
# functions have six correct digits. Its trigamma rounds pi and misses the poles: 2e13 instead of infinity.
RIGHT: dict[str, Callable] = {
    **{f"special.{name}": _of_thirty_digits(name) for name in EXACT if name.startswith(("airy", "bessel"))},
    **{f"polygamma.polygamma_n_{n}": _trigamma_at_its_poles for n in range(5)},
    "special.polygamma.special_polygamma_n_0": _trigamma_at_its_poles,
}
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
        torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip


@dataclass
class Sample:
    """A call of an operator: sample `index` of a dtype."""

    operator: str
    dtype: str
    index: int
    function: Callable
    args: tuple
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.operator}:{self.dtype}#{self.index}"

    def tensors(self) -> list[torch.Tensor]:
        return [
            leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)
        ]

    def call(self, tensors: Iterator[torch.Tensor]) -> list[Any]:
        """Returns the flattened results, with the sample's tensors replaced."""
        leaves, tree = pytree.tree_flatten((self.args, self.kwargs))
        args, kwargs = pytree.tree_unflatten(
            [next(tensors) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], tree
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated operators, empty reductions
            return pytree.tree_leaves(self.function(*args, **kwargs))

    def eager(self, convert: Callable[[torch.Tensor], torch.Tensor] = torch.clone) -> list[Any]:
        torch.manual_seed(0)
        return self.call(map(convert, self.tensors()))

    def drawn(
        self, times: int, convert: Callable[[torch.Tensor], torch.Tensor] = torch.clone
    ) -> list[list[Any]]:
        """Returns the results of `times` calls with different seeds. Replaces the seed that torch's samples set."""
        set_seed, results = torch.manual_seed, []
        for seed in range(times):
            with unittest.mock.patch.object(torch, "manual_seed", lambda _, seed=seed: set_seed(seed)):
                results.append(self.eager(convert))
        return results

    def __str__(self) -> str:
        def text(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"

        args, kwargs = pytree.tree_map(text, (self.args, self.kwargs))
        shown_args = ", ".join([*map(str, args), *(f"{name}={value}" for name, value in kwargs.items())])
        return f"{self.name}({shown_args})"


class Calls(torch.nn.Module):
    """A model that makes several calls. Its inputs are the tensors of all calls in sequence. A file cannot contain
    complex tensors, so they are passed as pairs of real values."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__()
        self.samples = samples

    def forward(self, *tensors: torch.Tensor) -> tuple:
        values = iter(tensors[1:])  # the first input exists so that every model has one
        return tuple(
            tuple(
                map(
                    paired,
                    sample.call(
                        torch.view_as_complex(next(values)) if tensor.is_complex() else next(values)
                        for tensor in sample.tensors()
                    ),
                )
            )
            for sample in self.samples
        )


def paired(value: Any) -> Any:
    return (
        torch.view_as_real(value.resolve_conj())
        if isinstance(value, torch.Tensor) and value.is_complex()
        else value
    )


# ---- Samples ----


@functools.cache
def operators() -> dict[str, Any]:
    """Returns every operator of torch's database by name."""
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db

    common_utils.extract_test_fn = lambda: None  # inspects the stack, 20 ms per operator

    return {".".join(filter(None, (op.name, op.variant_test_name))): op for op in op_db}


@functools.cache
def exclusions() -> dict[str, tuple[str, str]]:
    """Samples that are rejected ahead of time and therefore not compared: `operator`, `operator:dtype`,
    `operator#sample` or `operator:dtype#sample` -> (reason, error code)."""
    groups = json.loads(EXCLUSIONS.read_text())
    return {name: (group["reason"], group["code"]) for group in groups for name in group["names"]}


def is_excluded(sample: Sample) -> bool:
    name, dtype, index = sample.operator, sample.dtype, sample.index
    keys = (name, f"{name}:{dtype}", f"{name}#{index}", f"{name}:{dtype}#{index}")
    return any(key in exclusions() for key in keys)


def dtypes(name: str) -> list[str]:
    """Returns the dtypes that both eager and the runtime support for the operator."""
    supported = operators()[name].supported_dtypes("cpu")
    return [dtype for dtype, value in DTYPES.items() if value in supported]


def two_dtypes(name: str) -> list[str]:
    """Returns float32 (or the first supported dtype) and one other dtype, which varies with the operator."""
    names = dtypes(name)
    return names[:1] + names[1:][len(name) % max(1, len(names) - 1) :][:1]


def samples(name: str, dtype: str, limit: int) -> list[Sample]:
    """Returns at most `limit` samples of an operator, without samples that eager rejects."""
    return [sample for sample in database(name, dtype, limit) if eager_accepts(sample)]


def database(name: str, dtype: str, limit: int) -> list[Sample]:
    """Returns at most `limit` samples of an operator, evenly selected from its first 16 * limit samples."""
    torch.manual_seed(int.from_bytes(hashlib.sha256(f"{name} {dtype}".encode()).digest()[:4], "little"))
    op = operators()[name]
    # some operators have a thousand slow samples
    candidates = list(itertools.islice(sample_inputs(op, DTYPES[dtype]), 16 * limit))
    count = min(limit, len(candidates))
    chosen = (
        [i * (len(candidates) - 1) // (count - 1) for i in range(count)]
        if count > 1
        else [len(candidates) // 2][:count]
    )
    return [
        Sample(name, dtype, i, op.op, (candidates[i].input, *candidates[i].args), dict(candidates[i].kwargs))
        for i in chosen
    ]


def sample_inputs(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    """Returns the samples of an operator in torch's database."""
    from torch.testing._internal.opinfo import core

    # torch searches the call stack for its own test, which takes 40 ms under pytest.
    with unittest.mock.patch.object(core, "extract_test_fn", return_value=None):
        return iter(op.sample_inputs("cpu", dtype, requires_grad=False))


def eager_accepts(sample: Sample) -> bool:
    try:
        sample.eager()
    except (RuntimeError, ValueError, NotImplementedError, AssertionError):
        return False
    return True


# ---- Comparison ----


@dataclass
class Tally:
    """The results of checked samples."""

    passed: list[Sample] = field(default_factory=list)
    failed: list[tuple[Sample, str]] = field(default_factory=list)
    kernels: Counter = field(default_factory=Counter)
    """(kernel, dtype of its first tensor) -> number of calls in programs that match eager"""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.passed + other.passed,
            self.failed + other.failed,
            self.kernels + other.kernels,
        )


def compiled(
    batch: Sequence[Sample], train_mode: bool = False, backend: Any = "auto"
) -> tuple[Any, list[torch.Tensor]]:
    """Compiles a program that makes these calls. Returns the program and its inputs."""
    inputs = [torch.zeros(1), *(paired(tensor) for sample in batch for tensor in sample.tensors())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        edge = EdgeCompileConfig(train_mode=train_mode)
        return torchette.compile(Calls(batch).eval(), tuple(inputs), backend=backend, edge=edge), inputs


def hold(batch: Sequence[Sample]) -> Tally:
    """Compiles and runs samples, in one program if possible, and compares each sample with eager."""
    if not batch:
        return Tally()
    try:
        model, inputs = compiled(batch)
        results = model(*map(torch.clone, inputs))
    except torchette.TorchetteError as error:
        if len(batch) > 1:
            half = len(batch) // 2
            return hold(batch[:half]) + hold(batch[half:])
        if error.code == "train-mode":
            return hold_drawn(batch[0])
        text = " ".join(str(error).split())
        return Tally(failed=[(batch[0], f"{type(error).__name__} [{error.code}] {text[:300]}")])
    problems = [difference(sample, list(result)) for sample, result in zip(batch, results, strict=True)]
    failed = [
        (sample, problem) for sample, problem in zip(batch, problems, strict=True) if problem is not None
    ]
    if failed:
        right = [sample for sample, problem in zip(batch, problems, strict=True) if problem is None]
        return hold(right) + Tally(failed=failed)
    return Tally(passed=list(batch), kernels=kernels(model))


def hold_directly(
    sample: Sample, describe: Callable[[Sample, list[Any]], str | None] | None = None
) -> Tally | None:
    """Runs a sample directly on the kernels. Returns None if the sample must be compiled instead.

    `describe` describes the difference of results from eager's, by default `difference`.
    """
    inputs = iter([tensor.clone() for tensor in sample.tensors()])
    torch.manual_seed(0)
    try:
        results, called = direct.compute(lambda: sample.call(inputs))
    except (direct.NotDirect, RuntimeError, TypeError, NotImplementedError):
        return None
    except AssertionError as error:
        return Tally(failed=[(sample, f"a kernel of it: {error}")])
    if not called or (describe or difference)(sample, list(map(paired, results))) is not None:
        return None
    return Tally(passed=[sample], kernels=called)


def hold_elsewhere(batch: Sequence[Sample], machine: Machine) -> Tally:
    """Like `hold_directly`, with the kernels of another machine. If the kernels of this process compute a sample
    correctly, the machine's kernels must do so too. Other samples are not in the tally."""
    total = Tally()
    for sample in batch:
        with kernels_of(machine):
            tally = hold_directly(sample, _unstable)
        if tally is None and (here := hold_directly(sample)) is not None and here.passed:
            tally = Tally(failed=[(sample, "differs from the kernels of this process")])
        total += tally or Tally()
    return total


def _unstable(sample: Sample, values: list[Any]) -> str | None:
    """Like `difference`, but accepts the exact results of inputs that are at most one ulp apart from the sample's.

    ARMv7 rounds each product and each sum, other processors only their sum. The logits of an attention sample are 79, so
    one ulp of them changes its results by 1e-5, more than eager's error.
    """
    problem = difference(sample, values)
    if problem is None or not all(isinstance(ours, torch.Tensor) for ours in values):
        return problem
    exact = _exact(sample, len(values))
    if None in exact or any(ours.shape != right.shape for ours, right in zip(values, exact, strict=True)):
        return problem
    generator = torch.Generator().manual_seed(0)

    def near(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x.clone()
        signs = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
        return x.double() * (1 + signs * torch.finfo(x.dtype).eps)

    nearby = [sample.eager(near) for _ in range(16)]
    for index, (ours, right) in enumerate(zip(values, exact, strict=True)):
        change = max((paired(results[index]) - right).abs().max() for results in nearby)
        if not (ours.double() - right).abs().max() <= change:
            return problem
    return None


def hold_drawn(sample: Sample) -> Tally:
    """Checks a sample that is random in training mode: each element must have the same distribution as in eager."""
    model, inputs = compiled([sample], train_mode=True)
    theirs = sample.drawn(DRAWS)
    ours = [pytree.tree_leaves(model(*inputs)) for _ in range(DRAWS)]
    for index, (a, b) in enumerate(zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True)):
        if (a[0].dtype, a[0].shape) != (b[0].dtype, b[0].shape):
            return Tally(failed=[(sample, f"result {index} is a {a[0].dtype}{list(a[0].shape)}")])
        if not _alike(torch.stack(a), torch.stack(b)):
            exact = torch.stack([draw[index] for draw in sample.drawn(DRAWS, _wide)])
            if not _alike_as_eager(torch.stack(a), torch.stack(b), exact):
                return Tally(failed=[(sample, f"result {index} is of another distribution")])
    return Tally(passed=[sample], kernels=kernels(model))


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the rows of both tensors follow the same distribution, per element and up to rounding."""
    lag = int(APART * len(a))
    near = torch.finfo(a.dtype).eps ** 0.75
    a, b = (x.double().nan_to_num().sort(0)[0] for x in (a, b))
    return all(bool((x[:-lag] <= y[lag:] + near * (1 + y[lag:].abs())).all()) for x, y in ((a, b), (b, a)))


def _alike_as_eager(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether the distribution of `ours` is as close to float64 as that of eager, within the tolerance of `_as_good_as_eager`."""
    unit = torch.finfo(theirs.dtype).eps * exact.abs().max()
    return bool(_quantile_distance(ours, exact) <= 2 * _quantile_distance(theirs, exact) + 2 * unit)


def _quantile_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Returns the largest difference of the rows' quantiles that exceeds chance, over all elements, or 0."""
    lag = int(APART * len(a))
    a, b = (x.double().nan_to_num().sort(0)[0] for x in (a, b))
    return torch.maximum((a[:-lag] - b[lag:]).max(), (b[:-lag] - a[lag:]).max()).clamp(min=0)


def difference(sample: Sample, results: list[Any]) -> str | None:
    """Describes the difference from the results of eager, or returns None."""
    expected = list(map(paired, sample.eager()))
    if sample.operator in RIGHT:
        expected = [RIGHT[sample.operator](theirs, *sample.args) for theirs in expected]
    if len(results) != len(expected):
        return f"{len(results)} results instead of {len(expected)}"
    exact: list[Any] | None = None
    for index, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        if sample.operator in WITHOUT_VALUES and isinstance(theirs, torch.Tensor):
            if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
                return f"result {index} is a {ours.dtype}{list(ours.shape)}"
            continue
        if not isinstance(theirs, torch.Tensor):
            if ours != theirs and not (ours != ours and theirs != theirs):
                return f"result {index} is {ours} instead of {theirs}"
            continue
        try:
            torch.testing.assert_close(ours, theirs, equal_nan=True)
        except AssertionError as error:
            if _ties(sample, ours, theirs):
                continue
            if _other_vectors(sample, results, expected):
                return None
            exact = exact or _exact(sample, len(expected))
            if not _as_good_as_eager(ours, theirs, exact[index]):
                return f"result {index}: {' '.join(str(error).split())[:300]}"
    return None


def _ties(sample: Sample, ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether both index tensors select equal elements along the same dimension. Ties may be in any order."""
    x = sample.args[0]
    if sample.operator not in WITH_TIES or ours.dtype != torch.int64 or ours.shape != theirs.shape:
        return False
    for dim in range(x.dim()):
        a, b = (indices if indices.dim() == x.dim() else indices.unsqueeze(dim) for indices in (ours, theirs))
        fits = all(m <= n or d == dim for d, (m, n) in enumerate(zip(a.shape, x.shape, strict=True)))
        if not fits or a.min() < 0 or max(a.max(), b.max()) >= x.shape[dim]:
            continue
        if torch.allclose(x.gather(dim, a), x.gather(dim, b), 0, 0, equal_nan=True):
            return True
    return False


def _eigen(w: torch.Tensor, v: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Returns the sorted eigenvalues (by real, then imaginary part) and the projections to the unit eigenvectors."""
    places = w[..., 1].argsort(dim=-1, stable=True)
    places = places.gather(-1, w[..., 0].gather(-1, places).argsort(dim=-1, stable=True)).unsqueeze(-1)
    values = w.gather(-2, places.expand_as(w))
    if v is None:
        return [values]
    rows = torch.view_as_complex(v.contiguous()).mT
    rows = rows.gather(-2, places.expand_as(rows))
    return [values, torch.view_as_real(rows.unsqueeze(-1) * rows.conj().unsqueeze(-2))]


def _product(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> torch.Tensor:
    return (u[..., : s.shape[-1]] * s.unsqueeze(-2)) @ vh[..., : s.shape[-1], :]


def _other_vectors(sample: Sample, ours: list[Any], theirs: list[Any]) -> bool:
    """Whether both are valid results for the same matrix, up to the freedom that FACTORS describes."""
    if sample.operator not in FACTORS or [(x.dtype, x.shape) for x in ours] != [
        (x.dtype, x.shape) for x in theirs
    ]:
        return False
    actual, expected = (
        FACTORS[sample.operator](*(x.double() for x in results)) for results in (ours, theirs)
    )
    unit = 64 * torch.finfo(theirs[0].dtype).eps
    return all(
        torch.allclose(a, b, 0, unit * max(1, b.abs().max())) for a, b in zip(actual, expected, strict=True)
    )


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor.clone()


def _exact(sample: Sample, count: int) -> list[Any]:
    """Returns the results in float64 for samples of narrower types."""
    try:
        results = list(map(paired, sample.eager(_wide)))
    except (RuntimeError, NotImplementedError):
        results = []
    return results if len(results) == count else [None] * count


def _as_good_as_eager(ours: torch.Tensor, theirs: torch.Tensor, exact: Any) -> bool:
    """Whether ours is as accurate as eager. Rounding depends on the order of operations, so our distance from the exact
    result may be twice eager's distance, or two ulp of the largest element."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape or not theirs.is_floating_point():
        return False
    if theirs.dtype == torch.float64 or not isinstance(exact, torch.Tensor) or exact.dtype != torch.float64:
        exact = theirs.double()
    finite = exact.isfinite() & theirs.isfinite()
    # If a narrow type overflowed in eager although the result is representable, the representable result is correct.
    near = torch.isclose(ours.double(), exact, rtol=8 * torch.finfo(theirs.dtype).eps, atol=0)
    near |= ours == exact.to(ours.dtype)  # may overflow to infinity
    near |= ours.isnan() & exact.isnan()
    elsewhere = ~finite & ~near
    same_elsewhere = torch.allclose(ours[elsewhere], theirs[elsewhere], 0, 0, equal_nan=True)
    if not finite.any():
        return same_elsewhere
    error = (ours.double() - exact)[finite].abs().max()
    eagers = (theirs.double() - exact)[finite].abs().max()
    unit = torch.finfo(theirs.dtype).eps * exact[finite].abs().max()
    return same_elsewhere and bool(error <= 2 * eagers + 2 * unit)


def kernels(model: Any) -> Counter:
    """Counts the calls of a compiled program: (kernel, dtype of its first tensor) -> number of calls."""
    counts: Counter = Counter()
    for node in model.program.exported_program().graph.nodes:
        if node.op != "call_function" or not ops.is_out_variant(node.target):
            continue
        name = ".".join(ops.kernel_name(node.target))
        values = [a.meta.get("val") for a in node.all_input_nodes] + pytree.tree_leaves(node.meta.get("val"))
        first = next((value.dtype for value in values if isinstance(value, torch.Tensor)), None)
        if first is not None:
            counts[name, str(first).removeprefix("torch.")] += 1
    return counts


# ---- Sweep ----


@dataclass
class Result:
    """The table of `torchette ops --coverage`: [passed, tried] per operator and dtype, and calls per kernel."""

    operators: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    kernels: dict[str, dict[str, int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    direct: int = 0
    """number of samples that were not compiled"""

    def add(self, other: Result) -> None:
        for name, row in other.operators.items():
            for dtype, (passed, tried) in row.items():
                counts = self.operators.setdefault(name, {}).setdefault(dtype, [0, 0])
                counts[0] += passed
                counts[1] += tried
        for name, row in other.kernels.items():
            for dtype, calls in row.items():
                of_dtypes = self.kernels.setdefault(name, {})
                of_dtypes[dtype] = of_dtypes.get(dtype, 0) + calls
        self.failures += other.failures


def sweep(
    names: Sequence[str],
    limit: int,
    kinds: Callable[[str], Sequence[str]] = dtypes,
    at_once: int = 48,
    directly: bool = False,
) -> Result:
    """Checks `limit` samples of each operator in each of `kinds(operator)`.

    With `directly`, one sample of each operator is compiled, in the first of these dtypes. The other samples call the
    kernels directly and are compiled only if the direct results differ from eager.
    """
    result = Result()
    chosen = [sample for name in names for dtype in kinds(name) for sample in samples(name, dtype, limit)]
    total = Tally()
    held = [sample for sample in chosen if not is_excluded(sample)]
    if directly:
        to_compile = {s.operator: s for s in reversed(held) if s.dtype == next(iter(kinds(s.operator)), "")}
        done = {s.name: hold_directly(s) for s in held if s is not to_compile.get(s.operator)}
        total = sum((tally for tally in done.values() if tally is not None), total)
        result.direct = sum(tally is not None for tally in done.values())
        held = [sample for sample in held if done.get(sample.name) is None]
    # Samples that draw random values in training mode are compiled separately, because they are rejected.
    apart = [s for s in held if s.operator not in WITHOUT_VALUES and direct.draws(s.eager)]
    total = sum((hold([sample]) for sample in apart), total)
    held = [sample for sample in held if not any(sample is separate for separate in apart)]
    for start in range(0, len(held), at_once):
        total += hold(held[start : start + at_once])
    for sample in chosen:
        result.operators.setdefault(sample.operator, {}).setdefault(sample.dtype, [0, 0])[1] += 1
    for sample in total.passed:
        result.operators[sample.operator][sample.dtype][0] += 1
    for (kernel, dtype), calls in total.kernels.items():
        result.kernels.setdefault(kernel, {})[dtype] = calls
    result.failures = [f"{sample}: {problem}" for sample, problem in total.failed]
    return result


def in_a_process_of_its_own(names: Sequence[str], limit: int, quick: bool) -> Result | None:
    """Runs a sweep in a child process. Returns None if the process crashed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as pipe:
            json.dump(asdict(sweep(names, limit, two_dtypes if quick else dtypes)), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    return Result(**json.loads(text)) if os.waitpid(child, 0)[1] == 0 else None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("operators", nargs="*", help="default: all")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="maximum number per operator and dtype")
    parser.add_argument("--quick", action="store_true", help="two dtypes of each operator")
    parser.add_argument(
        "--out", type=Path, help="write the result to this file; updates only the rows of the named operators"
    )
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = options.operators or list(operators())
    hold([Sample("add", "float32", 0, torch.add, (torch.ones(2), 1), {})])  # loads shared modules and caches
    gc.collect()
    gc.freeze()
    result = Result()
    retained = stored(options.out, set(names)) if options.operators and options.out is not None else Result()
    pending = [names[start : start + 16] for start in range(0, len(names), 16)]
    while pending:
        group = pending.pop(0)
        part = in_a_process_of_its_own(group, options.samples, options.quick)
        if part is None and len(group) > 1:
            pending[:0] = [[name] for name in group]
            continue
        result.add(part or Result(failures=[f"{group[0]}: the process died"]))
        for failure in part.failures if part else result.failures[-1:]:
            print(failure, flush=True)
        print(f"{len(names) - sum(map(len, pending))} of {len(names)} operators", file=sys.stderr, flush=True)
        if options.out is not None:
            store(merged(retained, result), options.out)
    passed, tried = (sum(row[i] for of in result.operators.values() for row in of.values()) for i in (0, 1))
    print(
        f"{passed} of {tried} samples of {len(result.operators)} operators; {len(result.failures)} failures"
    )
    if options.out is not None:
        store(merged(retained, result), options.out)


def stored(path: Path, without: set[str]) -> Result:
    """Reads the rows of a stored result, without those of the given operators."""
    if not path.exists():
        return Result()
    held = read(path)
    return Result(
        {name: row for name, row in held["operators"].items() if name not in without},
        held["kernels"],
    )


def merged(old: Result, new: Result) -> Result:
    """Merges two results. The kernel calls are those of the run with more calls, because the file stores no others."""
    both = Result({**old.operators, **new.operators}, {}, new.failures)
    for name in {*old.kernels, *new.kernels}:
        rows = old.kernels.get(name, {}), new.kernels.get(name, {})
        both.kernels[name] = {
            dtype: max(row.get(dtype, 0) for row in rows) for dtype in {**rows[0], **rows[1]}
        }
    return both


def store(result: Result, path: Path = RESULT) -> None:
    """Writes one line per group of operators or kernels with equal rows; see torchette/cli/ops.py for the format."""

    def words_of(row: dict[str, Any]) -> str:
        cells = [row.get(dtype, "-") for dtype in COLUMNS]
        words = [
            word if not isinstance(word, list) else word[0] if word[0] == word[1] else f"{word[0]}/{word[1]}"
            for word in cells
        ]
        return " ".join(map(str, words))

    parts = []
    for title, rows in (("operators", result.operators), ("kernels", result.kernels)):
        alike: dict[str, list[str]] = {}
        for name in sorted(rows):
            alike.setdefault(words_of(rows[name]), []).append(name)
        lines = [f"{json.dumps(words)}: {json.dumps(' '.join(names))}" for words, names in alike.items()]
        parts.append(f'"{title}": {{\n' + ",\n".join(lines) + "\n}")
    groups = {group["reason"]: group["names"] for group in json.loads(EXCLUSIONS.read_text())}
    parts.append(
        '"excluded": {\n' + ",\n".join(f"{json.dumps(k)}: {json.dumps(groups[k])}" for k in groups) + "\n}"
    )
    path.write_text("{" + ",\n".join(parts) + "}\n")


if __name__ == "__main__":
    main()
