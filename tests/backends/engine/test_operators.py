# SPDX-License-Identifier: BSD-3-Clause
# Compares every operator of the engine with its pattern: calls the kernel of each instruction-set level that this processor supports
# and compares it with the pattern in float64. The results on 1, 2 and 3 threads are bitwise equal.
#
# The cases of an operator are a function with its name in tests/backends/engine/cases/. The file has the same name as the file of
# torchette/backends/engine/operators/ that declares the operator.

from __future__ import annotations

import importlib
import itertools
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import torchette.backends.engine.operators  # noqa: F401
from tests.backends.engine.draw import Cases, Draw
from tests.kernels import kernel_call, samples
from tests.kernels.nonfinite import VALUES, planted
from torchette.exir.dialects.backend._ops import _patterns
from torchette.runtime import kernel_levels

# Tolerance of an element, relative to the maximum magnitude of the result.
TOLERANCE = 3e-6
# The kernel may round to bfloat16, and rounds the exponentials of scores before they are normalized.
TOLERANCES = {"bfloat16_attention": 2e-2}
# Name -> pattern.
OPERATORS: dict[str, Callable] = {
    op._opname: pattern
    for op, pattern in sorted(_patterns.items(), key=lambda row: row[0].name())
    if op.namespace == "cpu"
}


def cases_of(name: str) -> Cases:
    """Returns the function that yields an operator's cases."""
    file = OPERATORS[name].__module__.rpartition(".")[2]
    try:
        return getattr(importlib.import_module(f"tests.backends.engine.cases.{file}"), name)
    except (ImportError, AttributeError):
        pytest.fail(
            f"cpu::{name} has no cases: tests/backends/engine/cases/{file}.py needs {name}(draw)",
            pytrace=False,
        )


def described(value: Any) -> str:
    """Returns the text of an argument for a failure."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)


def in_float64(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def in_float32(value: torch.Tensor) -> torch.Tensor:
    return value.float().contiguous() if value.is_floating_point() else value.contiguous()


def check_close(result: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    """Compares with the exact result `expected`. Integers must be equal."""
    if not expected.is_floating_point():
        assert result.dtype == expected.dtype and torch.equal(result, expected)
        return
    finite = expected[expected.isfinite()]
    largest = finite.abs().max().item() if finite.numel() else 0.0
    torch.testing.assert_close(
        result.to(expected.dtype), expected, rtol=0, atol=tolerance * largest, equal_nan=True
    )


@pytest.mark.parametrize("level", kernel_levels())
@pytest.mark.parametrize("name", OPERATORS)
def test_kernel_equals_its_pattern(name: str, level: str) -> None:
    kernel, count = f"cpu::{name}.out", 0
    for count, case in enumerate(cases_of(name)(Draw(zlib.crc32(name.encode()))), 1):
        expected = OPERATORS[name](*pytree.tree_map(in_float64, case))
        expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
        like = [in_float32(each) for each in expected]
        arguments = samples.arguments(kernel, (case, {}))
        try:
            alone = kernel_call.run(kernel, *arguments, like=like, level=level)
            for result, exact in zip(alone, expected, strict=True):
                check_close(result, exact, TOLERANCES.get(name, TOLERANCE))
            for threads in (2, 3):
                shared = kernel_call.run(kernel, *arguments, like=like, level=level, threads=threads)
                for result, threaded in zip(alone, shared, strict=True):
                    same = torch.equal(*(each.reshape(-1).view(torch.uint8) for each in (result, threaded)))
                    assert same, f"other bits on {threads} threads"
        except (AssertionError, RuntimeError, TypeError) as error:
            pytest.fail(
                f"cpu::{name}({', '.join(map(described, case))}), case {count}: {error}", pytrace=False
            )
    assert count >= 10, f"cpu::{name} has {count} cases: too few for a file of kernels"


# Operator -> the arguments that get NaN and infinities, if not the first. Weights and scales are finite.
PLANTED = {
    **dict.fromkeys(("attention", "bfloat16_attention", "cached_attention"), (0, 1)),
    **dict.fromkeys(("convolution_into", "depthwise_into"), (0, 1)),
}
# Operator -> kinds of values that are not compared, with the reason.
SKIPPED = {
    **dict.fromkeys(
        ("cached_attention", "int8_cached_attention"),
        (("inf", "-inf", "mixed"), "the kernel treats scores of -inf as masked; the pattern returns NaN"),
    ),
    "quantize": (("nan", "mixed"), "the kernel quantizes NaN to the smallest integer"),
    "resize": (("inf", "-inf", "mixed"), "the pattern multiplies infinity by a weight of zero"),
}


@pytest.mark.parametrize("level", kernel_levels())
@pytest.mark.parametrize("name", OPERATORS)
def test_nan_and_infinity_propagate(name: str, level: str) -> None:
    kernel = f"cpu::{name}.out"
    for at, kind in itertools.product(PLANTED.get(name, (0,)), VALUES):
        if kind in SKIPPED.get(name, ((), ""))[0]:
            continue
        for count, case in enumerate(cases_of(name)(Draw(zlib.crc32(name.encode()))), 1):
            case = list(case)
            if not isinstance(case[at], torch.Tensor) or case[at].dtype != torch.float32:
                continue
            case[at] = planted(case[at], VALUES[kind])
            expected = OPERATORS[name](*pytree.tree_map(in_float64, tuple(case)))
            expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
            like = [in_float32(each) for each in expected]
            arguments = samples.arguments(kernel, (tuple(case), {}))
            results = kernel_call.run(kernel, *arguments, like=like, level=level)
            try:
                for result, exact in zip(results, expected, strict=True):
                    check_close(result, exact, TOLERANCES.get(name, TOLERANCE))
            except AssertionError as error:
                call = f"cpu::{name}({', '.join(map(described, case))})"
                pytest.fail(f"{call}, case {count}, {kind} in argument {at}: {error}", pytrace=False)
