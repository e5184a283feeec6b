# SPDX-License-Identifier: BSD-3-Clause
# Kernels: torchette/kernels/engine/quantized_linear.cpp, quantized_convolution.cpp, quantized_pointwise.cpp, image_pool.cpp.
"""Operators on 8-bit quantized tensors. Operands and results have a scale and a zero point.

A quantized value q represents (q - zero) scale. The integer accumulators are exact. The patterns in this file define
the float32 operations that follow the accumulator, so that kernels return the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torchette.backends.engine.operators._library import LIBRARY, channels_first, channels_last
from torchette.backends.engine.pack import unpack_linear, unpack_quads
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

_aten = ops.edge.aten


def _to(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    result: torch.Tensor = _aten._to_copy.default(x, dtype=dtype)
    return result


def _subtract_zero(x: torch.Tensor, zero: int) -> torch.Tensor:
    """x - zero, in a dtype that represents all accumulators of such values exactly."""
    result: torch.Tensor = _aten.sub.Tensor(
        _to(x, torch.float64), torch.tensor(float(zero), dtype=torch.float64)
    )
    return result


def _round_and_clamp(x: torch.Tensor, zero: int, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    """clamp(round(x) + zero, low, high), ties to even."""
    shifted = _aten.add.Tensor(_aten.round.default(x), torch.tensor(float(zero)))
    return _to(_aten.clamp.default(shifted, float(low), float(high)), dtype)


def _requantized(
    sums: torch.Tensor, terms: torch.Tensor, outputs: int, zero: int, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    """Requantizes float64 accumulators [..., outputs] with `requantization_terms`."""
    of_group = outputs // terms.shape[0]
    bias, multiplier = (_to(terms[:, row, :of_group].flatten(), torch.float32) for row in (1, 2))
    x = _aten.mul.Tensor(_aten.add.Tensor(_to(sums, torch.float32), bias), multiplier)
    return _round_and_clamp(x, zero, low, high, dtype)


@bind_pattern_to_op(
    LIBRARY,
    "quantized_linear(Tensor input, Tensor weight, Tensor terms, int input_zero, int outputs, int zero, int low, "
    "int high) -> Tensor",
)
def quantized_linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    terms: torch.Tensor,
    input_zero: int,
    outputs: int,
    zero: int,
    low: int,
    high: int,
) -> torch.Tensor:
    """clamp(round(((input - input_zero) weight^T + bias) multiplier) + zero, low, high)

    Args:
        input: int8 or uint8 [..., K].
        weight: `pack_quads`: int8 [ceil(N / 16), ceil(K / 4), 16, 4].
        terms: `requantization_terms`: float32 [1, 3, 16 ceil(N / 16)].
        outputs: N.
        zero, low, high: zero point and bounds of the result, which has the dtype of the input.
    """
    weights = _to(unpack_quads(weight, outputs, input.shape[-1]), torch.float64)
    sums = _aten.linear.default(_subtract_zero(input, input_zero), weights)
    return _requantized(sums, terms, outputs, zero, low, high, input.dtype)


@bind_pattern_to_op(
    LIBRARY,
    "quantized_convolution(Tensor input, Tensor weight, Tensor terms, int input_zero, int[] kernel, int[] stride, "
    "int[] padding, int[] dilation, int outputs, int zero, int low, int high) -> Tensor",
)
def quantized_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    terms: torch.Tensor,
    input_zero: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    outputs: int,
    zero: int,
    low: int,
    high: int,
) -> torch.Tensor:
    """clamp(round((convolution(input - input_zero) + bias) multiplier) + zero, low, high)

    Args:
        input: int8 or uint8 [N, *spatial, C], one to three spatial dimensions.
        weight: `pack_quads` of each group: int8 [groups, ceil(outputs / groups / 16), ceil(taps C / groups / 4), 16, 4].
        terms: `requantization_terms`: float32 [groups, 3, 16 ceil(outputs / groups / 16)].
        kernel, stride, padding, dilation: one value for each spatial dimension.
        zero, low, high: zero point and bounds of the result [N, *spatial, outputs], which has the dtype of the input.
    """
    groups, channels = weight.shape[0], input.shape[-1] // weight.shape[0]
    depth = channels * torch.Size(kernel).numel()
    rows = torch.cat([unpack_quads(group, outputs // groups, depth) for group in weight])
    filters = _to(rows.view(outputs, *kernel, channels).movedim(-1, 1).contiguous(), torch.float64)
    return _convolved(input, filters, terms, input_zero, (stride, padding, dilation), groups, zero, low, high)


@bind_pattern_to_op(
    LIBRARY,
    "quantized_depthwise(Tensor input, Tensor weight, Tensor terms, int input_zero, int[] kernel, int[] stride, "
    "int[] padding, int[] dilation, int zero, int low, int high) -> Tensor",
)
def quantized_depthwise(
    input: torch.Tensor,
    weight: torch.Tensor,
    terms: torch.Tensor,
    input_zero: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    zero: int,
    low: int,
    high: int,
) -> torch.Tensor:
    """`quantized_convolution` with one filter for each channel.

    Args:
        input: int8 or uint8 [N, *spatial, C], one to three spatial dimensions.
        weight: `pack_linear` of [C, taps]: int8 [ceil(C / 16), taps, 16], at most 512 taps.
        terms: `requantization_terms`: float32 [1, 3, 16 ceil(C / 16)].
        kernel, stride, padding, dilation: one value for each spatial dimension.
        zero, low, high: zero point and bounds of the result, which has the dtype of the input.
    """
    channels = input.shape[-1]
    filters = _to(unpack_linear(weight, channels).reshape(channels, 1, *kernel), torch.float64)
    return _convolved(
        input, filters, terms, input_zero, (stride, padding, dilation), channels, zero, low, high
    )


def _convolved(
    input: torch.Tensor,
    filters: torch.Tensor,
    terms: torch.Tensor,
    input_zero: int,
    where: tuple[Sequence[int], Sequence[int], Sequence[int]],
    groups: int,
    zero: int,
    low: int,
    high: int,
) -> torch.Tensor:
    image = channels_first(_subtract_zero(input, input_zero))
    geometry = [list(each) for each in where]
    sums = _aten.convolution.default(image, filters, None, *geometry, False, [0] * len(geometry[0]), groups)
    return _requantized(channels_last(sums), terms, filters.shape[0], zero, low, high, input.dtype)


@bind_pattern_to_op(
    LIBRARY,
    "quantized_avg_pool(Tensor input, int[] kernel, int[] stride, int[] padding, float multiplier, int input_zero, "
    "int zero, int low, int high) -> Tensor",
)
def quantized_avg_pool(
    input: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    multiplier: float,
    input_zero: int,
    zero: int,
    low: int,
    high: int,
) -> torch.Tensor:
    """clamp(round(sum(input - input_zero) multiplier) + zero, low, high) under each window. Padding adds 0 to the sum.

    Args:
        input: int8 or uint8 [N, *spatial, C], one to three spatial dimensions.
        kernel, stride, padding: one value for each spatial dimension; a window has at most 65,536 elements.
        zero, low, high: zero point and bounds of the result, which has the dtype of the input.
    """
    image, spatial = channels_first(_subtract_zero(input, input_zero)), len(kernel)
    where = [list(each) for each in (kernel, stride, padding)]
    if spatial == 1:
        image, where = _aten.unsqueeze_copy.default(image, 2), [[1, *kernel], [1, *stride], [0, *padding]]
    pool = _aten.avg_pool3d if spatial == 3 else _aten.avg_pool2d
    sums = pool.default(image, *where, False, True, 1)
    if spatial == 1:
        sums = _aten.squeeze_copy.dim(sums, 2)
    x = _aten.mul.Tensor(
        _to(channels_last(sums), torch.float32), torch.tensor(multiplier, dtype=torch.float32)
    )
    return _round_and_clamp(x, zero, low, high, input.dtype)


@bind_pattern_to_op(
    LIBRARY, "quantize(Tensor input, float scale, int zero, int low, int high, *, ScalarType dtype) -> Tensor"
)
def quantize(
    input: torch.Tensor, scale: float, zero: int, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    """clamp(round(input (1 / scale)) + zero, low, high), like torch's `quantize_per_tensor`. NaN becomes `low`.

    Args:
        input: float32.
        scale: positive.
        dtype: int8 or uint8.
    """
    x = _aten.mul.Tensor(_to(input, torch.float32), torch.tensor(1.0 / scale, dtype=torch.float32))
    return _round_and_clamp(x, zero, low, high, dtype)


@bind_pattern_to_op(LIBRARY, "dequantize(Tensor input, float scale, int zero) -> Tensor")
def dequantize(input: torch.Tensor, scale: float, zero: int) -> torch.Tensor:
    """(input - zero) scale in float32, for int8 or uint8 inputs."""
    centred = _aten.sub.Tensor(_to(input, torch.float32), torch.tensor(float(zero)))
    result: torch.Tensor = _aten.mul.Tensor(centred, torch.tensor(scale, dtype=torch.float32))
    return result


@bind_pattern_to_op(LIBRARY, "lookup(Tensor input, Tensor table) -> Tensor")
def lookup(input: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Maps each byte through a table of 256 values, which implements any function of one quantized tensor.

    Args:
        input: int8 or uint8.
        table: int8 or uint8 [256]. The index of a value is its byte; the index of -1 is 255.

    Returns:
        A tensor with the shape of `input` and the dtype of `table`.
    """
    indices = _aten.remainder.Scalar(_to(input, torch.int64), 256)
    rows = _aten.index_select.default(table, 0, _aten.view_copy.default(indices, [-1]))
    result: torch.Tensor = _aten.view_copy.default(rows, list(input.shape))
    return result


