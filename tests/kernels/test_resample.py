# SPDX-License-Identifier: BSD-3-Clause
# upsample_* and grid_sampler_* compared with eager: modes, dtypes, layouts, scales, positions outside of the image.
from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.kernel_call import check, run
from torchette.runtime import _native, kernel_levels

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SIZES = [(7, 9), (14, 18), (3, 4), (20, 5), (1, 1)]


def upsample(name: str, x: torch.Tensor, *arguments: Any) -> None:
    check(f"aten::{name}.out", getattr(aten, name)(x, *arguments), x, *arguments)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.uint8])
def test_nearest(size: tuple[int, int], dtype: torch.dtype) -> None:
    x = (torch.randn(2, 3, 7, 9) * 20).abs().to(dtype)
    for name in ("upsample_nearest2d", "_upsample_nearest_exact2d"):
        upsample(name, x, list(size), None, None)
        upsample(name, x.to(memory_format=torch.channels_last), list(size), None, None)
    upsample("upsample_nearest1d", x[0], [size[0]], None)
    upsample("_upsample_nearest_exact1d", x[0], [size[0]], None)
    upsample("upsample_nearest3d", x[None], [5, *size], None, None, None)
    upsample("_upsample_nearest_exact3d", x[None], [5, *size], None, None, None)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_linear_and_cubic(size: tuple[int, int], align: bool, dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 7, 9).to(dtype)
    for name in (
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
    ):
        if "aa" in name and dtype in (torch.float16, torch.bfloat16):
            continue  # not supported in eager
        upsample(name, x, list(size), align, None, None)
        upsample(name, x.to(memory_format=torch.channels_last), list(size), align, None, None)
    upsample("upsample_linear1d", x[0], [size[0]], align, None)
    upsample("upsample_trilinear3d", x[None], [4, *size], align, None, None, None)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_threads_do_not_change_the_result(layout: torch.memory_format) -> None:
    """Images large enough for several threads; a thread reuses the resized input rows of its previous row."""
    x = torch.randn(2, 5, 61, 83).to(memory_format=layout)
    aligned = (
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
    )
    calls: list[tuple[Any, ...]] = [
        (name, x, size, *((False,) if name in aligned else ()), None, None)
        for name in (*aligned, "upsample_nearest2d", "_upsample_nearest_exact2d")
        for size in ([122, 166], [45, 200])
    ]
    volume = x.contiguous().reshape(2, 1, 5, 61, 83)
    calls.append(("upsample_trilinear3d", volume, [9, 64, 100], False, None, None, None))
    calls.append(("upsample_nearest3d", volume, [9, 64, 100], None, None, None))
    for name, *arguments in calls:
        expected = getattr(aten, name)(*arguments)
        (alone,) = check(f"aten::{name}.out", expected, *arguments)
        for threads in (2, 3):
            (shared,) = run(f"aten::{name}.out", *arguments, like=[expected], threads=threads)
            assert torch.equal(alone, shared), (name, arguments[1])


@pytest.mark.parametrize("channels", [1, 3, 70])  # eager uses a separate implementation for up to 4
@pytest.mark.parametrize("size", [(7, 9), (14, 18), (3, 4), (20, 5), (1, 2), (7, 3), (3, 9)])
def test_byte_images_equal_eager(size: tuple[int, int], channels: int) -> None:
    x = torch.randint(0, 256, (2, channels, 7, 9), dtype=torch.uint8)
    for name in (
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
    ):
        for image in (x, x.to(memory_format=torch.channels_last)):
            for align, scales in ((False, (None, None)), (True, (None, None)), (False, (1.4, 0.7))):
                if scales[0]:
                    size = tuple(int(n * scale) for n, scale in zip((7, 9), scales, strict=True))
                arguments = image, list(size), align, *scales
                expected = getattr(aten, name)(*arguments)
                (actual,) = run(f"aten::{name}.out", *arguments, like=[expected])
                assert torch.equal(actual, expected), (name, arguments[1:])


def test_byte_weights_close_to_one() -> None:
    x = torch.randint(0, 256, (1, 1, 1, 9), dtype=torch.uint8)
    for part in (1.6e-5, 2e-5, 2.9e-5):  # the other weight rounds to 2^15 - 1 units
        arguments = x, [1, 8], False, None, 1 / (1 + 2 * part)
        expected = aten.upsample_bilinear2d(*arguments)
        assert torch.equal(run("aten::upsample_bilinear2d.out", *arguments, like=[expected])[0], expected)


