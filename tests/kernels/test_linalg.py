# SPDX-License-Identifier: BSD-3-Clause
# Matrix factorizations compared with eager: unique results elementwise, vectors by their products. Singular, indefinite
# or non-finite matrices must produce an error that names the operator and the matrix.
from __future__ import annotations

import pytest
import torch

import torchette
from tests.kernels.kernel_call import check, run
from torchette.runtime import _native

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64]
SQUARE = [(5, 5), (2, 3, 4, 4), (1, 1), (0, 0), (3, 0, 0), (0, 3, 3), (40, 40)]
ANY = [(5, 5), (2, 3, 4, 6), (1, 1), (6, 3), (0, 3), (3, 0), (2, 40, 17), (0, 3, 4)]


def matrix(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype)


def assert_orthonormal(rows: torch.Tensor) -> None:
    unit = torch.eye(rows.shape[-2], dtype=rows.dtype).expand(*rows.shape[:-2], -1, -1)
    torch.testing.assert_close(rows @ rows.mT, unit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SQUARE)
def test_square(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = matrix(shape, dtype)
    definite, symmetric = a @ a.mT + torch.eye(shape[-1], dtype=dtype), a + a.mT
    for upper in (False, True):
        expected = aten.linalg_cholesky_ex(definite, upper=upper)
        check("aten::linalg_cholesky_ex.L", expected, definite, upper, False)
        w, v = run("aten::_linalg_eigh.eigenvalues", a, "LU"[upper], True, like=aten._linalg_eigh(symmetric))
        full_matrix = a.triu() + a.triu(1).mT if upper else a.tril() + a.tril(-1).mT
        torch.testing.assert_close(w, torch.linalg.eigvalsh(full_matrix), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close((v * w.unsqueeze(-2)) @ v.mT, full_matrix, rtol=1e-4, atol=1e-4)
        assert_orthonormal(v.mT)
    check("aten::linalg_matrix_exp.out", aten.linalg_matrix_exp(a / 3), a / 3)
    factors, pivots, info = aten.linalg_ldl_factor_ex(symmetric)
    check("aten::linalg_ldl_factor_ex.out", (factors, pivots, info), symmetric, False, False, scale=100)
    b = torch.randn(*shape[:-1], 3, dtype=dtype)
    expected = aten.linalg_ldl_solve(factors, pivots, b)
    check("aten::linalg_ldl_solve.out", expected, factors, pivots, b, False, scale=1000)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ANY)
def test_rectangular_matrices(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = matrix(shape, dtype)
    least = min(shape[-2:])
    lu, pivots, info = aten.linalg_lu_factor_ex(a)
    check("aten::linalg_lu_factor_ex.out", (lu, pivots, info), a, True, False, scale=100)
    check("aten::lu_unpack.out", aten.lu_unpack(lu, pivots), lu, pivots, True, True)
    factors, tau = aten.geqrf(a)
    check("aten::geqrf.a", (factors, tau), a, scale=30)
    for left, transpose in ((True, True), (True, False), (False, True), (False, False)):
        operand = torch.randn(*shape[:-2], *((shape[-2], 3) if left else (3, shape[-2])), dtype=dtype)
        expected = aten.ormqr(factors, tau, operand, left, transpose)
        check("aten::ormqr.out", expected, factors, tau, operand, left, transpose, scale=10)
    poor = torch.zeros_like(a)
    poor[..., :1, :], poor[..., 1:2, :] = 1, 2
    for x in (a, poor):
        for full in (True, False):
            like = aten._linalg_svd(x, full)
            u, s, vh = run("aten::_linalg_svd.U", x, full, True, None, like=like)
            torch.testing.assert_close(s, like[1], rtol=1e-4, atol=1e-5)
            product = (u[..., :least] * s.unsqueeze(-2)) @ vh[..., :least, :]
            torch.testing.assert_close(product, x, rtol=1e-4, atol=1e-5)
            assert_orthonormal(u.mT)
            assert_orthonormal(vh)


def with_eigenvalues_of_all_kinds(n: int) -> dict[str, torch.Tensor]:
    a = torch.randn(n, n, dtype=torch.float64)
    return {
        "any": a,
        "large": a * 1e200,
        "small": a * 1e-200,
        "symmetric": a + a.mT,
        "skew": a - a.mT,
        "triangular": a.triu(),
        "orthogonal": torch.linalg.qr(a)[0],
        "of rank one": torch.ones(n, n, dtype=torch.float64),
        "of one eigenvector": torch.ones(n, n, dtype=torch.float64).triu(),
        "permutation": torch.eye(n, dtype=torch.float64).roll(1, 0),
        "zero": torch.zeros(n, n, dtype=torch.float64),
        "graded": torch.diag(torch.logspace(-12, 0, n, dtype=torch.float64)) + a * 1e-13,
    }


@pytest.mark.parametrize("n", [1, 2, 3, 5, 40])
def test_eigenvalues(n: int) -> None:
    # On some processors, torch does not converge for the matrix of rank one.
    like = [torch.zeros(*shape, 2, dtype=torch.float64) for shape in ((n,), (n, n))]
    for kind, a in with_eigenvalues_of_all_kinds(n).items():
        w, v = (torch.view_as_complex(x) for x in run("torchette::eig.out", a, like=like))
        scale = max(a.abs().max().item(), 1e-300)
        assert ((a / scale) @ v.real - (v * (w / scale)).real).abs().max() < 1e-12 * n, kind
        assert ((a / scale) @ v.imag - (v * (w / scale)).imag).abs().max() < 1e-12 * n, kind
        torch.testing.assert_close(v.norm(dim=-2), torch.ones(n, dtype=torch.float64))
        assert torch.equal(w.imag.sort()[0], -w.imag.sort(descending=True)[0])  # conjugates, to the last bit
        if kind in ("any", "symmetric", "skew", "triangular", "orthogonal"):
            distances = (w.unsqueeze(0) - torch.linalg.eigvals(a).unsqueeze(1)).abs()
            assert distances.min(0)[0].max() < 1e-8 * scale and distances.min(1)[0].max() < 1e-8 * scale


class Eigen(torch.nn.Module):
    def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w, v = torch.linalg.eig(a)
        back = v @ torch.diag_embed(w) @ torch.conj(v).mT
        return torch.linalg.eigvals(a).abs().sort()[0], back.real, w.sum(-1).real


def test_program_computes_with_eigenvalues() -> None:
    a = torch.linalg.qr(torch.randn(2, 6, 6))[0]  # normal, so that the vectors are orthogonal
    model = torchette.compile(Eigen().eval(), (a,))
    for ours, theirs in zip(model(a), Eigen()(a), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert torch.allclose(model(a)[1], a, atol=1e-5)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("flag", [True, False])
def test_solving_broadcasts(flag: bool, left: bool) -> None:
    a, b = matrix((3, 1, 4, 4), torch.float64), matrix((2, 4, 4), torch.float64)
    lu, pivots, _ = aten.linalg_lu_factor_ex(a)
    expected = aten.linalg_lu_solve(lu, pivots, b, left=left, adjoint=flag)
    check("aten::linalg_lu_solve.out", expected, lu, pivots, b, left, flag)
    for unit in (True, False):
        expected = aten.linalg_solve_triangular(a, b, upper=flag, left=left, unitriangular=unit)
        check("aten::linalg_solve_triangular.out", expected, a, b, flag, left, unit, scale=100)


def test_info_equals_eager() -> None:
    a = torch.tensor([[[1.0, 2], [2, 4]], [[4, 1], [1, 3]], [[0, 0], [0, 0]]])
    for check_errors in (False, True):
        calls = {
            "aten::linalg_lu_factor_ex.out": (aten.linalg_lu_factor_ex(a), a, True, check_errors),
            "aten::linalg_cholesky_ex.L": (aten.linalg_cholesky_ex(a - 1), a - 1, False, check_errors),
            "aten::linalg_ldl_factor_ex.out": (aten.linalg_ldl_factor_ex(a), a, False, check_errors),
        }
        for name, (expected, *arguments) in calls.items():
            assert expected[-1].any()
            if check_errors:
                with pytest.raises(RuntimeError):
                    run(name, *arguments, like=expected)
            else:
                assert torch.equal(run(name, *arguments, like=expected)[-1], expected[-1])


@pytest.mark.parametrize(
    "kernel", ["aten::_linalg_eigh.eigenvalues", "aten::_linalg_svd.U", "torchette::eig.out"]
)
def test_non_finite_matrices_are_rejected(kernel: str) -> None:
    a = torch.full((3, 3), float("nan"))
    arguments: tuple = ("L", True) if "eigh" in kernel else (True, True, None)
    if kernel == "torchette::eig.out":
        arguments = ()
    outs = [torch.empty(3), torch.empty(3, 3)]
    outs = outs if "eig" in kernel else [torch.empty(3, 3), *outs]
    with pytest.raises(RuntimeError):
        _native.call_kernel(kernel, a, *arguments, *outs)


@pytest.mark.parametrize("pivots", [[0, 1, 2], [1, 4, 3], [-2, 1, 3], [1, 2, -3]])
def test_invalid_pivots_are_rejected(pivots: list[int]) -> None:
    a, b, pivot_tensor = torch.eye(3), torch.ones(3, 1), torch.tensor(pivots, dtype=torch.int32)
    for name, arguments in (
        ("aten::linalg_lu_solve.out", (a, pivot_tensor, b, True, False)),
        ("aten::linalg_ldl_solve.out", (a, pivot_tensor, b, False)),
    ):
        with pytest.raises(RuntimeError):
            _native.call_kernel(name, *arguments, torch.empty(3, 1))


class Solves(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.linalg.solve(a, b), torch.linalg.inv(a), torch.linalg.det(a)


def test_singular_matrix_is_an_error_of_the_program() -> None:
    a, b = matrix((4, 4), torch.float32), torch.ones(4, 2)
    model = torchette.compile(Solves(), (a, b))
    for ours, theirs in zip(model(a, b), Solves()(a, b), strict=True):
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(torchette.TorchetteError):
        model(torch.ones(4, 4), b)
