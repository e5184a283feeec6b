# SPDX-License-Identifier: BSD-3-Clause
# Fourier transforms and complex views compared with eager.
from __future__ import annotations

import pytest
import torch

from tests.kernels.kernel_call import check, run

aten = torch.ops.aten
LENGTHS = [1, 2, 3, 8, 12, 17, 30, 49, 64]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_dimension(n: int, dtype: torch.dtype) -> None:
    x = torch.randn(3, n, 2, dtype=dtype)
    for normalization in (0, 1, 2):
        for onesided in (True, False):
            arguments = (x, [1], normalization, onesided)
            close("aten::_fft_r2c.out", aten._fft_r2c(*arguments), *arguments)
        z = torch.randn(3, n, 2, dtype=torch.complex64 if dtype == torch.float32 else torch.complex128)
        for forward in (True, False):
            close(
                "aten::_fft_c2c.out",
                aten._fft_c2c(z, [1], normalization, forward),
                z,
                [1],
                normalization,
                forward,
            )
        half = z[:, : n // 2 + 1].contiguous()
        close("aten::_fft_c2r.out", aten._fft_c2r(half, [1], normalization, n), half, [1], normalization, n)


def test_several_dimensions() -> None:
    x = torch.randn(3, 4, 5, 6)
    for dims in ([1, 2], [3, 0], [3, 1, 2]):
        close("aten::_fft_r2c.out", aten._fft_r2c(x, dims, 0, True), x, dims, 0, True)
        z = torch.randn(3, 4, 5, 6, dtype=torch.complex64)
        close("aten::_fft_c2c.out", aten._fft_c2c(z, dims, 2, False), z, dims, 2, False)
        size = 2 * (z.shape[dims[-1]] - 1)
        close("aten::_fft_c2r.out", aten._fft_c2r(z, dims, 2, size), z, dims, 2, size)


@pytest.mark.parametrize("shape", [(37, 256), (2, 256), (5, 4096), (33, 60), (3, 16, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_lines_and_long_ones(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Several lines are transformed at a time unless they are long: full groups, a partial group, single lines."""
    last, n = len(shape) - 1, 2 * shape[-1] - 1
    x = torch.randn(shape, dtype=dtype)
    close("aten::_fft_r2c.out", aten._fft_r2c(x, [last], 0, True), x, [last], 0, True)
    z = torch.randn(shape, dtype=torch.complex64 if dtype == torch.float32 else torch.complex128)
    close("aten::_fft_c2c.out", aten._fft_c2c(z, [0, last], 1, True), z, [0, last], 1, True)
    close("aten::_fft_c2r.out", aten._fft_c2r(z, [0, last], 2, n), z, [0, last], 2, n)


def test_complex_views() -> None:
    z = torch.randn(3, 5, dtype=torch.complex64)
    check("aten::view_as_real_copy.out", torch.view_as_real(z).clone(), z)
    pairs = torch.randn(3, 5, 2)
    check("aten::view_as_complex_copy.out", torch.view_as_complex(pairs).clone(), pairs)
    check("aten::_conj_physical.out", z.conj_physical(), z)


def close(name: str, expected: torch.Tensor, *arguments: object) -> None:

    (out,) = run(name, *arguments, like=[expected.contiguous()])
    exact = expected.dtype in (torch.float64, torch.complex128)
    torch.testing.assert_close(out, expected, rtol=1e-9 if exact else 1e-4, atol=1e-9 if exact else 1e-4)