def test_given_scales_take_precedence_over_sizes() -> None:
    x = torch.randn(1, 2, 7, 9)
    for name in ("upsample_bilinear2d", "upsample_bicubic2d"):
        upsample(name, x, [11, 13], False, 1.6, 1.5)
    upsample("upsample_nearest2d", x, [11, 13], 1.6, 1.5)
    for scales in ([1.6, 1.5], [0.5, 2.0]):
        expected = aten.upsample_bilinear2d.vec(x, None, False, scales)
        check("aten::upsample_bilinear2d.vec_out", expected, x, None, False, scales)
        check(
            "aten::upsample_nearest2d.vec_out", aten.upsample_nearest2d.vec(x, None, scales), x, None, scales
        )
    expected = aten.upsample_bilinear2d.vec(x, [5, 6], True, None)
    check("aten::upsample_bilinear2d.vec_out", expected, x, [5, 6], True, None)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_grid_sampler(dtype: torch.dtype, mode: int, padding: int) -> None:
    for align in (False, True):
        x = torch.randn(2, 3, 6, 5).to(dtype)
        grid = (torch.rand(2, 4, 7, 2) * 4 - 2).to(dtype)
        arguments = (mode, padding, align)
        wide = torch.promote_types(dtype, torch.float32)
        # Eager computes positions in 16 bits; ours are closer to float64 (test_16_bit.py).
        expected = aten.grid_sampler_2d(x.to(wide), grid.to(wide), *arguments).to(dtype)
        check("aten::grid_sampler_2d.out", expected, x, grid, *arguments)
        if mode < 2 and dtype in (torch.float32, torch.float64):
            volume, places = (
                torch.randn(1, 2, 3, 4, 5).to(dtype),
                (torch.rand(1, 2, 3, 4, 3) * 4 - 2).to(dtype),
            )
            expected = aten.grid_sampler_3d(volume, places, *arguments)
            check("aten::grid_sampler_3d.out", expected, volume, places, *arguments)


def test_grid_sampler_of_nan_and_infinity() -> None:
    x = torch.randn(1, 1, 4, 4)
    grid = torch.tensor([[[[float("nan"), 0.0], [float("inf"), 0.0], [0.0, -float("inf")], [1e30, 0.0]]]])
    for mode in (0, 1, 2):
        check(
            "aten::grid_sampler_2d.out",
            aten.grid_sampler_2d(x, grid, mode, 0, False),
            x,
            grid,
            mode,
            0,
            False,
        )


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_grid_sampler_of_many_pixels(mode: int, padding: int, dtype: torch.dtype) -> None:
    """More pixels than a thread samples at a time, inside of the image and beyond its edges."""
    x, grid = torch.randn(2, 5, 33, 29).to(dtype), (torch.rand(2, 51, 67, 2) * 2.4 - 1.2).to(dtype)
    arguments = x, grid, mode, padding, False
    expected = aten.grid_sampler_2d(*arguments)
    for level in kernel_levels():
        (alone,) = run("aten::grid_sampler_2d.out", *arguments, like=[expected], level=level)
        torch.testing.assert_close(alone, expected, rtol=1e-4, atol=1e-4)
        for threads in (2, 3):
            (shared,) = run(
                "aten::grid_sampler_2d.out", *arguments, like=[expected], level=level, threads=threads
            )
            assert torch.equal(alone, shared)


@pytest.mark.parametrize("padding", [0, 1])
def test_grid_sampler_propagates_only_sampled_values(padding: int) -> None:
    """Infinite elements next to a sampled pixel, and in the first element, which no padded tap reads."""
    x = torch.randn(1, 2, 9, 17)
    x[..., 0, 0], x[..., 4, 16], x[..., 8, 3] = float("inf"), float("nan"), -float("inf")
    grid = torch.rand(1, 16, 40, 2) * 3 - 1.5
    for mode in (0, 1, 2):
        expected = aten.grid_sampler_2d(x, grid, mode, padding, True)
        check("aten::grid_sampler_2d.out", expected, x, grid, mode, padding, True)


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_invalid_scales_read_inside_of_the_image(scale: float) -> None:
    out = torch.full((1, 1, 3, 3), 7.0)
    for name in ("upsample_nearest2d", "_upsample_nearest_exact2d"):
        _native.call_kernel(f"aten::{name}.out", torch.ones(1, 1, 2, 2), [3, 3], scale, scale, out)
        assert torch.equal(out, torch.ones(1, 1, 3, 3))


def test_bad_arguments_are_refused() -> None:
    x = torch.randn(1, 2, 4, 4)
    for call in (
        ("aten::upsample_nearest2d.out", x, [0, 4], None, None, torch.empty(1, 2, 1, 4)),
        ("aten::upsample_nearest2d.out", x, [4, 4], 1e-300, 1e-300, torch.empty(1, 2, 4, 4)),
        ("aten::upsample_nearest2d.out", x, [4], None, None, torch.empty(1, 2, 4, 4)),
        ("aten::upsample_bilinear2d.out", x[0], [4, 4], False, None, None, torch.empty(1, 2, 4, 4)),
        ("aten::upsample_bilinear2d.vec_out", x, None, False, None, torch.empty(1, 2, 4, 4)),
        ("aten::grid_sampler_2d.out", x, torch.zeros(1, 3, 3, 3), 0, 0, False, torch.empty(1, 2, 3, 3)),
        ("aten::grid_sampler_2d.out", x, torch.zeros(1, 3, 3, 2), 3, 0, False, torch.empty(1, 2, 3, 3)),
    ):
        with pytest.raises(RuntimeError):
            _native.call_kernel(*call)
