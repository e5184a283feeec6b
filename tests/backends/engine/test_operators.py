# SPDX-License-Identifier: BSD-3-Clause
# Compares every operator of the engine with its pattern: calls the kernel of each instruction-set level that this processor supports
# and compares it with the pattern in float64. The results on 1, 2 and 3 threads are bitwise equal.
#
# The cases of an operator are a function with its name in tests/backends/engine/cases/. The file has the same name as the file of
# torchette/backends/engine/operators/ that declares the operator.

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import torchette.backends.engine.operators  # noqa: F401
from tests.backends.engine.draw import Cases, Draw
from tests.kernels import kernel_call, samples
from torchette.exir.dialects.backend._ops import _patterns
from torchette.runtime import kernel_levels

# Tolerance of an element, relative to the maximum magnitude of the result.
TOLERANCE = 3e-6
# Name -> pattern.
OPERATORS: dict[str, Callable] = {
    op._opname: pattern
    for op, pattern in sorted(_patterns.items(), key=lambda it: it[0].name())
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


def check_close(result: torch.Tensor, expected: torch.Tensor) -> None:
    """Compares with the exact result `expected`. Integers must be equal."""
    if not expected.is_floating_point():
        assert result.dtype == expected.dtype and torch.equal(result, expected)
        return
    finite = expected[expected.isfinite()]
    largest = finite.abs().max().item() if finite.numel() else 0.0
    torch.testing.assert_close(
        result.to(expected.dtype), expected, rtol=0, atol=TOLERANCE * largest, equal_nan=True
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
                check_close(result, exact)
            for threads in (2, 3):
                shared = kernel_call.run(kernel, *arguments, like=like, level=level, threads=threads)
                for result, other in zip(alone, shared, strict=True):
                    same = torch.equal(*(each.reshape(-1).view(torch.uint8) for each in (result, other)))
                    assert same, f"other bits on {threads} threads"
        except (AssertionError, RuntimeError, TypeError) as error:
            pytest.fail(
                f"cpu::{name}({', '.join(map(described, case))}), case {count}: {error}", pytrace=False
            )
    assert count >= 10, f"cpu::{name} has {count} cases: too few for a file of kernels"
