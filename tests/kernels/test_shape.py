# SPDX-License-Identifier: BSD-3-Clause
# Operators that only move elements compared with eager: 0-d to 5-d shapes with and without elements, one dtype per
# element width, positive and negative dims, channels-last inputs and outputs, and invalid arguments.
from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.kernels.kernel_call import GUARD, check, guarded, run
from torchette.runtime import _native

aten = torch.ops.aten
# 1, 2, 4 and 8 bytes per element
DTYPES = [torch.uint8, torch.bfloat16, torch.float32, torch.int64]
SHAPES = [
    (),
    (0,),
    (1,),
    (5,),
    (3, 4),
    (0, 3),
    (2, 3, 4),
    (2, 0, 4),
    (1, 5, 1),
    (2, 3, 4, 5),
    (2, 1, 3, 1, 2),
]
WITH_DIMS = [shape for shape in SHAPES if shape]


def tensor(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(0, 100, shape).to(dtype)


def layouts(x: torch.Tensor) -> list[torch.Tensor]:
    return [x, x.to(memory_format=torch.channels_last)] if x.dim() == 4 else [x]


def same(name: str, function: Any, x: torch.Tensor, *arguments: Any) -> None:
    """Checks that the kernel returns `function(x)` for each layout of `x`."""
    expected = function(x, *arguments)
    for layout in layouts(x):
        check(f"aten::{name}", expected.contiguous(), layout, *arguments)


def refused(name: str, like: torch.Tensor, *arguments: Any, text: str = "failed with error") -> None:
    with pytest.raises(RuntimeError, match=text):
        run(f"aten::{name}", *arguments, like=[like])


def run_list(name: str, expected: list[torch.Tensor], *arguments: Any) -> None:
    """Like `check`, for kernels with one list of outputs."""
    outputs, buffers = zip(*(guarded(t.contiguous()) for t in expected), strict=True)
    _native.call_kernel(f"aten::{name}", *arguments, list(outputs))
    for output, buffer, reference in zip(outputs, buffers, expected, strict=True):
        assert torch.equal(output, reference)
        edge = torch.full((GUARD,), 99, dtype=torch.uint8).to(output.dtype)
        assert torch.equal(buffer[:GUARD], edge)
        assert torch.equal(buffer[GUARD + output.numel() :], edge)


def dims_of(x: torch.Tensor) -> range:
    return range(-max(x.dim(), 1), max(x.dim(), 1))


# --- permutations and views ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_permute(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    for dims in itertools.permutations(range(len(shape))):
        same("permute_copy.out", torch.permute, x, list(dims))
        check(
            "aten::permute_copy.out",
            x.permute(dims).contiguous(),
            x,
            [d - len(shape) if d % 2 else d for d in dims],
        )


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.float64, torch.int16])
@pytest.mark.parametrize(
    "size",
    [(7, 5), (16, 16), (33, 17), (64, 197), (197, 64), (1, 100), (130, 3), (31, 257), (2, 58), (35, 2)],
)
def test_matrix_transposes(size: tuple[int, int], dtype: torch.dtype) -> None:
    x = tensor((3, *size), dtype)
    same("transpose_copy.int_out", torch.transpose, x, 1, 2)
    same("transpose_copy.int_out", torch.transpose, x, 0, -1)
    same("t_copy.out", torch.t, x[0])
    same("permute_copy.out", torch.permute, x, [2, 0, 1])
    same("permute_copy.out", torch.permute, x, [1, 2, 0])


def test_attention_permutes() -> None:
    x = torch.randn(1, 37, 3, 3, 16)
    same("permute_copy.out", torch.permute, x, [2, 0, 3, 1, 4])
    same("permute_copy.out", torch.permute, x, [2, 0, 3, 4, 1])
    same("permute_copy.out", torch.permute, torch.randn(2, 30, 20, 10), [0, 3, 1, 2])


