# SPDX-License-Identifier: BSD-3-Clause
# NaN and infinity propagate through the kernels as in eager: torch's samples with such elements.

from __future__ import annotations

import dataclasses
import fnmatch

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.kernels import direct, parity
from tests.kernels.nonfinite import VALUES, planted
from tests.sweep import sweep

# Patterns of operators that are not compared, with the reason.
SKIPPED = {
    "linalg.*": "LAPACK does not define the result; torch raises or crashes",
    **dict.fromkeys(
        (
            "cholesky*",
            "geqrf",
            "logdet",
            "lu*",
            "norm.nuc",
            "ormqr",
            "pinverse",
            "qr",
            "svd*",
            "triangular_solve",
        ),
        "LAPACK does not define the result",
    ),
    **dict.fromkeys(
        ("var_mean*", "std_mean*", "native_group_norm", "native_layer_norm"),
        "eager's mean of infinity is NaN there, but infinity in torch.mean; Torchette returns infinity",
    ),
    "unique": "eager compares with <, so it does not sort rows with NaN",
    "grid_sampler_3d": "eager differs from grid_sampler_2d at NaN positions",
    "nn.functional.bilinear": "the order of the multiplications decides between infinity and NaN",
    **dict.fromkeys(("special.airy*", "special.bessel*"), "the reference (parity.RIGHT) rejects NaN"),
    **dict.fromkeys(
        ("special.*chebyshev*", "special.hermite*", "special.laguerre*", "special.legendre*"),
        "eager converts an infinite degree to an integer, which C++ does not define",
    ),
}
# Number of arguments that get such elements, if not all. A zero of the padding times an infinite weight is NaN, unless
# a kernel skips the padding, which eager's kernels do in some dtypes.
PLANTED = {"nn.functional.conv": 1, "nn.functional.grid_sample": 1}  # grid_sampler_2d covers positions
FLOATS = ("float32", "float64", "float16", "bfloat16")


def is_skipped(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in SKIPPED)


def with_values(sample: parity.Sample, kind: str) -> parity.Sample:
    """Returns the sample with the values of a kind in its tensors."""
    count = next((count for name, count in PLANTED.items() if sample.operator.startswith(name)), None)
    leaves, tree = pytree.tree_flatten((sample.args[:count], sample.kwargs if count is None else {}))
    leaves = [planted(leaf, VALUES[kind]) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(leaves, tree)
    tail = () if count is None else sample.args[count:]
    return dataclasses.replace(sample, args=(*args, *tail), kwargs={**sample.kwargs, **kwargs})


def compare(name: str, dtype: str, limit: int) -> tuple[int, list[str]]:
    """Returns the number of compared samples, and the failures."""
    compared, failures = 0, []
    for sample in parity.samples(name, dtype, limit):
        if parity.is_excluded(sample) or name in parity.WITHOUT_VALUES or direct.draws(sample.eager):
            continue
        for kind in VALUES:
            changed = with_values(sample, kind)
            if not parity.eager_accepts(changed):
                continue
            inputs = iter([tensor.clone() for tensor in changed.tensors()])
            try:
                results, called = direct.compute(lambda: changed.call(inputs))  # noqa: B023
            except (direct.NotDirect, RuntimeError, TypeError, NotImplementedError):
                continue  # only a compiled program can run it
            if not called:
                continue
            compared += 1
            problem = parity.difference(changed, list(map(parity.paired, results)))
            if problem is not None:
                failures.append(f"{changed} with {kind}: {problem}")
    return compared, failures


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "dtype, limit", sweep([("float32", 1), *((name, 3) for name in FLOATS)], ("float32", 1))
)
def test_samples_propagate_as_in_eager(dtype: str, limit: int) -> None:
    compared, failures = 0, []
    for name in parity.operators():
        if dtype in parity.dtypes(name) and not is_skipped(name):
            count, messages = compare(name, dtype, limit)
            compared += count
            failures += messages
    assert not failures, "\n".join(failures)
    assert compared > 1300 * limit, compared


def test_wrong_propagation_is_detected() -> None:
    sample = parity.Sample("add", "float32", 0, torch.add, (torch.ones(3), 1), {})
    right = with_values(sample, "nan").eager()
    assert parity.difference(with_values(sample, "nan"), right) is None
    assert parity.difference(with_values(sample, "nan"), [right[0].nan_to_num()]) is not None
