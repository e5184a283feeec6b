# SPDX-License-Identifier: BSD-3-Clause
# Operators that use index or mask tensors compared with eager: every element width, both index dtypes, negative indices
# where torch supports them, and malicious indices, which must be rejected without writing out of bounds.
from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from tests.kernels.kernel_call import check, run
from torchette.runtime import _native

aten = torch.ops.aten
# 1, 2, 4 and 8 bytes per element
DTYPES = [torch.uint8, torch.bfloat16, torch.float32, torch.int64]
HOSTILE = [5, -1, 6, -6, 2**31 - 1, -(2**31)]


def tensor(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(0, 100, shape).to(dtype)


def layouts(x: torch.Tensor) -> list[torch.Tensor]:
    return [x, x.to(memory_format=torch.channels_last)] if x.dim() == 4 else [x]


def refused(name: str, like: torch.Tensor, *arguments: object, text: str = "failed with error") -> None:
    with pytest.raises(RuntimeError, match=text):
        run(f"aten::{name}", *arguments, like=[like])


# --- rows ---


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.float64])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_embedding(dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    for rows, columns in ((5, 8), (1, 1), (7, 33), (3, 0)):
        weight = tensor((rows, columns), dtype)
        for shape in ((), (0,), (4,), (2, 3), (1, 0, 2), (2, 1, 3)):
            index = torch.randint(0, rows, shape, dtype=index_dtype)
            check("aten::embedding.out", weight[index.long()], weight, index, -1, False, False)
            check("aten::embedding.out", weight[index.long()], weight, index, 0, True, True)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_embedding_refuses(index_dtype: torch.dtype) -> None:
    weight = torch.randn(5, 4)
    for hostile in HOSTILE:
        index = torch.tensor([0, hostile, 1], dtype=index_dtype)
        text = f"indices: {hostile} .* 5"
        for of_weight in (weight, weight.T.contiguous().T):  # contiguous rows, and strided rows
            refused("embedding.out", torch.empty(3, 4), of_weight, index, -1, False, False, text=text)
    good = torch.tensor([0, 1], dtype=index_dtype)
    refused("embedding.out", torch.empty(1, 4), weight, good, -1, False, False, text="memory")
    refused("embedding.out", torch.empty(2, 4).long(), weight, good, -1, False, False)
    refused("embedding.out", torch.empty(2, 4), weight[0], good, -1, False, False)
    refused("embedding.out", torch.empty(2, 4), weight, good.float(), -1, False, False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (2, 3, 4, 5), (2, 0, 3), (1, 1, 7)])
