# SPDX-License-Identifier: BSD-3-Clause
# mm, bmm, addmm, baddbmm, linear and grouped_mm compared with eager: sizes around every tile edge, transposed operands, dtypes.
from __future__ import annotations

import pytest
import torch

from tests.kernels.kernel_call import check, run
from torchette.runtime import _native

aten = torch.ops.aten
# Sizes around the tiles: 4, 8, 16 lanes; 2 and 3 vectors; 6, 9, 14 rows; panels of depth 384.
ROWS = [1, 2, 5, 6, 7, 9, 13, 14, 15, 29, 57]
COLUMNS = [1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 65, 100]


def matrix(rows: int, columns: int, transposed: bool = False) -> torch.Tensor:
    return torch.randn(columns, rows).t() if transposed else torch.randn(rows, columns)


@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_mm_sizes(m: int, transposed: tuple[bool, bool]) -> None:
    torch.manual_seed(m)
    for n in COLUMNS:
        for k in [1, 2, 17, 64, 385]:
            a, b = matrix(m, k, transposed[0]), matrix(k, n, transposed[1])
            check("aten::mm.out", a @ b, a, b, scale=4)


def test_mm_deep_and_wide() -> None:
    for m, n, k in [
        (513, 33, 70),
        (20, 20, 4608),
        (1, 1000, 1280),
        (1200, 1, 300),
        (3, 5, 2049),
        (64, 64, 1024),
    ]:
        a, b = matrix(m, k), matrix(k, n)
        check("aten::mm.out", (a.double() @ b.double()).float(), a, b, scale=40)


def test_matmul_error_does_not_grow_with_depth() -> None:
    """Networks amplify this error. A single chain of additions, with an error of 4e-6 here, was too inaccurate."""
    torch.manual_seed(0)
    for m, layout in [(7, (False, False)), (33, (False, True)), (33, (True, False))]:
        a, b = matrix(m, 32768, layout[0]), matrix(32768, 40, layout[1])
        exact = a.double() @ b.double()
        (result,) = run("aten::mm.out", a, b, like=[exact.float()])
        assert (result - exact).norm() <= 6e-7 * exact.norm()


def test_mm_into_transposed_output() -> None:
    a, b = matrix(20, 30), matrix(30, 40)
    expected = torch.empty(40, 20).t()
    expected.copy_(a @ b)
    check("aten::mm.out", expected, a, b)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (1, 5, 0)])
def test_mm_empty(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = matrix(m, k), matrix(k, n)
    check("aten::mm.out", a @ b, a, b)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
    ],
)
def test_mm_dtypes(dtype: torch.dtype) -> None:
    a, b = (torch.randn(7, 9) * 3).to(dtype), (torch.randn(9, 5) * 3).to(dtype)
    check("aten::mm.out", a @ b, a, b)
    self = (torch.randn(5) * 3).to(dtype)
    check("aten::addmm.out", torch.addmm(self, a, b, beta=2, alpha=3), self, a, b, 2, 3)


def test_mm_nan_and_infinity() -> None:
    a, b = matrix(20, 40), matrix(40, 50)
    a[3, 7], a[5, 1], b[2, 33] = float("nan"), float("inf"), float("-inf")
    check("aten::mm.out", a @ b, a, b)


@pytest.mark.parametrize("self_shape", [(), (1,), (50,), (1, 50), (20, 1), (20, 50), (1, 1)])
@pytest.mark.parametrize("factors", [(1, 1), (0.5, 2.0), (0, 1), (1, -1)])
def test_addmm(self_shape: tuple[int, ...], factors: tuple[float, float]) -> None:
    beta, alpha = factors
    self, a, b = torch.randn(self_shape), matrix(20, 40), matrix(40, 50)
    check("aten::addmm.out", torch.addmm(self, a, b, beta=beta, alpha=alpha), self, a, b, beta, alpha)


def test_addmm_ignores_self_where_beta_is_zero() -> None:
    self, a, b = torch.full((5,), float("nan")), matrix(3, 4), matrix(4, 5)
    check("aten::addmm.out", torch.addmm(self, a, b, beta=0), self, a, b, 0, 1)


def test_addmm_one_row_or_column() -> None:
    for m, n in [(1, 7), (7, 1), (1, 1)]:
        a, b = matrix(m, 9), matrix(9, n)
        for self in [torch.randn(n), torch.randn(m, 1), torch.randn(m, n)]:
            check("aten::addmm.out", torch.addmm(self, a, b), self, a, b, 1, 1)