def test_permute_into_channels_last() -> None:
    x = torch.randn(2, 5, 6, 7)
    expected = x.permute(0, 3, 1, 2).to(memory_format=torch.channels_last)
    check("aten::permute_copy.out", expected, x, [0, 3, 1, 2])


def test_permute_refuses() -> None:
    x = torch.randn(2, 3)
    refused("permute_copy.out", x, x, [0, 0])
    refused("permute_copy.out", x, x, [0, 2])
    refused("permute_copy.out", x, x, [0])
    refused("permute_copy.out", x, x, [1, 2**33])
    refused("permute_copy.out", x.t().contiguous().long(), x, [1, 0])
    refused("permute_copy.out", torch.empty(2, 2), x, [1, 0], text="memory")
    refused("transpose_copy.int_out", x, x, 0, 2)
    refused("t_copy.out", x, torch.randn(1, 2, 3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_transpose_and_t(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    for a, b in itertools.product(dims_of(x), dims_of(x)):
        same("transpose_copy.int_out", torch.transpose, x, a, b)
    if x.dim() <= 2:
        same("t_copy.out", torch.t, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((), [1]),
        ((), []),
        ((1, 1), []),
        ((6,), [2, 3]),
        ((6,), [2, -1]),
        ((0, 3), [3, 0]),
        ((0, 3), [-1, 3]),
        ((2, 3, 4), [4, 3, 2]),
        ((2, 3, 4, 5), [6, -1]),
        ((2, 3, 4, 5), [120]),
        ((2, 3, 4, 5), [1, 2, 1, 60]),
    ],
)
def test_view(shape: tuple[int, ...], sizes: list[int], dtype: torch.dtype) -> None:
    same("view_copy.out", torch.reshape, tensor(shape, dtype), sizes)


def test_view_refuses() -> None:
    x = torch.randn(2, 3)
    for sizes in ([4], [-1, 4], [-1, -1], [-2, -3], [2**31, 2**33], [2, 3, 0], [2**62, 4, 0], [1] * 17):
        refused("view_copy.out", x, x, sizes)
    refused("view_copy.out", torch.empty(6).long(), x, [6])
    refused("view_copy.out", x, x, [6])  # the output has a different rank


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_squeeze_and_unsqueeze(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    for dim in range(-x.dim() - 1, x.dim() + 1):
        same("unsqueeze_copy.out", torch.unsqueeze, x, dim)
    for dim in dims_of(x):
        same("squeeze_copy.dim_out", torch.squeeze, x, dim)
    for n in range(x.dim() + 1):
        for dims in itertools.combinations(range(x.dim()), n):
            same("squeeze_copy.dims_out", torch.squeeze, x, list(dims))
    refused("squeeze_copy.dim_out", x, x, max(x.dim(), 1))
    refused("unsqueeze_copy.out", x, x, x.dim() + 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((), []),
        ((), [3]),
        ((), [0]),
        ((1,), [4]),
        ((3,), [2, 3]),
        ((3, 1), [3, 5]),
        ((3, 1), [-1, 5]),
        ((1, 3, 1), [2, 4, -1, 6]),
        ((1, 0), [3, 0]),
        ((2, 1, 4, 1), [2, 3, 4, 5]),
        ((2, 4), [0, 2, 4]),
    ],
)
def test_expand(shape: tuple[int, ...], sizes: list[int], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    for layout in layouts(x):
        check("aten::expand_copy.out", x.expand(sizes).contiguous(), layout, sizes, False)


def test_expand_refuses() -> None:
    x = torch.randn(2, 1)
    for sizes in ([3, 1], [2], [-1, 2, 1], [2, -2], [2, 2**40], [1] * 15 + [2, 1]):
        refused("expand_copy.out", torch.empty(2, 2), x, sizes, False)


def test_as_strided() -> None:
    x = tensor((4, 5))
    for sizes, strides, offset in (
        ([2, 3], [5, 1], 0),
        ([2, 3], [1, 5], 2),
        ([3, 3], [1, 1], 4),
        ([4], [0], 19),
        ([], [], 3),
        ([0, 3], [1, 1], 0),
        ([2, 2], [2, 9], None),
    ):
        expected = torch.as_strided(x, sizes, strides, offset).contiguous()
        check("aten::as_strided_copy.out", expected, x, sizes, strides, offset)
    out = torch.empty(2, 3)
    refused("as_strided_copy.out", out, x, [2, 3], [15, 3], 0)
    refused("as_strided_copy.out", out, x, [2, 3], [5, 1], 13)
    refused("as_strided_copy.out", out, x, [2, 3], [5, 1], -1)
    refused("as_strided_copy.out", out, x, [2, 3], [-5, 1], 10)
    refused("as_strided_copy.out", out, x, [2, 3], [2**62, 1], 0)
    deep = torch.empty(1, 1, 1, 1)
    refused("as_strided_copy.out", deep, x, [2**31 - 1] * 4, [2**31 - 1] * 4, 0)
    refused("as_strided_copy.out", out, x, [2], [5, 1], 0)


# --- slices ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", WITH_DIMS)
def test_slice(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    bounds = [(None, None), (0, 2), (1, 2**63 - 1), (-2, None), (-100, -1), (3, 1), (10, 20), (None, -2)]
    for dim in dims_of(x):
        for start, end in bounds:
            for step in (1, 2, 7, 100):
                same("slice_copy.Tensor_out", aten.slice.Tensor, x, dim, start, end, step)


def test_slice_refuses() -> None:
    x = torch.randn(4)
    check("aten::slice_copy.Tensor_out", x[1:2], x, 0, 1, 4, 2**63 - 1)
    refused("slice_copy.Tensor_out", x, x, 0, 0, 4, 0)
    refused("slice_copy.Tensor_out", x, x, 0, 0, 4, -1)
    refused("slice_copy.Tensor_out", x, x, 1, 0, 4, 1)
    refused("slice_copy.Tensor_out", x, torch.tensor(1.0), 0, 0, 4, 1)
    refused("slice_copy.Tensor_out", x.long(), x, 0, 0, 4, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", WITH_DIMS)
def test_select_and_narrow(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    for dim in dims_of(x):
        n = x.shape[dim]
        for index in range(-n, n):
            same("select_copy.int_out", torch.select, x, dim, index)
        for index in (-n - 1, n, 2**40, -(2**63)):
            refused("select_copy.int_out", x, x, dim, index)
        for start in range(n + 1):
            for length in range(n - start + 1):
                same("narrow_copy.out", torch.narrow, x, dim, start, length)
        refused("narrow_copy.out", x, x, dim, 0, n + 1)
        refused("narrow_copy.out", x, x, dim, 0, -1)
        refused("narrow_copy.out", x, x, dim, n + 1, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", WITH_DIMS)
def test_split_and_unbind(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    for layout, dim in itertools.product(layouts(x), dims_of(x)):
        n = x.shape[dim]
        for size in (1, 2, 3, 100, 2**63 - 1):
            run_list("split_copy.Tensor_out", list(torch.split(x, size, dim)), layout, size, dim)
        sizes = [n // 2, 0, n - n // 2]
        run_list("split_with_sizes_copy.out", list(torch.split(x, sizes, dim)), layout, sizes, dim)
        if n:
            run_list("unbind_copy.int_out", list(torch.unbind(x, dim)), layout, dim)


def test_split_refuses() -> None:
    x = torch.randn(4, 3)
    parts = [torch.empty(2, 3), torch.empty(2, 3)]
    for name, arguments in (
        ("split_copy.Tensor_out", (0, 0)),
        ("split_copy.Tensor_out", (-1, 0)),
        ("split_copy.Tensor_out", (1, 0)),
        ("split_copy.Tensor_out", (3, 0)),
        ("split_copy.Tensor_out", (2, 2)),
        ("split_with_sizes_copy.out", ([2, 3], 0)),
        ("split_with_sizes_copy.out", ([2, 1], 0)),
        ("split_with_sizes_copy.out", ([-1, 5], 0)),
        ("split_with_sizes_copy.out", ([2, 1, 1], 0)),
        ("split_with_sizes_copy.out", ([2**62, 2**62], 0)),
        ("unbind_copy.int_out", (0,)),
    ):
        with pytest.raises(RuntimeError):
            _native.call_kernel(f"aten::{name}", x, *arguments, parts)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", WITH_DIMS)
def test_scatter_parts(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    for layout, dim in itertools.product(layouts(x), dims_of(x)):
        for start, end, step in ((None, None, 1), (1, 3, 1), (-2, None, 1), (0, 100, 2)):
            part = tensor(tuple(aten.slice(x, dim, start, end, step).shape), dtype)
            expected = aten.slice_scatter(x, part, dim, start, end, step)
            check("aten::slice_scatter.out", expected, layout, part, dim, start, end, step)
        for index in range(-x.shape[dim], x.shape[dim]):
            part = tensor(tuple(x.select(dim, index).shape), dtype)
            expected = aten.select_scatter(x, part, dim, index)
            check("aten::select_scatter.out", expected, layout, part, dim, index)


def test_scatter_parts_refuse() -> None:
    x = torch.randn(4, 3)
    refused("slice_scatter.out", x, x, torch.randn(2, 3), 0, 0, 3, 1)
    refused("slice_scatter.out", x, x, torch.randn(3), 0, 0, 1, 1)
    refused("slice_scatter.out", x, x, torch.randn(2, 3).long(), 0, 0, 2, 1)
    refused("select_scatter.out", x, x, torch.randn(4), 0, 0)
    refused("select_scatter.out", x, x, torch.randn(3), 0, 4)
    refused("select_scatter.out", x, x, torch.randn(1, 3), 0, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (0, 3), (2, 3, 4), (2, 3, 4, 5), (1, 1)])
def test_diagonal_and_triangles(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    for offset in (-7, -3, -1, 0, 1, 2, 4, 2**40):
        for a, b in itertools.permutations(range(len(shape)), 2):
            same("diagonal_copy.out", torch.diagonal, x, offset, a, b - len(shape))
        same("tril.out", torch.tril, x, offset)
        same("triu.out", torch.triu, x, offset)
    refused("diagonal_copy.out", x, x, 0, 0, 0)
    refused("diagonal_copy.out", x, torch.randn(3), 0, 0, 0)
    refused("tril.out", x, torch.randn(3), 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", WITH_DIMS)
def test_unfold(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    for dim in dims_of(x):
        n = x.shape[dim]
        for size, step in itertools.product(range(n + 1), (1, 2, 5)):
            expected = x.unfold(dim, size, step)
            check("aten::unfold_copy.out", expected.contiguous(), x, dim, size, step)
        refused("unfold_copy.out", x, x, dim, n + 1, 1)
        refused("unfold_copy.out", x, x, dim, 0, 0)
        refused("unfold_copy.out", x, x, dim, -1, 1)


# --- concatenation, repetition, padding, reordering ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", WITH_DIMS)
def test_cat_and_stack(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for dim in range(-len(shape), len(shape)):
        parts = []
        for n in (2, 0, 1, 5):
            sizes = list(shape)
            sizes[dim] = n
            parts.append(tensor(tuple(sizes), dtype))
        check("aten::cat.out", torch.cat(parts, dim), parts, dim)
        check("aten::cat.out", parts[0], parts[:1], dim)
        if len(shape) == 4:
            mixed = [layouts(part)[i % 2] for i, part in enumerate(parts)]
            check("aten::cat.out", torch.cat(parts, dim), mixed, dim)
        legacy = [torch.empty(0, dtype=dtype), *parts, torch.empty(0, dtype=dtype)]
        check("aten::cat.out", torch.cat(legacy, dim), legacy, dim)
    parts = [tensor(shape, dtype) for _ in range(3)]
    for dim in range(-len(shape) - 1, len(shape) + 1):
        check("aten::stack.out", torch.stack(parts, dim), parts, dim)


def test_cat_and_stack_of_0d_tensors() -> None:
    parts = [torch.tensor(1.0), torch.tensor(2.0)]
    check("aten::stack.out", torch.stack(parts), parts, 0)
    refused("cat.out", torch.empty(2), parts, 0)
    check("aten::cat.out", torch.empty(0), [torch.empty(0), torch.empty(0)], 0)


def test_cat_into_channels_last() -> None:
    parts = [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(2, 2, 4, 5)]
    check("aten::cat.out", torch.cat(parts, 1).to(memory_format=torch.channels_last), parts, 1)


def test_cat_and_stack_refuse() -> None:
    x = torch.randn(2, 3)
    refused("cat.out", x, [], 0)
    refused("cat.out", x, [x, torch.randn(2, 4)], 0)
    refused("cat.out", x, [x, torch.randn(1, 2, 3)], 0)
    refused("cat.out", x, [x, x], 2)
    refused("cat.out", x, [x, x], 0, text="memory")
    refused("cat.out", torch.empty(4, 3).long(), [x, x], 0)
    refused("stack.out", torch.empty(2, 2, 3), [], 0)
    refused("stack.out", torch.empty(2, 2, 3), [x, torch.randn(3, 2)], 0)
    refused("stack.out", torch.empty(2, 2, 3), [x, torch.randn(6)], 0)
    refused("stack.out", torch.empty(2, 2, 3), [x, x], 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_repeat(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    for repeats in itertools.product((0, 1, 3), repeat=min(len(shape), 3)):
        full = [2, *repeats, *([1] * (len(shape) - len(repeats)))]
        same("repeat.out", torch.Tensor.repeat, x, full)
        same("repeat.out", torch.Tensor.repeat, x, full[1:])
    refused("repeat.out", x, x, [-1] * len(shape) + [1])
    refused("repeat.out", x, x, [2**62] * max(len(shape), 1))
    if shape:
        refused("repeat.out", x, x, [2] * (len(shape) - 1))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.float16, torch.float64, torch.int32])
@pytest.mark.parametrize("shape", WITH_DIMS)
def test_constant_pad(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    for pad in ([], [1, 2], [0, 3], [-1, 2], [1, -1], [1, 0, 2, 1], [0, 0, -1, 3], [-1, -1]):
        cut = [sum(min(p, 0) for p in pad[i : i + 2]) for i in range(0, len(pad), 2)]
        if len(cut) > len(shape) or any(n + c < 0 for n, c in zip(shape[::-1], cut, strict=False)):
            continue
        for value in (0, 7, 1.5) if dtype.is_floating_point else (0, 7):
            same("constant_pad_nd.out", torch.constant_pad_nd, x, pad, value)
    refused("constant_pad_nd.out", x, x, [1], 0)
    refused("constant_pad_nd.out", x, x, [0] * (2 * len(shape) + 2), 0)
    refused("constant_pad_nd.out", x, x, [-100, 0], 0)
    refused("constant_pad_nd.out", x, x, [2**63 - 1, 2**63 - 1], 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_flip_and_roll(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    for n in range(len(shape) + 1):
        for dims in itertools.combinations(range(len(shape)), n):
            same("flip.out", torch.flip, x, [d - len(shape) if d % 2 else d for d in dims])
            if n:
                for shifts in ([1] * n, [-3, 2, 100, 0, -(2**40)][:n]):
                    same("roll.out", torch.roll, x, shifts, list(dims))
    for shift in (0, 1, -1, 7, 1000):
        check("aten::roll.out", torch.roll(x, shift), x, [shift], [])
    refused("flip.out", x, x, [0, 0])
    refused("flip.out", x, x, [max(len(shape), 1)])
    if x.numel() == 0:
        return  # no elements to roll
    refused("roll.out", x, x, [1], [max(len(shape), 1)])
    refused("roll.out", x, x, [1, 2], [0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (0,)])
def test_pixel_shuffle(batch: tuple[int, ...], factor: int, dtype: torch.dtype) -> None:
    x = tensor((*batch, 2 * factor**2, 3, 4), dtype)
    same("pixel_shuffle.out", torch.pixel_shuffle, x, factor)
    check("aten::pixel_unshuffle.out", x, torch.pixel_shuffle(x, factor), factor)


def test_pixel_shuffle_refuses() -> None:
    x = torch.randn(1, 6, 3, 5)
    for name in ("pixel_shuffle.out", "pixel_unshuffle.out"):
        for factor in (2, 0, -1, 2**40):
            refused(name, x, x, factor)
        refused(name, x, x[0, 0], 1)


@pytest.mark.parametrize("name", ["alias_copy.out", "detach_copy.out", "lift_fresh_copy.out"])
def test_copies(name: str) -> None:
    for shape, dtype in itertools.product(SHAPES, DTYPES):
        same(name, torch.clone, tensor(shape, dtype))


def test_parts_of_other_types_are_converted() -> None:
    integers, half, single = torch.arange(6).reshape(2, 3), torch.randn(2, 3).half(), torch.randn(2, 3)
    for dim in (0, 1):
        for parts in ([integers, single], [half, single, integers], [single, integers.bool()]):
            check("aten::cat.out", torch.cat(parts, dim), parts, dim)
            wide = [part.to(torch.promote_types(parts[0].dtype, parts[1].dtype)) for part in parts[:2]]
            check("aten::stack.out", torch.stack(wide, dim), parts[:2], dim)
    with pytest.raises(RuntimeError, match="cannot be joined"):
        _native.call_kernel("aten::cat.out", [single, single], 0, torch.empty(4, 3, dtype=torch.int64))


# Inputs that are large enough for several threads.
LARGE = torch.arange(2 * 37 * 100 * 50, dtype=torch.float32).view(2, 37, 100, 50)
LARGE_CASES: dict[str, tuple[str, torch.Tensor, tuple[Any, ...]]] = {
    "planes to pixels": ("permute_copy.out", LARGE.permute(0, 2, 3, 1), (LARGE, [0, 2, 3, 1])),
    "pixels to planes": ("permute_copy.out", LARGE.permute(3, 0, 2, 1), (LARGE, [3, 0, 2, 1])),
    "bytes": ("permute_copy.out", LARGE.byte().permute(1, 0, 3, 2), (LARGE.byte(), [1, 0, 3, 2])),
    "concatenation": ("cat.out", torch.cat([LARGE, LARGE], 2), ([LARGE, LARGE], 2)),
    "slice": ("slice_copy.Tensor_out", LARGE[:, :, 1:98:2], (LARGE, 2, 1, 98, 2)),
    "contiguous": ("view_copy.out", LARGE.view(74, -1), (LARGE, [74, -1])),
    "repeat": ("repeat.out", LARGE[0].repeat(1, 2, 3), (LARGE[0], [1, 2, 3])),
    "flip": ("flip.out", LARGE.flip(1, 3), (LARGE, [1, 3])),
}


@pytest.mark.parametrize("case", LARGE_CASES)
def test_thread_count_does_not_change_results(case: str) -> None:
    name, expected, arguments = LARGE_CASES[case]
    for threads in (1, 2, 3):
        (result,) = run(f"aten::{name}", *arguments, like=[expected.contiguous()], threads=threads)
        assert torch.equal(result, expected)
