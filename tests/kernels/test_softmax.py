# SPDX-License-Identifier: BSD-3-Clause
# _softmax and _log_softmax compared with eager: every dimension, odd sizes, NaN and infinities, dtypes.
from __future__ import annotations

import pytest
import torch

from tests.kernels.kernel_call import check, run

FUNCTIONS = {
    "aten::_softmax.out": torch.ops.aten._softmax,
    "aten::_log_softmax.out": torch.ops.aten._log_softmax,
}


@pytest.fixture(params=FUNCTIONS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def softmax(name: str, x: torch.Tensor, dim: int) -> None:
    check(name, FUNCTIONS[name](x, dim, False), x, dim, False)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 197, 1000])
def test_rows(name: str, n: int) -> None:
    softmax(name, torch.randn(3, n) * 5, -1)
    softmax(name, torch.randn(n) - 300, 0)


@pytest.mark.parametrize("shape", [(4, 5, 6), (2, 17, 33), (3, 1, 16), (1, 10, 15), (2, 3, 4, 5)])
def test_every_dimension(name: str, shape: tuple[int, ...]) -> None:
    for dim in range(-len(shape), len(shape)):
        softmax(name, torch.randn(shape) * 3, dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_bits_are_those_of_one_thread(name: str, dim: int, dtype: torch.dtype) -> None:
    x = torch.randn(5, 7, 37, dtype=dtype)
    (alone,) = run(name, x, dim, False, like=[x])
    for threads in (2, 3):
        assert torch.equal(run(name, x, dim, False, like=[x], threads=threads)[0], alone)


def test_zero_dimensions_and_no_elements(name: str) -> None:
    softmax(name, torch.tensor(3.0), 0)
    softmax(name, torch.tensor(3.0), -1)
    softmax(name, torch.randn(0, 4), 1)
    softmax(name, torch.randn(4, 0), 1)
    softmax(name, torch.randn(4, 0, 3), 0)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("n", [3, 16, 37])
def test_special_values(name: str, special: float, n: int) -> None:
    for place in [0, n // 2, n - 1]:
        x = torch.randn(2, n)
        x[0, place] = special
        softmax(name, x, 1)
        softmax(name, x.t().contiguous(), 0)
    softmax(name, torch.full((2, n), special), 1)


@pytest.mark.parametrize("columns", [2, 4, 8])
@pytest.mark.parametrize("n", [5, 9, 16, 37, 196])
def test_few_columns(name: str, n: int, columns: int) -> None:
    """Columns that share a vector are independent, even if one has extreme values."""
    x = torch.randn(3, n, columns) * 5 + torch.arange(columns) * 100
    softmax(name, x, 1)
    for special in (float("nan"), float("inf"), float("-inf")):
        x[1, n - 1, 0] = special
        softmax(name, x, 1)
    x[2, :, 1] = float("-inf")
    softmax(name, x, 1)


def test_large_differences(name: str) -> None:
    softmax(name, torch.tensor([[0.0, -50.0, -87.0, -95.0, -104.0, -200.0, 3.4e38, -3.4e38]]), 1)
    softmax(name, torch.linspace(-110, 0, 200), 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    softmax(name, torch.randn(3, 20).to(dtype), 1)
    softmax(name, torch.randn(3, 20).to(dtype), 0)


def test_permuted_memory(name: str) -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for dim in range(4):
        softmax(name, x, dim)


def test_bad_arguments_are_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="dimension"):
        check(name, torch.empty(2, 3), torch.randn(2, 3), 2, False)
    with pytest.raises(RuntimeError, match="type"):
        check(name, torch.empty(2, 3), torch.randn(2, 3), 1, True)
    with pytest.raises(RuntimeError, match="type"):
        check(name, torch.empty(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64), 1, False)
