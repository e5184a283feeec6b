# SPDX-License-Identifier: BSD-3-Clause
"""The XNNPACK backend runs what it claims: operators with random valid arguments lower, load, run, and equal eager."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from tests.backends.xnnpack_cases import HAS_LIBRARY
from torchette.backends.xnnpack import XnnpackPartitioner
from torchette.errors import DelegationWarning
from torchette.exir import to_edge_transform_and_lower
from torchette.runtime import Runtime

F = nn.functional


@dataclass
class Case:
    """One operator: `call(*inputs)`. `varies` is the dynamic dimension of input 0, or None."""

    text: str
    call: Callable[..., Tensor]
    shapes: list[tuple[int, ...]]
    dtype: torch.dtype
    varies: int | None

    def inputs(self, size: int | None = None) -> list[Tensor]:
        dice = torch.Generator().manual_seed(len(self.text))
        shapes = [list(shape) for shape in self.shapes]
        if size is not None:
            assert self.varies is not None
            shapes[0][self.varies] = size
        return [torch.randn(shape, generator=dice).to(self.dtype) for shape in shapes]


def _maybe(dice: Random, value, default=None):
    return value if dice.random() < 0.5 else default


def _pair(dice: Random, low: int, high: int):
    pair = (dice.randint(low, high), dice.randint(low, high))
    return _maybe(dice, pair, pair[0])


def _shape(dice: Random, least: int = 1, most: int = 5) -> tuple[int, ...]:
    return tuple(dice.choice((1, 2, 3, 5, 8)) for _ in range(dice.randint(least, most)))


def _axis(dice: Random, shape: tuple[int, ...]) -> int:
    return dice.randrange(-len(shape), len(shape))


def _axes(dice: Random, shape: tuple[int, ...]) -> list[int]:
    chosen = dice.sample(range(len(shape)), dice.randint(1, len(shape)))
    return [dim - len(shape) if dice.random() < 0.3 else dim for dim in chosen]


def _convolution(dice: Random):
    rank = dice.choice((1, 2, 2, 2))
    groups = dice.choice((1, 1, 2, 3))
    per, out = dice.choice((1, 2, 4)), dice.choice((1, 2, 3))
    transposed = dice.random() < 0.3

    def numbers(low: int, high: int):
        return [dice.randint(low, high) for _ in range(rank)]

    options = {"stride": numbers(1, 3), "padding": numbers(0, 2), "dilation": numbers(1, 2), "groups": groups}
    if transposed:
        options["output_padding"] = numbers(0, 1)
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{rank}d")
    layer = kind(per * groups, out * groups, numbers(1, 4), bias=dice.random() < 0.7, **options)
    size = [dice.randint(3, 11) for _ in range(rank)]
    batch = [dice.randint(1, 3)] if dice.random() < 0.9 else []
    return f"{layer}", layer, [(*batch, per * groups, *size)]


def _pool(dice: Random):
    largest = dice.random() < 0.5
    options = {
        "stride": _maybe(dice, _pair(dice, 1, 3)), "padding": _pair(dice, 0, 1), "ceil_mode": dice.random() < 0.4,
    }  # fmt: skip
    if largest:
        options["dilation"] = _pair(dice, 1, 2)
    else:
        options["count_include_pad"] = dice.random() < 0.5
        options["divisor_override"] = _maybe(dice, dice.randint(1, 7))
    layer = (nn.MaxPool2d if largest else nn.AvgPool2d)(_pair(dice, 1, 4), **options)
    shape = (dice.randint(1, 3), dice.choice((1, 3, 4)), dice.randint(4, 11), dice.randint(4, 11))
    return f"{layer} {options}", layer, [shape if dice.random() < 0.85 else shape[1:]]


def _adaptive(dice: Random):
    output_size = (dice.randint(1, 7), dice.randint(1, 7))
    shape = (dice.randint(1, 3), 3, dice.randint(2, 11), dice.randint(2, 11))
    return f"adaptive {output_size}", nn.AdaptiveAvgPool2d(output_size), [shape]


def _resize(dice: Random):
    mode = dice.choice(("nearest", "bilinear", "bicubic", "nearest-exact"))
    options: dict = {"mode": mode}
    if dice.random() < 0.5:
        options["size"] = (dice.randint(1, 14), dice.randint(1, 14))
    else:
        options["scale_factor"] = _maybe(dice, float(dice.randint(1, 3)), dice.choice((0.5, 1.3, 1.7)))
        options["recompute_scale_factor"] = _maybe(dice, True)
    if mode.startswith("bi"):
        options["align_corners"] = dice.random() < 0.5
        options["antialias"] = dice.random() < 0.3 and not options["align_corners"]
    shape = (dice.randint(1, 3), 3, dice.randint(2, 9), dice.randint(2, 9))
    return f"resize {options}", lambda x: F.interpolate(x, **options), [shape]


def _product(dice: Random):
    m, k, n = (dice.randint(1, 7) for _ in range(3))
    batch = [dice.choice((1, 2, 3)) for _ in range(dice.randint(0, 2))]
    left = [*(size if dice.random() < 0.8 else 1 for size in batch), m, k]
    right = [*(size if dice.random() < 0.8 else 1 for size in batch[dice.randint(0, len(batch)) :]), k, n]
    if dice.random() < 0.3:
        stored = torch.randn(right)
        return f"{left} @ stored {right}", lambda x: x @ stored.to(x.dtype), [tuple(left)]
    if dice.random() < 0.5:
        right[-2:] = n, k
        return f"{left} @ {right}.mT", lambda x, y: x @ y.mT, [tuple(left), tuple(right)]
    return f"{left} @ {right}", lambda x, y: x @ y, [tuple(left), tuple(right)]


def _binary(dice: Random):
    shape = _shape(dice)
    second_shape = tuple(size if dice.random() < 0.7 else 1 for size in shape[dice.randrange(len(shape)) :])
    name = dice.choice(("add", "sub", "mul", "div", "maximum", "minimum"))
    function = getattr(torch, name)
    if dice.random() < 0.2 and name in ("add", "sub"):
        return (
            f"{name} alpha {shape} {second_shape}",
            lambda x, y: function(x, y, alpha=2),
            [shape, second_shape],
        )
    if dice.random() < 0.2:
        return f"{name} swapped {shape} {second_shape}", lambda x, y: function(y, x), [shape, second_shape]
    return f"{name} {shape} {second_shape}", lambda x, y: function(x, y), [shape, second_shape]


_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs, "ceil": torch.ceil, "floor": torch.floor, "exp": torch.exp, "neg": torch.neg, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "sin": torch.sin, "cos": torch.cos, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "relu": F.relu, "relu6": F.relu6, "gelu": F.gelu, "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "mish": F.mish, "softplus": F.softplus, "selu": F.selu, "log": lambda x: (x.abs() + 1).log(),
    "sqrt": lambda x: (x.abs() + 1).sqrt(), "rsqrt": lambda x: (x.abs() + 1).rsqrt(), "square": torch.square,
    "reciprocal": lambda x: (x.abs() + 1).reciprocal(), "cube": lambda x: x**3, "clone": torch.clone,
    "clamp": lambda x: x.clamp(-0.5, 0.25), "at least": lambda x: x.clamp(min=0.1), "hardtanh": F.hardtanh,
    "elu": lambda x: F.elu(x, 0.6), "celu": lambda x: F.celu(x, 1.4), "leaky": lambda x: F.leaky_relu(x, 0.3),
}  # fmt: skip


def _unary(dice: Random):
    name, shape = dice.choice(sorted(_UNARY)), _shape(dice, 0)
    return f"{name} {shape}", _UNARY[name], [shape]


def _reduction(dice: Random):
    shape = _shape(dice)
    dims, keep = _axes(dice, shape), dice.random() < 0.5
    name = dice.choice(("sum", "mean"))
    return f"{name} {shape} {dims} {keep}", lambda x: getattr(x, name)(dims, keepdim=keep), [shape]


def _softmax(dice: Random):
    shape = _shape(dice)
    dim = _axis(dice, shape)
    return f"softmax {shape} {dim}", lambda x: x.softmax(dim), [shape]


def _norm(dice: Random):
    name = dice.choice(("layer", "group", "batch", "rms"))
    if name in ("layer", "rms"):
        shape = _shape(dice, 1, 4)
        inner = shape[dice.randrange(len(shape)) :]
        kind = nn.LayerNorm if name == "layer" else nn.RMSNorm
        return f"{name} {shape} {inner}", kind(inner, elementwise_affine=dice.random() < 0.7), [shape]
    groups = dice.choice((1, 2, 3))
    shape = (
        dice.randint(2, 3),
        groups * dice.randint(1, 3),
        *(dice.randint(2, 6) for _ in range(dice.randint(0, 2))),
    )
    if name == "group":
        return f"group {shape} {groups}", nn.GroupNorm(groups, shape[1], affine=dice.random() < 0.7), [shape]
    layer = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(shape[1], affine=dice.random() < 0.7)
    layer.running_mean.normal_(), layer.running_var.uniform_(0.5, 2)
    return f"batch {shape}", layer, [shape]


def _view(dice: Random):
    shape = _shape(dice)
    dim, rank = _axis(dice, shape), len(shape)
    size = shape[dim]
    start, end, step = dice.randint(-size, size), dice.randint(-size, size + 1), dice.choice((1, 1, 2, 3))
    cuts = [dice.randint(0, size) for _ in range(dice.randint(0, 2))]
    cuts = [b - a for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), size], strict=True)]
    order, index = dice.sample(range(rank), rank), dice.randrange(-size, size)
    wide = [size if size > 1 else dice.choice((1, 4)) for size in shape]
    more = [dice.choice((1, 2)) for _ in range(dice.randint(0, 2))]
    amounts = [dice.randint(0, 2) for _ in range(2 * dice.randint(1, rank))]
    value, turn = dice.choice((0.0, -1.5)), dice.randint(-3, 3)
    count = math.prod(shape)
    front = dice.choice([d for d in range(1, count + 1) if count % d == 0])
    name, call = dice.choice(
        [
            (f"slice {start}:{end}:{step}", lambda x: x.movedim(dim, 0)[start:end:step].movedim(0, dim)),
            (f"slice of {dim}", lambda x: torch.ops.aten.slice.Tensor(x, dim, start, end, step) * 2),
            (f"select {index}", lambda x: x.select(dim, index) * 2),
            (f"split {cuts}", lambda x: sum(part.sum() for part in x.split(cuts, dim) if part.numel())),
            (f"chunks {dim}", lambda x: torch.cat(x.chunk(3, dim)[::-1], dim)),
            (f"permute {order}", lambda x: x.permute(order) * 2),
            (f"expand {more} {wide}", lambda x: x.expand(*more, *wide) * 2),
            (f"pad {amounts} {value}", lambda x: F.pad(x, amounts, value=value)),
            (f"cat {dim}", lambda x: torch.cat([x, x * 2, x.abs()], dim)),
            (f"stack {dim}", lambda x: torch.stack([x, x * 2], dim)),
            (f"roll {turn} {dim}", lambda x: x.roll(turn, dim) + 1),
            (f"unsqueeze {dim}", lambda x: x.unsqueeze(dim) * 2),
            ("squeeze", lambda x: x.squeeze() * 2),
            (f"view {front}", lambda x: x.reshape(front, -1) * 2),
        ]
    )
    return f"{name} {shape} {dim}", call, [shape]


def _attention(dice: Random):
    batch, heads, queries, keys = 2, dice.choice((1, 2)), dice.randint(1, 6), dice.randint(1, 6)
    kind = dice.choice(("none", "causal", "numbers", "truths"))
    scale = _maybe(dice, 0.3)
    mask = torch.randn(dice.choice([(queries, keys), (1, queries, keys), (2, 1, queries, keys), (1, keys)]))
    mask_arg = None if kind in ("none", "causal") else mask > 0 if kind == "truths" else mask

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        numbers = mask_arg.to(query.dtype) if kind == "numbers" else mask_arg
        return F.scaled_dot_product_attention(
            query, key, value, numbers, is_causal=kind == "causal", scale=scale
        )

    shapes = [(batch, heads, queries, 4), (batch, heads, keys, 4), (batch, heads, keys, 3)]
    return f"attention {kind} {queries} {keys} {tuple(mask.shape)}", attend, shapes


_FAMILIES = (
    _convolution, _convolution, _pool, _pool, _adaptive, _resize, _product, _binary, _unary, _unary, _reduction, _softmax,
    _norm, _view, _view, _view, _attention,
)  # fmt: skip


def make(seed: int) -> Case:
    """Returns an operator with arguments, which depend only on the seed."""
    dice = Random(seed)
    torch.manual_seed(seed)
    text, call, shapes = dice.choice(_FAMILIES)(dice)
    dtype = torch.float32 if dice.random() < 0.8 or not HAS_LIBRARY else torch.float16
    if isinstance(call, nn.Module):
        call = call.eval().requires_grad_(False).to(dtype)
    if len(shapes) == 1 and len(shapes[0]) == 4 and dice.random() < 0.4:  # its input is in NHWC
        through = nn.Conv2d(shapes[0][1], shapes[0][1], 1).requires_grad_(False).to(dtype)
        operator = call
        call, text = lambda x: operator(through(x)), f"{text}, of an image"
    varies = (
        dice.randrange(len(shapes[0])) if len(shapes) == 1 and shapes[0] and dice.random() < 0.25 else None
    )
    return Case(f"{seed}: {text}, {dtype}, varies {varies}", call, shapes, dtype, varies)


class _Of(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(*args)


def check_case(case: Case) -> bool:
    """Lowers, loads, executes and compares; returns whether the case is valid and the backend claimed a node."""
    model, args = _Of(case.call).eval(), tuple(case.inputs())
    sizes: list[int | None] = [None]
    shapes = None
    try:
        assert model(*args).numel() > 0
        if case.varies is not None:
            sizes = [case.shapes[0][case.varies], 7, 3]
            assert all(model(*case.inputs(size)) is not None for size in sizes)
            shapes = {"args": ({case.varies: Dim("n", min=2, max=9)},)}
        program = export(model, args, dynamic_shapes=shapes)
    except Exception:  # not valid in eager, or not for every size
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        edge = to_edge_transform_and_lower(program, partitioner=XnnpackPartitioner())
    if not any(item.backend for item in edge.delegation().placements):
        return False
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    rtol, atol = (1e-4, 2e-5) if case.dtype is torch.float32 else (2e-2, 2e-2)
    for size in sizes:
        inputs = case.inputs(size)
        torch.testing.assert_close(
            torch.as_tensor(method.execute(inputs)[0]), model(*inputs), rtol=rtol, atol=atol
        )
    return True


def _run(seeds: range) -> int:
    claimed = 0
    for case in map(make, seeds):
        print(case.text)  # pytest prints it for a failure
        claimed += check_case(case)
    return claimed


def test_claimed_operators_run_and_equal_eager() -> None:
    assert _run(range(20)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("start", range(20, 1020, 100))
def test_claimed_operators_run_and_equal_eager_always(start: int) -> None:
    assert _run(range(start, start + 100)) > 50
