# SPDX-License-Identifier: BSD-3-Clause
# torch's linear algebra in terms of the factorizations and solvers that have kernels. decompose_to_core uses the table.
"""Decompositions of linear algebra."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def _eye_like(a: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Returns a batch of identity matrices with the batch shape of `a`."""
    unit = torch.eye(rows, columns, dtype=a.dtype, device=a.device)
    return unit.expand(*a.shape[:-2], rows, columns)


# ---- LU ----


def _solve_ex(
    a: torch.Tensor, b: torch.Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Any, ...]:
    vectors = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    lu, pivots, info = aten.linalg_lu_factor_ex(a, check_errors=check_errors)
    x = aten.linalg_lu_solve(lu, pivots, b.unsqueeze(-1) if vectors else b, left=left)
    return x.squeeze(-1) if vectors else x, lu, pivots, info


def _solve(a: torch.Tensor, b: torch.Tensor, *, left: bool = True) -> torch.Tensor:
    result: torch.Tensor = _solve_ex(a, b, left=left, check_errors=True)[0]
    return result


def _inv_ex(a: torch.Tensor, *, check_errors: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    x, _, _, info = _solve_ex(a, _eye_like(a, *a.shape[-2:]), check_errors=check_errors)
    return x, info


def _inv(a: torch.Tensor) -> torch.Tensor:
    return _inv_ex(a, check_errors=True)[0]


def _lu(a: torch.Tensor, *, pivot: bool = True) -> tuple[Any, ...]:
    lu, pivots, _ = aten.linalg_lu_factor_ex(a, pivot=pivot)
    result: tuple[Any, ...] = aten.lu_unpack(lu, pivots, True, pivot)
    return result


def _swaps_sign(lu: torch.Tensor, pivots: torch.Tensor) -> torch.Tensor:
    """Returns the determinant of the permutation."""
    rows = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return (1 - 2 * ((pivots != rows).sum(-1) % 2)).to(lu.dtype)


def _det(a: torch.Tensor) -> tuple[Any, ...]:
    lu, pivots, _ = aten.linalg_lu_factor_ex(a)
    return lu.diagonal(0, -2, -1).prod(-1) * _swaps_sign(lu, pivots), lu, pivots


def _slogdet(a: torch.Tensor) -> tuple[Any, ...]:
    lu, pivots, _ = aten.linalg_lu_factor_ex(a)
    diagonal = lu.diagonal(0, -2, -1)
    return diagonal.sign().prod(-1) * _swaps_sign(lu, pivots), diagonal.abs().log().sum(-1), lu, pivots


def _matrix_power(a: torch.Tensor, n: int) -> torch.Tensor:
    if n < 0:
        a, n = _inv(a), -n
    result = None
    while n:
        if n % 2:
            result = a if result is None else result @ a
        n //= 2
        a = a @ a if n else a
    return _eye_like(a, *a.shape[-2:]).clone() if result is None else result.clone()


def _tensorinv(a: torch.Tensor, ind: int = 2) -> torch.Tensor:
    shape = a.shape[ind:] + a.shape[:ind]
    return _inv(a.reshape(math.prod(a.shape[:ind]), -1)).reshape(shape)


def _tensorsolve(a: torch.Tensor, b: torch.Tensor, dims: Sequence[int] | None = None) -> torch.Tensor:
    if dims is not None:
        a = a.movedim(list(dims), list(range(a.dim() - len(dims), a.dim())))
    shape = a.shape[b.dim() :]
    return _solve(a.reshape(-1, math.prod(shape)), b.flatten()).reshape(shape)


# ---- Cholesky, triangular systems ----


def _cholesky(a: torch.Tensor, upper: bool = False) -> torch.Tensor:
    result: torch.Tensor = aten.linalg_cholesky_ex(a, upper=upper, check_errors=True)[0]
    return result


def _cholesky_solve(b: torch.Tensor, factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    lower, raised = (factor.mT, factor) if upper else (factor, factor.mT)
    half = aten.linalg_solve_triangular(lower, b, upper=False)
    result: torch.Tensor = aten.linalg_solve_triangular(raised, half, upper=True)
    return result


def _cholesky_inverse(factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    return _cholesky_solve(_eye_like(factor, *factor.shape[-2:]), factor, upper)


def _triangular_solve(
    b: torch.Tensor, a: torch.Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = aten.linalg_solve_triangular(
        a.mT if transpose else a, b, upper=upper != transpose, unitriangular=unitriangular
    )
    return x, a.expand(*batch, *a.shape[-2:]).clone()


# ---- QR, eigenvalues, singular values ----


def _householder_product(a: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = aten.ormqr(a, tau, _eye_like(a, *a.shape[-2:]))
    return result


def _qr(a: torch.Tensor, mode: str = "reduced") -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = a.shape[-2:]
    least = min(rows, columns)
    factors, tau = aten.geqrf(a)
    if mode == "r":
        return a.new_empty([0]), factors[..., :least, :].triu()
    q_columns = rows if mode == "complete" else least
    q = aten.ormqr(factors[..., :least], tau, _eye_like(a, rows, q_columns))
    return q, factors[..., :q_columns, :].triu()


def _pinv(
    a: torch.Tensor,
    *,
    atol: torch.Tensor | None = None,
    rtol: torch.Tensor | None = None,
    hermitian: bool = False,
) -> torch.Tensor:
    if a.numel() == 0:
        return a.new_empty([*a.shape[:-2], a.shape[-1], a.shape[-2]])
    if rtol is None:
        rtol = torch.full((), max(a.shape[-2:]) * torch.finfo(a.dtype).eps, dtype=a.dtype, device=a.device)
        if atol is not None:
            rtol = torch.where(atol > 0, 0.0, rtol)
    if atol is None:
        atol = torch.zeros((), dtype=a.dtype, device=a.device)
    if hermitian:
        values, right = aten._linalg_eigh(a)
        left = right.mT
    else:
        u, values, vh = aten._linalg_svd(a)
        left, right = u.mT, vh.mT
    size = values.abs()
    bound = torch.maximum(atol.unsqueeze(-1), rtol.unsqueeze(-1) * size.amax(-1, keepdim=True))
    inverted = torch.where(size > bound, values.reciprocal(), 0.0).to(a.dtype)
    result: torch.Tensor = (right * inverted.unsqueeze(-2)) @ left
    return result


# ---- torch 2.14 and later ----


def _polar(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    u, values, vh = aten._linalg_svd(a)
    return u @ vh, (vh.mT * values.unsqueeze(-2)) @ vh


def _matrix_sqrth(a: torch.Tensor) -> torch.Tensor:
    values, vectors = aten._linalg_eigh(a)
    result: torch.Tensor = (vectors * values.sqrt().unsqueeze(-2)) @ vectors.mT
    return result


TABLE: dict[Any, Callable[..., Any]] = {
    aten._linalg_solve_ex.default: _solve_ex,
    aten.linalg_solve.default: _solve,
    aten.linalg_inv_ex.default: _inv_ex,
    aten.linalg_inv.default: _inv,
    aten.inverse.default: _inv,
    aten.linalg_lu_factor.default: lambda a, *, pivot=True: aten.linalg_lu_factor_ex(
        a, pivot=pivot, check_errors=True
    )[:2],
    aten.linalg_lu.default: _lu,
    aten._linalg_det.default: _det,
    aten._linalg_slogdet.default: _slogdet,
    aten.linalg_matrix_power.default: _matrix_power,
    aten.matrix_power.default: _matrix_power,
    aten.linalg_tensorinv.default: _tensorinv,
    aten.linalg_tensorsolve.default: _tensorsolve,
    aten.linalg_ldl_factor.default: lambda a, *, hermitian=False: aten.linalg_ldl_factor_ex(
        a, hermitian=hermitian, check_errors=True
    )[:2],
    aten.linalg_cholesky.default: _cholesky,
    aten.cholesky_solve.default: _cholesky_solve,
    aten.cholesky_inverse.default: _cholesky_inverse,
    aten.triangular_solve.default: _triangular_solve,
    aten.linalg_householder_product.default: _householder_product,
    aten.linalg_qr.default: _qr,
    aten.linalg_pinv.atol_rtol_tensor: _pinv,
}
if hasattr(aten, "cholesky"):  # removed in torch 2.14
    TABLE[aten.cholesky.default] = _cholesky
if hasattr(aten, "linalg_polar"):
    TABLE |= {aten.linalg_polar.default: _polar, aten.linalg_matrix_sqrth.default: _matrix_sqrth}