def test_index_select(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    for layout, dim in itertools.product(layouts(x), range(-len(shape), len(shape))):
        n = shape[dim]
        for index in ([], [0], [n - 1, 0, 0, n // 2]) if n else ([],):
            for index_dtype in (torch.int32, torch.int64):
                i = torch.tensor(index, dtype=index_dtype)
                check("aten::index_select.out", torch.index_select(x, dim, i), layout, dim, i)
        for hostile in (n, -1, 2**40) if x.numel() else ():
            refused("index_select.out", torch.index_select(x, dim, torch.zeros(min(n, 1), dtype=torch.int64)),
                    x, dim, torch.tensor([hostile]))  # fmt: skip
    refused("index_select.out", x, x, len(shape), torch.tensor([0]))
    refused("index_select.out", x, x, 0, torch.tensor([[0]]))
    refused("index_select.out", x, x, 0, torch.tensor([0.0]))


def test_index_select_of_0d_tensors() -> None:
    x = torch.tensor(3.0)
    check("aten::index_select.out", x, x, 0, torch.tensor([0]))
    check("aten::index_select.out", x, x, 0, torch.tensor(0))
    check("aten::index_select.out", torch.tensor([2.0]), torch.tensor([1.0, 2.0]), 0, torch.tensor(1))
    refused("index_select.out", x, x, 0, torch.tensor([0, 0]))
    refused("index_select.out", x, x, 0, torch.tensor([1]))


# --- one index per element ---


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.float64])
@pytest.mark.parametrize("shape", [(5,), (3, 4), (5, 100), (2, 3, 4), (2, 3, 4, 5)])
def test_gather_and_scatter(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = tensor(shape, dtype)
    for layout, dim in itertools.product(layouts(x), range(-len(shape), len(shape))):
        for shorter, along in itertools.product((0, 1), (0, 1, 3)):
            sizes = [max(n - shorter, 1) for n in shape]
            sizes[dim] = along
            # Each index is unique per line, so that the result of scatter is defined.
            index = torch.rand(
                [*sizes[: dim % len(shape)], max(shape[dim], along), *sizes[dim % len(shape) + 1 :]]
            )
            index = index.argsort(dim).narrow(dim, 0, min(along, shape[dim])).contiguous()
            check(
                "aten::gather.out",
                torch.gather(x, dim, index % shape[dim]),
                layout,
                dim,
                index % shape[dim],
                False,
            )
            if int(index.max() if index.numel() else 0) >= shape[dim]:
                continue
            source = tensor(tuple(n + 1 for n in index.shape), dtype)
            check("aten::scatter.src_out", torch.scatter(x, dim, index, source), layout, dim, index, source)
            check("aten::scatter.value_out", torch.scatter(x, dim, index, 7), layout, dim, index, 7)
            repeated = index // 2
            check(
                "aten::scatter_add.out",
                torch.scatter_add(x, dim, repeated, source),
                layout,
                dim,
                repeated,
                source,
            )


def test_gather_and_scatter_of_0d_tensors() -> None:
    x, zero = torch.tensor(3.0), torch.tensor(0)
    check("aten::gather.out", x, x, 0, zero, False)
    check("aten::scatter.src_out", torch.tensor(4.0), x, 0, zero, torch.tensor(4.0))
    check("aten::scatter_add.out", torch.tensor(7.0), x, -1, zero, torch.tensor(4.0))
    refused("gather.out", x, x, 0, torch.tensor(1), False)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_gather_and_scatter_refuse(index_dtype: torch.dtype) -> None:
    x = torch.randn(3, 5)
    for hostile in HOSTILE:
        index = torch.tensor([[0, 1], [2, hostile]], dtype=index_dtype)
        refused("gather.out", torch.empty(2, 2), x, 1, index, False, text=f"{hostile} .* 5")
        refused("scatter.src_out", x, x, 1, index, torch.randn(2, 2), text=f"{hostile} .* 5")
        refused("scatter.value_out", x, x, 1, index, 1.0, text=f"{hostile} .* 5")
        refused("scatter_add.out", x, x, 1, index, torch.randn(2, 2), text=f"{hostile} .* 5")
    index = torch.zeros(4, 2, dtype=index_dtype)
    refused("gather.out", torch.empty(4, 2), x, 1, index, False)  # more lines than x has
    refused("scatter.src_out", x, x, 1, index[:2], torch.randn(1, 2))  # fewer sources than indices
    refused("scatter_add.out", x, x, 1, index[:2], torch.randn(2, 1))
    refused("gather.out", torch.empty(2), x, 1, index[0], False)
    refused("gather.out", torch.empty(2, 2), x, 2, index[:2], False)
    refused("gather.out", torch.empty(2, 2).long(), x, 1, index[:2], False)
    refused("gather.out", torch.empty(2, 2), x, 1, index[:2].float(), False)
    refused("scatter.src_out", x, x, 1, index[:2], torch.randn(2, 2).long())


# --- indexing by lists of tensors ---

PICKS: list[Callable[[], list[torch.Tensor | None]]] = [
    lambda: [torch.tensor([0, 2, -1])],
    lambda: [torch.tensor(1)],
    lambda: [torch.tensor([], dtype=torch.int64)],
    lambda: [None, torch.tensor([[0, 1], [-3, 2]])],
    lambda: [None, None, torch.tensor([3, -4], dtype=torch.int32)],
    lambda: [torch.tensor([0, 1]), torch.tensor([2, -1])],
    lambda: [torch.tensor([[0], [1]]), torch.tensor([2, 0, -1])],
    lambda: [torch.tensor([1, 0]), None, torch.tensor([3, 0])],
    lambda: [None, torch.tensor([1, 0]), torch.tensor([[3], [0]])],
    lambda: [torch.tensor([1, 0]), torch.tensor(2), torch.tensor([3, 0]), None],
    lambda: [torch.tensor([[1]]), None, None],
    lambda: [torch.tensor([True, False, True])],
    lambda: [None, torch.tensor([False, False, False])],
    lambda: [None, torch.tensor([1, 0, 1], dtype=torch.uint8)],
    lambda: [torch.rand(3, 3) > 0.5],
    lambda: [None, torch.rand(3, 4) > 0.3],
    lambda: [torch.tensor([0, 2]), torch.tensor([True, False, True])],
    lambda: [torch.tensor([True, False, True]), None, torch.tensor([1, 3])],
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pick", range(len(PICKS)))
def test_index_and_index_put(pick: int, dtype: torch.dtype) -> None:
    indices = PICKS[pick]()
    for x in (tensor((3, 3, 4), dtype), tensor((3, 3, 4, 5), dtype)):
        if len(indices) > x.dim():
            continue
        for layout in layouts(x):
            # torch deprecates uint8 masks.
            theirs = [i.bool() if i is not None and i.dtype == torch.uint8 else i for i in indices]
            expected = aten.index(x, theirs)
            check("aten::index.Tensor_out", expected.contiguous(), layout, indices)
            values = tensor(tuple(expected.shape), dtype)
            for source in (values, tensor((), dtype), tensor(tuple(values.shape[-1:]), dtype)):
                put = aten.index_put(x, theirs, source)
                check("aten::index_put.out", put, layout, indices, source, False)
                added = aten.index_put(x, theirs, source, True)
                check("aten::index_put.out", added, layout, indices, source, True)
                changed = layout.clone()
                _native.call_kernel("aten::index_put_", changed, indices, source, False)
                assert torch.equal(changed, put)


def test_index_put_into_its_input() -> None:
    cache, row = torch.zeros(1, 4, 6, 3), torch.randn(1, 4, 1, 3)
    indices = [None, None, torch.tensor([4])]
    expected = aten.index_put(cache, indices, row)
    _native.call_kernel("aten::index_put.out", cache, indices, row, False, cache)
    assert torch.equal(cache, expected)


def test_repeated_indices_add_up() -> None:
    x = torch.zeros(3, 2)
    i = torch.tensor([1, 1, 1, 0])
    values = torch.arange(8.0).reshape(4, 2)
    check("aten::index_put.out", aten.index_put(x, [i], values, True), x, [i], values, True)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_index_refuses(index_dtype: torch.dtype) -> None:
    x = torch.randn(4, 5)
    for hostile in (5, -6, 2**31 - 1, -(2**31)):
        index = torch.tensor([0, hostile], dtype=index_dtype)
        refused("index.Tensor_out", torch.empty(4, 2), x, [None, index], text=f"{hostile} .* 5")
        refused("index_put.out", x, x, [None, index], torch.randn(4, 2), False, text=f"{hostile} .* 5")
        refused("index_put.out", x, x, [None, index], torch.randn(4, 2), True, text=f"{hostile} .* 5")
    index = torch.tensor([0, 1], dtype=index_dtype)
    three = torch.tensor([0, 1, 2], dtype=index_dtype)
    refused("index.Tensor_out", torch.empty(2), x, [index, three])
    refused("index.Tensor_out", torch.empty(2), x, [index, index, index])
    refused("index.Tensor_out", torch.empty(2, 5), x, [index.float()])
    refused("index.Tensor_out", torch.empty(2, 5).long(), x, [index])
    refused("index.Tensor_out", torch.empty(1, 5), x, [index], text="memory")
    refused("index_put.out", x, x, [index], torch.randn(3, 5), False)
    refused("index_put.out", x, x, [index], torch.randn(1, 2, 5), False)
    refused("index_put.out", x, x, [index], torch.randn(2, 5).long(), False)
    refused("index.Tensor_out", torch.empty(2, 5), x, [torch.tensor([True, False])])
    refused("index.Tensor_out", torch.empty(2, 5), x, [None, torch.ones(5, 1, dtype=torch.bool)])
    refused("index.Tensor_out", torch.empty(2, 5), x, [torch.tensor(True)])


# --- data-dependent sizes ---


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.float16, torch.float64, torch.int16])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 4), (2, 0, 3), (2, 3, 4, 5)])
def test_nonzero(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randint(-1 if dtype.is_signed else 0, 2, shape).to(dtype)
    if dtype.is_floating_point:
        x = torch.where(x < 0, torch.full_like(x, -0.0), x)
    for layout in layouts(x):
        check("aten::nonzero.out", torch.nonzero(x).contiguous(), layout)


def test_nonzero_refuses() -> None:
    x = torch.ones(3, 2)
    refused("nonzero.out", torch.empty(5, 2).long(), x, text="memory")
    refused("nonzero.out", torch.empty(6, 2), x)
    refused("nonzero.out", torch.empty(12).long(), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "mask_shape"),
    [((), ()), ((0,), (0,)), ((6,), (6,)), ((3, 4), (3, 4)), ((3, 4), (4,)), ((4,), (3, 4)), ((3, 1), (1, 4)),
     ((2, 3, 4, 5), (2, 3, 4, 5)), ((2, 3, 4, 5), ())],
)  # fmt: skip
def test_masked_select_and_scatter(
    shape: tuple[int, ...], mask_shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, mask = tensor(shape, dtype), torch.rand(mask_shape) > 0.4
    for layout in layouts(x):
        check("aten::masked_select.out", torch.masked_select(x, mask), layout, mask)
        source = tensor((x.numel() * mask.numel() + 3,), dtype)
        expected = torch.masked_scatter(x, mask, source)
        check("aten::masked_scatter.out", expected.contiguous(), layout, mask, source)


def test_masks_reject_invalid_arguments() -> None:
    x, mask = torch.randn(3, 4), torch.ones(3, 4, dtype=torch.bool)
    refused("masked_select.out", torch.empty(11), x, mask, text="memory")
    refused("masked_select.out", torch.empty(12), x, mask[:2])
    refused("masked_select.out", torch.empty(12), x, mask.float())
    refused("masked_select.out", torch.empty(12).long(), x, mask)
    refused("masked_scatter.out", x, x, mask, torch.randn(11))
    refused("masked_scatter.out", x, x, mask, torch.randn(12).long())


def test_outputs_that_alias_inputs() -> None:
    """A malicious program can alias an output with its input, so that writes turn zeros into more hits."""
    memory = torch.zeros(64, dtype=torch.uint8)
    memory[[0, 15]] = 1
    x = torch.full((16,), 1, dtype=torch.uint8)
    _native.call_kernel("aten::masked_select.out", x, memory[:16].view(torch.bool), memory[1:3])
    assert not memory[16:].any()
    memory = torch.zeros(64, dtype=torch.int64)
    memory[[6, 7]] = 1
    _native.call_kernel("aten::nonzero.out", memory[:8], memory[7:9].unsqueeze(1))
    assert not memory[9:].any()
    memory = torch.zeros(64, dtype=torch.int64)
    memory[:3] = torch.tensor([0, 4, 0])
    _native.call_kernel("aten::repeat_interleave.Tensor_out", memory[:3], None, memory[2:6])
    assert not memory[6:].any()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_repeat_interleave(dtype: torch.dtype) -> None:
    for repeats in ([], [0], [3], [2, 0, 1, 4]):
        r = torch.tensor(repeats, dtype=dtype)
        expected = torch.repeat_interleave(r)
        check("aten::repeat_interleave.Tensor_out", expected, r, None)
        check("aten::repeat_interleave.Tensor_out", expected, r, sum(repeats))
    out = torch.empty(3, dtype=dtype)
    for repeats in ([-1], [4], [2**31 - 1, 2**31 - 1]):
        refused("repeat_interleave.Tensor_out", out, torch.tensor(repeats, dtype=dtype), None)
    refused("repeat_interleave.Tensor_out", out, torch.tensor([1, 2], dtype=dtype), 4)
    refused("repeat_interleave.Tensor_out", out, torch.ones(1, 3, dtype=dtype), None)
