# SPDX-License-Identifier: BSD-3-Clause
# quantized_decomposed kernels compared bit by bit with torch's reference: ties, range limits, every dtype, scales as
# scalars and as tensors of floats and doubles.
from __future__ import annotations

import copy

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # declares torch.ops.quantized_decomposed

from tests.kernels import samples
from tests.kernels.kernel_call import run
from torchette.runtime import _native

qd = torch.ops.quantized_decomposed
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32]
FLOATS = {torch.float32: 6, torch.float64: 7, torch.float16: 5, torch.bfloat16: 15}
CODES = {torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3} | FLOATS


def bounds(dtype: torch.dtype) -> tuple[int, int]:
    """Returns the range that float32 represents exactly, so that no conversion overflows."""
    info = torch.iinfo(dtype)
    return (info.min, info.max) if info.bits < 32 else (-(2**31), 2**31 - 128)


def exactly(name: str, expected: torch.Tensor | tuple[torch.Tensor, ...], *arguments: object) -> None:
    results = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    for threads in (1, 2, 3):
        actual = run(f"quantized_decomposed::{name}", *arguments, like=results, threads=threads)
        for ours, theirs in zip(actual, results, strict=True):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs), (ours - theirs).abs().max()


def floats(*sizes: int) -> torch.Tensor:
    """Values on and between the steps of a scale of 0.25, and far outside of the range."""
    x = torch.randn(*sizes) * 40
    flat = x.view(-1)
    flat[::3] = (flat[::3] * 8).round() / 8  # ties
    flat[1], flat[2], flat[-1] = float("inf"), float("-inf"), -0.0
    return x