@pytest.mark.parametrize(
    "shape", [(1, 4, 5, 6), (3, 17, 33, 49), (12, 128, 32, 128), (5, 1, 64, 70), (2, 70, 64, 1), (0, 2, 3, 4)]
)
def test_bmm(shape: tuple[int, int, int, int]) -> None:
    batch, m, k, n = shape
    a, b = torch.randn(batch, m, k), torch.randn(batch, k, n)
    check("aten::bmm.out", torch.bmm(a, b), a, b)
    b = torch.randn(batch, n, k).transpose(1, 2)
    check("aten::bmm.out", torch.bmm(a, b), a, b)
    for self_shape in [(n,), (batch, m, n), (1, m, 1), (batch, 1, n)]:
        self = torch.randn(self_shape)
        check("aten::baddbmm.out", torch.baddbmm(self, a, b, beta=0.5), self, a, b, 0.5, 1)


@pytest.mark.parametrize("lead", [(), (1,), (5,), (2, 3), (2, 0), (1, 128)])
@pytest.mark.parametrize("features", [(1, 1), (64, 33), (100, 48), (384, 17)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(lead: tuple[int, ...], features: tuple[int, int], with_bias: bool) -> None:
    k, n = features
    x, w = torch.randn(*lead, k), torch.randn(n, k)
    bias = torch.randn(n) if with_bias else None
    check("aten::linear.out", aten.linear(x, w, bias), x, w, bias)


def test_linear_of_a_permuted_input() -> None:
    x, w = torch.randn(4, 3, 8).permute(1, 0, 2), torch.randn(5, 8)
    check("aten::linear.out", aten.linear(x, w), x, w, None)


def test_shapes_and_types_are_refused() -> None:
    with pytest.raises(RuntimeError, match="mm"):
        check("aten::mm.out", torch.empty(3, 5), matrix(3, 4), matrix(6, 5))
    with pytest.raises(RuntimeError, match="self, mat2 and out"):
        check("aten::mm.out", torch.empty(3, 5), matrix(3, 4), matrix(4, 5).double())
    with pytest.raises(RuntimeError, match="bias"):
        check("aten::linear.out", torch.empty(3, 5), matrix(3, 4), matrix(5, 4), torch.randn(4))
    with pytest.raises(RuntimeError, match="add"):
        check("aten::addmm.out", torch.empty(3, 5), torch.randn(4), matrix(3, 4), matrix(4, 5), 1, 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_other_float_matmuls_accumulate_in_float(dtype: torch.dtype, transposed: tuple[bool, bool]) -> None:
    """Within one rounding of the exact result, at the edges of every block."""
    for m, k, n in ((1, 700, 33), (5, 3, 1), (131, 300, 70), (4, 1, 9), (17, 2000, 130)):
        a, b = matrix(m, k, transposed[0]).to(dtype), matrix(k, n, transposed[1]).to(dtype)
        assert a.stride() == matrix(m, k, transposed[0]).stride()
        out = torch.empty(m, n, dtype=dtype)
        _native.call_kernel("aten::mm.out", a, b, out)
        exact = a.double() @ b.double()
        slack = 1e-12 if dtype == torch.float64 else torch.finfo(dtype).eps / 2 * exact.abs() + 1e-3
        assert ((out.double() - exact).abs() <= slack).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_batches_of_other_floats(dtype: torch.dtype) -> None:
    a, b, add = (torch.randn(3, m, n).to(dtype) for m, n in ((9, 20), (20, 40), (1, 40)))
    check("aten::bmm.out", (a.double() @ b.double()).to(dtype), a, b)
    expected = (2 * add.double() - 0.5 * (a.double() @ b.double())).to(dtype)
    check("aten::baddbmm.out", expected, add, a, b, 2, -0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("transposed", [False, True])
def test_grouped_mm(dtype: torch.dtype, transposed: bool) -> None:
    torch.manual_seed(0)
    for ends, k, n in (
        ([3, 3, 20], 40, 33),
        ([0, 0, 0], 5, 4),
        ([0, 7, 7], 700, 70),
        ([20], 1024, 100),
        ([], 3, 4),
    ):
        a = (torch.randn(20, k) * 3).to(dtype)
        b = (torch.randn(len(ends), n, k) * 3).to(dtype).transpose(1, 2) if transposed else (
            torch.randn(len(ends), k, n) * 3
        ).to(dtype)  # fmt: skip
        expected, start = torch.zeros(20, n, dtype=dtype), 0
        for group, end in enumerate(ends):
            expected[start:end] = a[start:end] @ b[group]
            start = end
        for offsets in (torch.tensor(ends, dtype=torch.int32), torch.tensor(ends, dtype=torch.int64)):
            check("torchette::grouped_mm.out", expected, a, b, offsets, scale=8)


@pytest.mark.parametrize("ends", [[2, 1], [-1, 3], [2, 6]])
def test_grouped_mm_refuses_ends_out_of_order_or_range(ends: list[int]) -> None:
    with pytest.raises(RuntimeError, match=r"grouped_mm: group . ends at row"):
        run(
            "torchette::grouped_mm.out",
            matrix(5, 3),
            torch.randn(2, 3, 4),
            torch.tensor(ends),
            like=[torch.empty(5, 4)],
        )