def _bind_binary(name: str, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Binds quantize(function(dequantize(a), dequantize(b))) for two int8 or two uint8 tensors."""

    @bind_pattern_to_op(
        LIBRARY,
        f"{name}(Tensor a, Tensor b, float a_scale, int a_zero, float b_scale, int b_zero, float scale, int zero, "
        "int low, int high) -> Tensor",
    )
    def pattern(
        a: torch.Tensor,
        b: torch.Tensor,
        a_scale: float,
        a_zero: int,
        b_scale: float,
        b_zero: int,
        scale: float,
        zero: int,
        low: int,
        high: int,
    ) -> torch.Tensor:
        result = function(dequantize(a, a_scale, a_zero), dequantize(b, b_scale, b_zero))
        return quantize(result, scale, zero, low, high, a.dtype)

    return pattern


quantized_add = _bind_binary("quantized_add", _aten.add.Tensor)
"""`b` has the shape of `a`."""
quantized_mul = _bind_binary("quantized_mul", _aten.mul.Tensor)
"""`b` has the rank of `a`; each size of `b` equals the size of `a` or is 1 and broadcasts."""


@bind_pattern_to_op(
    LIBRARY,
    "quantized_convolution_add(Tensor input, Tensor weight, Tensor terms, Tensor residual, int input_zero, int[] kernel, "
    "int[] stride, int[] padding, int[] dilation, int outputs, float term_scale, int term_zero, int term_low, "
    "int term_high, float residual_scale, int residual_zero, float scale, int zero, int low, int high) -> Tensor",
)
def quantized_convolution_add(
    input: torch.Tensor,
    weight: torch.Tensor,
    terms: torch.Tensor,
    residual: torch.Tensor,
    input_zero: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    outputs: int,
    term_scale: float,
    term_zero: int,
    term_low: int,
    term_high: int,
    residual_scale: float,
    residual_zero: int,
    scale: float,
    zero: int,
    low: int,
    high: int,
) -> torch.Tensor:
    """`quantized_add` of a `quantized_convolution` and a residual, with the same bits.

    Args:
        input, weight, terms, input_zero, kernel, stride, padding, dilation, outputs: see `quantized_convolution`.
        residual: has the shape and dtype of the convolution's result.
        term_scale, term_zero, term_low, term_high: scale, zero point and bounds of the convolution's result.
        residual_scale, residual_zero: scale and zero point of the residual.
        scale, zero, low, high: scale, zero point and bounds of the sum.
    """
    convolved = quantized_convolution(
        input, weight, terms, input_zero, kernel, stride, padding, dilation, outputs, term_zero, term_low, term_high
    )  # fmt: skip
    schemes = term_scale, term_zero, residual_scale, residual_zero, scale, zero, low, high
    return quantized_add(convolved, residual, *schemes)