def integers(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    low, high = bounds(dtype)
    x = torch.randint(low, high + 1, sizes, dtype=torch.int64)
    x.view(-1)[0], x.view(-1)[-1] = low, high
    return x.to(dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("scale", [0.25, 0.1, 3.7e-3])
def test_quantize_per_tensor(dtype: torch.dtype, scale: float) -> None:
    x = floats(3, 5, 700)
    low, high = bounds(dtype)
    zero = (low + high) // 2 + 3 if dtype is not torch.int32 else 7
    for least, most in ((low, high), (max(low, -8), min(high, 7))):
        expected = qd.quantize_per_tensor.default(x, scale, zero, least, most, dtype)
        exactly("quantize_per_tensor.out", expected, x, scale, zero, least, most, CODES[dtype])
        tensors = torch.tensor(scale, dtype=torch.float64), torch.tensor(zero)
        exactly("quantize_per_tensor.Tensor_out", expected, x, *tensors, least, most, CODES[dtype])


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("out", [torch.float32, torch.float16, torch.bfloat16])
def test_dequantize_per_tensor(dtype: torch.dtype, out: torch.dtype) -> None:
    x = integers(dtype, 4, 1000)
    for scale, zero in ((0.1, 3), (0.0123, 100)):
        expected = qd.dequantize_per_tensor.default(x, scale, zero, *bounds(dtype), dtype, out_dtype=out)
        common = *bounds(dtype), CODES[dtype], CODES[out]
        exactly("dequantize_per_tensor.out", expected, x, scale, zero, *common)
        tensors = torch.tensor(scale, dtype=torch.float64), torch.tensor(zero)
        exactly("dequantize_per_tensor.Tensor_out", expected, x, *tensors, *common)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_per_channel(dtype: torch.dtype, kind: torch.dtype, axis: int) -> None:
    x, low, high = floats(5, 6, 7), *bounds(dtype)
    scales = torch.rand(x.shape[axis], dtype=kind) * 0.3 + 0.01
    zeros = torch.randint(0, 20, (x.shape[axis],))
    expected = qd.quantize_per_channel.default(x, scales, zeros, axis % 3, low, high, dtype)
    exactly("quantize_per_channel.out", expected, x, scales, zeros, axis, low, high, CODES[dtype])
    q = integers(dtype, 5, 6, 7)
    for points in (zeros, None):
        expected = qd.dequantize_per_channel.default(q, scales, points, axis % 3, low, high, dtype)
        exactly(
            "dequantize_per_channel.out", expected, q, scales, points, axis, low, high, CODES[dtype], None
        )


def test_channels_last() -> None:
    x = floats(2, 6, 5, 4).to(memory_format=torch.channels_last)
    scales, zeros = torch.rand(6) + 0.1, torch.arange(6)
    expected = qd.quantize_per_channel.default(x, scales, zeros, 1, -128, 127, torch.int8)
    exactly("quantize_per_channel.out", expected, x, scales, zeros, 1, -128, 127, CODES[torch.int8])


@pytest.mark.parametrize("shape", [(1, 9), (3, 4, 300), (7, 1)])
def test_per_token(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape) * torch.logspace(-4, 4, shape[0]).view(-1, *[1] * (len(shape) - 1))
    scales, zeros = qd.choose_qparams_per_token_asymmetric.default(x, torch.int8)
    exactly("choose_qparams_per_token_asymmetric.out", (scales, zeros), x, CODES[torch.int8])
    for kind in (torch.float64, torch.float32):
        numbers = scales.to(kind), zeros
        q = qd.quantize_per_token.default(x, *numbers, -128, 127, torch.int8)
        exactly("quantize_per_token.out", q, x, *numbers, -128, 127, CODES[torch.int8])
        expected = qd.dequantize_per_token.default(q, *numbers, -128, 127, torch.int8, torch.float32)
        common = -128, 127, CODES[torch.int8], CODES[torch.float32]
        exactly("dequantize_per_token.out", expected, q, *numbers, *common)


@pytest.mark.parametrize(
    "low, high, dtype", [(-128, 127, torch.int8), (0, 255, torch.uint8), (-8, 7, torch.int8)]
)
def test_choose_qparams(low: int, high: int, dtype: torch.dtype) -> None:
    for x in (torch.randn(4, 50), torch.rand(9) + 3, -torch.rand(9), torch.zeros(3), torch.randn(1) * 1e-9):
        expected = qd.choose_qparams.tensor(x, low, high, 1e-7, dtype)
        exactly("choose_qparams.Tensor_out", expected, x, low, high, 1e-7, CODES[dtype])


@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
@pytest.mark.parametrize("groups", [None, 1, 4])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_embeddings(bits: int, groups: int | None, kind: torch.dtype) -> None:
    rows, columns, low = 11, 32, -(1 << bits - 1)
    q = torch.randint(low, -low, (rows, columns)).to(torch.int8)
    scales = (torch.rand((rows,) if groups is None else (rows, groups)) + 0.05).to(kind)
    zeros = torch.randint(-2, 2, scales.shape).to(kind)
    indices = torch.tensor([[0, 10, 3], [3, 3, 7]])
    shifted = (q.to(torch.int64) - low).to(torch.uint8).view(rows, -1, 8 // bits)
    # Of two values in a byte, the first is in the high half; of four, the first is in the lowest bits.
    shifts = {8: [0], 4: [4, 0], 2: [0, 2, 4, 6]}[bits]
    packed = q if bits == 8 else sum(shifted[..., i] << shift for i, shift in enumerate(shifts))
    name, to_floats = {
        8: ("embedding_byte.out", "embedding_byte.dtype_out"),
        4: ("embedding_4bit.out", "embedding_4bit.dtype_out"),
        2: ("embedding_2bit.out", "embedding_2bit.dtype_out"),
    }[bits]
    for points in (zeros, None):
        table = qd.dequantize_per_channel_group.default(
            q, scales, points, low, -low - 1, torch.int8, columns // (groups or 1), kind
        )
        arguments = packed, scales, points, low, -low - 1, indices
        exactly(name, table[indices], *arguments)
        exactly(to_floats, table[indices].to(torch.float32), *arguments, CODES[torch.float32])
        exactly(name, table[indices], *arguments[:-1], indices.to(torch.int32))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_add(dtype: torch.dtype) -> None:
    """Equals the graph that it replaces, which adds the dequantized values."""
    low, high = bounds(dtype)
    a, b = integers(dtype, 3, 1000), integers(dtype, 3, 1000)
    for numbers in ((0.1, 3, 0.2, -1, 0.31, 5), (1.0, 0, 1.0, 0, 0.5, 0), (0.013, 9, 2.7, 60, 1.9, 20)):
        one, two, (scale, zero) = numbers[:2], numbers[2:4], numbers[4:]
        total = qd.dequantize_per_tensor.default(a, *one, low, high, dtype)
        total = total + qd.dequantize_per_tensor.default(b, *two, low, high, dtype)
        expected = qd.quantize_per_tensor.default(total, scale, zero, low, high, dtype)
        exactly("add.out", expected, a, *one, low, high, b, *two, low, high, scale, zero, low, high)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
def test_mixed_dtype_matmuls(kind: torch.dtype) -> None:
    """Matches ExecuTorch's kernels; torch has no reference."""
    x, rows, columns = torch.randn(5, 12).to(kind), integers(torch.int8, 12, 7), integers(torch.int8, 7, 12)
    scales = torch.rand(12).to(kind) * 0.1
    tolerance = {"rtol": 1e-3, "atol": 2e-2} if kind is torch.float16 else {"rtol": 1e-5, "atol": 1e-4}
    expected = (x.float() @ (rows.float() * scales.float()[:, None])).to(kind)
    (result,) = run("quantized_decomposed::mixed_mm.out", x, rows, scales, None, like=[expected])
    torch.testing.assert_close(result, expected, **tolerance)
    for groups in (None, 3):
        scales = (torch.rand(7) if groups is None else torch.rand(7, groups)).to(kind) * 0.1
        matrix = (columns.float().view(7, groups or 1, -1) * scales.float().view(7, -1, 1)).view(7, 12)
        expected = x.float() @ matrix.T
        for threads in (1, 3):
            arguments = x, columns, scales, None, CODES[torch.float32]
            (result,) = run(
                "quantized_decomposed::mixed_linear.out", *arguments, like=[expected], threads=threads
            )
            torch.testing.assert_close(result, expected, **tolerance)


def refused(name: str, message: str, like: list[torch.Tensor], *arguments: object) -> None:
    with pytest.raises(RuntimeError, match=message):
        run(f"quantized_decomposed::{name}", *arguments, like=like)


def test_bad_arguments_are_refused() -> None:
    x, q = torch.randn(3, 4), torch.zeros(3, 4, dtype=torch.int8)
    refused("quantize_per_tensor.out", "quant_max 200", [q], x, 0.1, 0, -128, 200, 1)
    refused("quantize_per_tensor.out", "dtype is 0", [q], x, 0.1, 0, 0, 127, 0)
    refused(
        "quantize_per_tensor.out",
        "input is of type 1, expected a floating type",
        [q],
        q,
        0.1,
        0,
        -128,
        127,
        1,
    )
    wide = torch.zeros(3, 4, dtype=torch.uint16)
    refused(
        "quantize_per_tensor.out", "type 27 is not a quantized integer type", [wide], x, 0.1, 0, 0, 127, 27
    )
    refused("quantize_per_channel.out", "2 scales", [q], x, torch.ones(2), torch.zeros(2), 0, -128, 127, 1)
    refused("dequantize_per_channel.out", "dimension", [x], q, torch.ones(3), None, 2, -128, 127, 1, None)
    refused("choose_qparams.Tensor_out", "0 elements", [torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.int64)],
            torch.empty(0), -128, 127, 1e-7, 1)  # fmt: skip
    rows = torch.zeros(3, 4, dtype=torch.uint8), torch.ones(3), None, 0, 15
    for index in (3, -1):
        refused("embedding_4bit.out", f"index {index}", [torch.empty(1, 8)], *rows, torch.tensor([index]))
    x, w = torch.randn(2, 4), torch.zeros(4, 3, dtype=torch.int8)
    refused("mixed_mm.out", "weight_zero_points", [torch.empty(2, 3)], x, w, torch.ones(4), torch.ones(4))
    refused("mixed_linear.out", "weight of type 1", [torch.empty(2, 4)], x, w, torch.ones(4), None, None)
    refused("mixed_mm.out", "weight_scales", [torch.empty(2, 3)], x, w, torch.ones(3), None)
    refused("embedding_4bit.out", "3 scales", [torch.empty(1, 8)], rows[0], torch.ones(3, 1), torch.ones(2), 0, 15, torch.tensor([0]))  # fmt: skip


@pytest.mark.parametrize("name", samples.QUANTIZED)
def test_examples_that_misuse_starts_from_are_right(name: str) -> None:
    for call in samples.QUANTIZED[name]:
        _native.call_kernel(name, *copy.deepcopy(call))


def test_no_elements() -> None:
    x = torch.empty(0, 4)
    exactly("quantize_per_tensor.out", torch.empty(0, 4, dtype=torch.int8), x, 0.1, 0, -128, 127, 1)
    scales, zeros = torch.empty(0, 1, dtype=torch.float64), torch.empty(0, 1, dtype=torch.int64)
    exactly("quantize_per_token.out", torch.empty(0, 4, dtype=torch.int8), x, scales, zeros, -128, 127, 1)
