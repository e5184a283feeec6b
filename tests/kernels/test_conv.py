# SPDX-License-Identifier: BSD-3-Clause
# aten::convolution compared with eager: every code path (1x1, depthwise, panels, transposed, strided) and odd sizes.
from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.kernels.kernel_call import check
from torchette.runtime import _native

NAME = "aten::convolution.out"


def conv(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    transposed: bool = False,
    output_padding: Any = 0,
    groups: int = 1,
) -> None:
    spatial = x.dim() - 2
    lists = [
        [v] * spatial if isinstance(v, int) else list(v) for v in (stride, padding, dilation, output_padding)
    ]
    arguments = (x, w, bias, *lists[:3], transposed, lists[3], groups)
    expected = torch.ops.aten.convolution(*arguments)
    contiguous = torch.empty(expected.shape, dtype=expected.dtype)
    check(NAME, contiguous.copy_(expected), *arguments, scale=4)


@pytest.mark.parametrize("channels", [(1, 1), (3, 8), (16, 24), (33, 17), (400, 30)])
@pytest.mark.parametrize("image", [(1, 1), (3, 5), (7, 7), (14, 14), (9, 29)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_pointwise(channels: tuple[int, int], image: tuple[int, int], with_bias: bool) -> None:
    c, o = channels
    x, w = torch.randn(2, c, *image), torch.randn(o, c, 1, 1)
    conv(x, w, torch.randn(o) if with_bias else None)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
def test_square_kernels(kernel: int, stride: int, padding: int, dilation: int) -> None:
    for h, w in [(9, 9), (11, 37), (14, 14), (16, 70)]:
        conv(
            torch.randn(1, 3, h, w),
            torch.randn(5, 3, kernel, kernel),
            torch.randn(5),
            stride,
            padding,
            dilation,
        )


@pytest.mark.parametrize(
    "shape",
    [
        ((1, 3, 64, 64), (16, 3, 3, 3), 2, 1),
        ((1, 3, 50, 50), (16, 3, 7, 7), 2, 3),
        ((2, 64, 14, 14), (32, 64, 3, 3), 1, 1),
        ((1, 128, 7, 7), (64, 128, 3, 3), 1, 1),
        ((1, 3, 64, 64), (24, 3, 16, 16), 16, 0),
        ((1, 1, 49, 10), (64, 1, 10, 4), 2, (5, 1)),
        ((1, 24, 28, 28), (40, 24, 1, 1), 2, 0),
        ((1, 5, 6, 200), (3, 5, 3, 9), (1, 2), (0, 4)),
        ((3, 4, 9, 1), (3, 4, 3, 1), 1, (1, 0)),
    ],
)
def test_model_like_shapes(shape: tuple[Any, Any, Any, Any]) -> None:
    x, w, stride, padding = shape
    conv(torch.randn(x), torch.randn(w), torch.randn(w[0]), stride, padding)


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1, 2, 3])
def test_depthwise(kernel: int, stride: int, padding: int) -> None:
    for size in [5, 7, 8, 14, 15, 16, 17, 28, 33, 41]:
        x, w = torch.randn(2, 3, size, size), torch.randn(3, 1, kernel, kernel)
        conv(x, w, torch.randn(3), stride, padding, groups=3)
    conv(torch.randn(1, 2, 6, 90), torch.randn(2, 1, kernel, kernel), None, stride, padding, groups=2)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [
        ((3, 5), 1, 1, 1),
        ((7, 7), 1, 3, 1),
        ((7, 7), 2, 3, 1),
        ((3, 3), 1, 2, 2),
        ((3, 3), (2, 1), 1, 1),
        ((3, 3), 3, 1, 1),
        ((2, 2), 2, 0, 1),
        ((1, 1), 1, 0, 1),
        ((1, 1), 1, 1, 1),
    ],
)
def test_depthwise_of_any_kernel(kernel: Any, stride: Any, padding: Any, dilation: Any) -> None:
    for h, w in [(9, 9), (20, 35)]:
        conv(
            torch.randn(1, 4, h, w),
            torch.randn(4, 1, *kernel),
            torch.randn(4),
            stride,
            padding,
            dilation,
            groups=4,
        )


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("kernel", [1, 3])
def test_grouped(groups: int, kernel: int) -> None:
    x, w = torch.randn(2, 6 * groups, 13, 11), torch.randn(5 * groups, 6, kernel, kernel)
    conv(x, w, torch.randn(5 * groups), 1, kernel // 2, groups=groups)
    multiplier = torch.randn(3 * groups, 1, 3, 3)
    conv(torch.randn(1, groups, 13, 11), multiplier, torch.randn(3 * groups), 2, 1, groups=groups)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed(stride: int, padding: int, groups: int) -> None:
    for kernel, dilation in itertools.product([2, 3, 4], [1, 2]):
        x, w = torch.randn(2, 6, 7, 19), torch.randn(6, 4, kernel, kernel)
        conv(x, w, torch.randn(4 * groups), stride, padding, dilation, True, stride - 1, groups)
    x, w = torch.randn(1, 130, 5, 5), torch.randn(130, 70, 3, 3)
    conv(x, w, None, stride, padding, 1, True, 0)


@pytest.mark.parametrize("transposed", [False, True])
def test_one_and_three_dimensions(transposed: bool) -> None:
    for stride, padding, dilation in [(1, 0, 1), (2, 1, 1), (1, 2, 2)]:
        w = torch.randn(4, 4, 3)
        conv(torch.randn(2, 4, 33), w, torch.randn(4), stride, padding, dilation, transposed)
        w = torch.randn(4, 4, 3, 2, 3)
        conv(torch.randn(2, 4, 6, 7, 20), w, torch.randn(4), stride, padding, dilation, transposed)
    conv(torch.randn(2, 4, 33), torch.randn(4, 1, 3), None, 1, 1, groups=4)
    conv(torch.randn(2, 4, 6, 7, 8), torch.randn(4, 1, 3, 3, 3), None, 1, 1, groups=4)
    conv(torch.randn(2, 4, 6, 7, 8), torch.randn(5, 4, 1, 1, 1), None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_dtypes(dtype: torch.dtype) -> None:
    x, w = (torch.randn(1, 4, 6, 7) * 2).to(dtype), (torch.randn(6, 2, 3, 3) * 2).to(dtype)
    conv(x, w, torch.zeros(6).to(dtype), 1, 1, groups=2)
    if dtype != torch.int64:
        conv(x, (torch.randn(4, 3, 3, 3) * 2).to(dtype), None, 2, 1, transposed=True)


@pytest.mark.parametrize("channels", [(32, 32), (33, 47), (64, 40)])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_square_kernels_of_many_channels(channels: tuple[int, int], padding: int) -> None:
    c, o = channels
    for h, w in [(13, 13), (14, 14), (15, 40), (28, 29), (37, 31), (12, 80)]:
        conv(torch.randn(2, c, h, w), torch.randn(o, c, 3, 3), torch.randn(o), 1, padding)
    conv(torch.randn(1, 2 * c, 20, 20), torch.randn(2 * o, c, 3, 3), None, 1, padding, groups=2)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf"), 3e38])
def test_special_values_in_many_channels(special: float) -> None:
    x, w = torch.randn(1, 40, 16, 33), torch.randn(33, 40, 3, 3)
    x[0, 7, 5, 6], x[0, 39, 15, 32] = special, special
    conv(x, w, torch.randn(33), 1, 1)


def test_channels_last() -> None:
    x = torch.randn(2, 8, 9, 10).to(memory_format=torch.channels_last)
    w = torch.randn(6, 8, 3, 3).to(memory_format=torch.channels_last)
    arguments = (x, w, torch.randn(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    check(NAME, torch.ops.aten.convolution(*arguments), *arguments)


# Convolutions by windows of pixels: in and out channels, kernel, stride, padding, dilation, groups. Weights are small.
WINDOWS: list[tuple[int, int, list[int], int, int, int, int]] = [
    (16, 16, [3, 3], 1, 1, 1, 1), (3, 32, [3, 3], 2, 1, 1, 1), (3, 7, [7, 7], 2, 3, 1, 1), (5, 7, [5, 5], 1, 2, 1, 1),
    (32, 48, [3, 3], 1, 1, 2, 2), (17, 19, [1, 3], 1, 1, 1, 1), (200, 8, [3, 3], 1, 0, 1, 1), (7, 12, [4, 2], 3, 2, 1, 1),
    (3, 4, [3, 3], 1, 4, 1, 1), (4, 6, [3, 4], 1, 1, 2, 1), (2, 5, [2, 3, 3], 1, 1, 1, 1), (33, 4, [3, 2, 3], 2, 1, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize(("c", "o", "kernel", "stride", "padding", "dilation", "groups"), WINDOWS)
@pytest.mark.parametrize("turned_weight", [False, True])
def test_channels_last_windows(
    c: int,
    o: int,
    kernel: list[int],
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    turned_weight: bool,
) -> None:
    volume = len(kernel) == 3
    format = torch.channels_last_3d if volume else torch.channels_last
    x = torch.randn(2, c, *((6, 17, 13) if volume else (35, 29))).to(memory_format=format)
    w = torch.randn(o, c // groups, *kernel)
    w = w.to(memory_format=format) if turned_weight else w
    steps = [[number] * len(kernel) for number in (stride, padding, dilation)]
    for bias in (None, torch.randn(o)):
        arguments = (x, w, bias, *steps, False, [0] * len(kernel), groups)
        expected = torch.ops.aten.convolution(*arguments)
        check(NAME, expected.contiguous(memory_format=format), *arguments)


@pytest.mark.parametrize("channels", [2, 16, 37])
@pytest.mark.parametrize("stride", [1, 2])
def test_channels_last_pointwise_and_depthwise(channels: int, stride: int) -> None:
    x = torch.randn(2, channels, 9, 10).to(memory_format=torch.channels_last)
    for w, bias, groups in (
        (torch.randn(5, channels, 1, 1), torch.randn(5), 1),
        (torch.randn(channels, 1, 3, 5), torch.randn(channels), channels),
        (torch.randn(channels, 1, 3, 3), None, channels),
    ):
        padding = [0, 0] if groups == 1 else [1, 2]
        arguments = (x, w, bias, [stride] * 2, padding, [1, 1 + (groups > 1)], False, [0, 0], groups)
        check(NAME, torch.ops.aten.convolution(*arguments), *arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_sums_are_rounded_once(dtype: torch.dtype) -> None:
    x, w = torch.randn(2, 64, 9, 9).to(dtype), torch.randn(8, 64, 3, 3).to(dtype)
    for groups in (1, 4):
        filters = w[:, : 64 // groups].contiguous()
        settings = ([1, 1], [1, 1], [1, 1], False, [0, 0], groups)
        exact = torch.ops.aten.convolution(x.double(), filters.double(), None, *settings)
        out = torch.empty(exact.shape, dtype=dtype)
        _native.call_kernel(NAME, x, filters, None, *settings, out)
        assert ((out.double() - exact).abs() <= torch.finfo(dtype).eps / 2 * exact.abs() + 1e-3).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
@pytest.mark.parametrize("transposed", [False, True])
def test_other_types_over_volumes(dtype: torch.dtype, transposed: bool) -> None:
    x, w = (torch.randn(2, 4, 4, 5, 6) * 3).to(dtype), (torch.randn(4, 2, 2, 3, 3) * 3).to(dtype)
    if dtype == torch.int64 and transposed:
        pytest.skip("not supported in eager")
    conv(x, w, None, [1, 2, 1], 1, [1, 1, 2], transposed, groups=2)


def test_nan_and_infinity_spread_as_in_eager() -> None:
    x, w = torch.randn(1, 3, 12, 40), torch.randn(4, 3, 3, 3)
    x[0, 1, 5, 0], x[0, 0, 3, 39], x[0, 2, 0, 20] = float("nan"), float("inf"), float("-inf")
    conv(x, w, None, 1, 1)
    conv(x, torch.randn(3, 1, 3, 3), None, 1, 1, groups=3)


def test_single_element_lists_apply_to_all_dimensions() -> None:
    x, w = torch.randn(1, 2, 9, 9), torch.randn(3, 2, 3, 3)
    expected = torch.ops.aten.convolution(x, w, None, [2], [1], [1], False, [0], 1)
    check(NAME, expected, x, w, None, [2], [1], [1], False, [0], 1)


def test_impossible_shapes_are_refused() -> None:
    x = torch.randn(1, 4, 5, 5)
    out = torch.empty(1, 3, 3, 3)
    one = [1, 1]
    for weight, bias, message in [
        (torch.randn(3, 5, 3, 3), None, "channels"),
        (torch.randn(3, 4, 9, 9), None, "does not fit"),
        (torch.randn(3, 4, 3, 3), torch.randn(4), "bias"),
        (torch.randn(3, 4, 3), None, "weight has 3"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            check(NAME, out, x, weight, bias, one, [0, 0], one, False, [0, 0], 1)


def test_sizes_that_do_not_fit_32_bits_are_refused() -> None:
    # 2^32 + 1 groups of one channel would pass as one channel if sizes were truncated to int32.
    x, w, out = torch.empty(1, 0, 3), torch.empty(0, 1, 1), torch.empty(1, 1, 3)
    with pytest.raises(RuntimeError, match="groups"):
        check(NAME, out, x, w, None, [1], [0], [1], True, [0], 2**32 + 1)
    x, w, out = torch.randn(1, 1, 3), torch.randn(1, 1, 1), torch.empty(1, 1, 1)
    with pytest.raises(RuntimeError, match="does not fit"):
        check(NAME, out, x, w, None, [2**31 - 1], [0], [1], True, [2**31 - 1], 1)
    # The intermediate values below would be small or positive if they were truncated to int32.
    x, w, out = torch.randn(1, 1, 3), torch.randn(1, 1, 3), torch.empty(1, 1, 3)
    for stride, padding, dilation, transposed in (
        (1, 0, 2**31 - 1, False), (1, 2**31 - 1, 2**31 - 1, False), (2**30, 2**30, 1, False), (2**31 - 1, 0, 1, True),
        (1, 0, 2**31 - 1, True),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="does not fit"):
            check(NAME, out, x, w, None, [stride], [padding], [dilation], transposed, [0], 1)
