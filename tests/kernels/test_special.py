# SPDX-License-Identifier: BSD-3-Clause
# Special functions and rare elementwise operators compared with eager over their whole range.
from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch

from tests.kernels.kernel_call import run

aten = torch.ops.aten
POINTS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, -3.0, 1e-30, -1e-7, 29.9, 30.1, 87.0, 500.0, -500.0]
POINTS += [math.inf, -math.inf, math.nan]
UNARY = [
    "angle", "digamma", "erfc", "erfinv", "i0", "lgamma", "special_erfcx", "special_i0e", "special_i1", "special_i1e",
    "special_ndtri", "signbit",
]  # fmt: skip


def check(name: str, expected: torch.Tensor, *arguments: object) -> None:
    (output,) = run(name, *arguments, like=[expected])
    tolerance = (
        {"rtol": 1e-5, "atol": 1e-6} if expected.dtype == torch.float32 else {"rtol": 1e-8, "atol": 1e-9}
    )
    if not expected.dtype.is_floating_point:
        tolerance = {"rtol": 0, "atol": 0}
    torch.testing.assert_close(output, expected, equal_nan=True, **tolerance)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unary(name: str, dtype: torch.dtype) -> None:
    near, far = torch.linspace(-1, 1, 401, dtype=dtype), torch.linspace(-20, 45, 401, dtype=dtype)
    x = torch.cat([torch.tensor(POINTS, dtype=dtype), near, far + 0.013])
    check(f"aten::{name}.out", getattr(aten, name)(x), x)
    if name not in ("angle", "signbit"):
        check(f"aten::{name}.out", getattr(aten, name)(torch.arange(5)), torch.arange(5))


@pytest.mark.parametrize(
    "name", ["copysign", "fmax", "fmin", "hypot", "nextafter", "igamma", "igammac", "special_zeta"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binary(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor(POINTS, dtype=dtype)
    a, b = (
        torch.cat([x, torch.rand(50, dtype=dtype) * 20]),
        torch.cat([x, torch.linspace(0, 30, 40, dtype=dtype)]),
    )
    if "igamma" in name or "zeta" in name:
        a, b = a[a.abs() < 100].abs(), b[b.abs() < 100].abs()
    a, b = a[:, None], b[None]
    check(f"aten::{name}.out", getattr(aten, name)(a, b), a, b)


# In float64, eager has only six correct digits for these functions, so they are compared with 30-digit references.
EXACT: dict[str, Callable] = {
    "airy_ai": mpmath.airyai,
    "bessel_j0": lambda x: mpmath.besselj(0, x),
    "bessel_j1": lambda x: mpmath.besselj(1, x),
    "bessel_y0": lambda x: mpmath.bessely(0, x),
    "bessel_y1": lambda x: mpmath.bessely(1, x),
    "scaled_modified_bessel_k0": lambda x: mpmath.besselk(0, x) * mpmath.exp(x),
    "scaled_modified_bessel_k1": lambda x: mpmath.besselk(1, x) * mpmath.exp(x),
    "spherical_bessel_j0": mpmath.sinc,
}


@pytest.mark.parametrize("name", EXACT)
def test_against_thirty_digits(name: str) -> None:
    x = torch.cat([torch.linspace(-20, 45, 66).double() + 0.013, torch.tensor([1e-5, 1e-3, 0.1, 0.5, 7.963])])
    if "_y" in name or "_k" in name:
        x = x[x > 0]
    with mpmath.workdps(30):
        exact = torch.tensor([float(EXACT[name](mpmath.mpf(v))) for v in x.tolist()], dtype=torch.float64)
    (output,) = run(f"aten::special_{name}.out", x, like=[exact])
    torch.testing.assert_close(output, exact, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("name", [n for n in EXACT if n not in ("bessel_j0", "bessel_j1")])
def test_bessel_functions_at_their_ends(name: str) -> None:
    x = torch.tensor([0.0, -0.0, -1.5, math.nan], dtype=torch.float64)
    eager = getattr(aten, f"special_{name}")(x)
    check(f"aten::special_{name}.out", eager, x)
    check(f"aten::special_{name}.out", eager.float(), torch.tensor([0, 0, -1.5, math.nan]))


@pytest.mark.parametrize(
    "name",
    ["chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
     "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"],
)  # fmt: skip
def test_polynomials(name: str) -> None:
    x = torch.cat([torch.tensor([-1.0, 1, 0, -0.5, 2, -9, 9, 0.99]), torch.linspace(-1.5, 1.5, 21)])
    degree = torch.tensor([-2, -0.5, 0, 0.7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 33, 60])
    x, degree = x.double()[:, None], degree.double()[None]
    check(f"aten::special_{name}.out", getattr(aten, f"special_{name}")(x, degree), x, degree)
    if "chebyshev" not in name:
        huge, expected = torch.tensor([1e18, math.nan]), torch.tensor([math.nan, 0])
        check(f"aten::special_{name}.out", expected, torch.tensor(0.25), huge)


@pytest.mark.parametrize("order", [0, 1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_polygamma(order: int, dtype: torch.dtype) -> None:
    x = torch.linspace(0.1, 12, 100, dtype=dtype)
    check("aten::polygamma.out", aten.polygamma(order, x), order, x)


@pytest.mark.parametrize("name", ["gcd", "lcm"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_divisors(name: str, dtype: torch.dtype) -> None:
    a = torch.randint(0 if dtype == torch.uint8 else -11, 11, (20, 1)).to(dtype)
    b = torch.randint(0, 11, (30,)).to(dtype)
    check(f"aten::{name}.out", getattr(aten, name)(a, b), a, b)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_glu(dim: int) -> None:
    x = torch.randn(4, 6, 8)
    check("aten::glu.out", aten.glu(x, dim), x, dim)
    y = torch.randn(4, 6, 8, 2).to(memory_format=torch.channels_last)
    check("aten::glu.out", aten.glu(y, dim), y, dim)


def test_copysign_of_a_scalar() -> None:
    x = torch.tensor([1.0, -2.0, 0.0])
    check("aten::copysign.Scalar_out", torch.copysign(x, -0.0), x, -0.0)
