# SPDX-License-Identifier: BSD-3-Clause
# Calls of operators that Vulkan takes, one line each: a name, what is called, and its inputs' shapes or tensors.
from __future__ import annotations

import torch
import torch.nn.functional as F

BOTH = [(3, 5), (3, 5)]
IMAGE = [(2, 8, 9, 11)]


def _ints(*shape: int, high: int = 7) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.int64).mul(5).remainder(high).reshape(shape)


def _whole(*shape: int) -> torch.Tensor:
    return (_ints(*shape, high=13) - 6).to(torch.int32)


UNARY = [
    "abs",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "ceil",
    "cos",
    "exp",
    "erf",
    "floor",
    "neg",
    "relu",
    "sigmoid",
    "sin",
    "sqrt",
    "tanh",
    "tan",
    "round",
    "trunc",
    "sign",
    "expm1",
    "reciprocal",
    "isnan",
    "isinf",
    "logical_not",
]
POSITIVE = ["log", "log2", "log10", "log1p", "rsqrt", "acosh", "sqrt"]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "atan2",
    "fmod",
    "remainder",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
]


def _of_positive(name: str):
    return lambda x: getattr(torch, name)(x.abs() + 1.01)


CASES: dict[str, tuple] = {
    **{name: (getattr(torch, name), [(4, 7)]) for name in UNARY},
    **{f"{name} of positive": (_of_positive(name), [(4, 7)]) for name in POSITIVE},
    **{name: (getattr(torch, name), BOTH) for name in BINARY},
    **{f"{name} broadcast": (getattr(torch, name), [(2, 1, 5), (3, 1)]) for name in BINARY},
    **{f"{name} of int": (getattr(torch, name), [_whole(3, 5), _whole(5)]) for name in ["add", "mul", "maximum", "minimum", "eq", "lt"]},
    "floor_divide of int": (lambda x, y: torch.div(x, y.abs() + 1, rounding_mode="floor"), [_whole(3, 5), _whole(5)]),
    "trunc divide": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), BOTH),
    "bitwise": (lambda x, y: (x & y) | (x ^ y), [_whole(3, 5), _whole(3, 5)]),
    "add with alpha": (lambda x, y: torch.add(x, y, alpha=2.5), BOTH),
    "int times float": (lambda x, y: x * y, [_whole(3, 5), (3, 5)]),
    "numbers": (lambda x: (x + 1.5) * 2 - 3 / (x.abs() + 1), [(4, 7)]),
    "pow": (lambda x: x.abs() ** 1.7 + x**2 + x**3, [(4, 7)]),
    "clamp": (lambda x: torch.clamp(x, -0.5), [(4, 7)]),
    "clamp of int": (lambda x: torch.clamp(x, -2, 3), [_whole(4, 7)]),
    "gelu": (F.gelu, [(4, 7)]),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), [(4, 7)]),
    "silu": (F.silu, [(4, 7)]),
    "hardswish": (F.hardswish, [(4, 7)]),
    "hardsigmoid": (F.hardsigmoid, [(4, 7)]),
    "hardtanh": (F.hardtanh, [(4, 7)]),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.3), [(4, 7)]),
    "elu": (F.elu, [(4, 7)]),
    "softplus": (F.softplus, [(4, 7)]),
    "relu6": (lambda x: F.relu6(x * 5), [(4, 7)]),
    "where": (lambda x, y: torch.where(x > y, x, y * 2), [(3, 5), (5,)]),
    "to int": (lambda x: (x * 10).to(torch.int32), [(3, 5)]),
    "to bool": (lambda x: (x > 0).to(torch.float32), [(3, 5)]),
    # shapes
    "view": (lambda x: (x * 2).view(6, 4) + 1, [(2, 3, 4)]),
    "view of permuted": (lambda x: x.permute(2, 0, 1).reshape(4, 6) * 2, [(2, 3, 4)]),
    "permute": (lambda x: x.permute(2, 0, 3, 1), [(2, 3, 4, 5)]),
    "permute six": (lambda x: x.permute(5, 3, 1, 0, 2, 4) * 2, [(2, 3, 2, 2, 3, 2)]),
    "transposed sum": (lambda x, y: x.t() + y, [(5, 3), (3, 5)]),
    "slice": (lambda x: x[:, 1:7:2] + x[:, :3], [(4, 9)]),
    "select": (lambda x: x[:, 1] * x[:, -1], [(4, 9)]),
    "expand": (lambda x: x.expand(3, 4, 5) * 2, [(4, 1)]),
    "expand result": (lambda x: x.expand(3, 4, 5), [(4, 1)]),
    "cat": (lambda x, y: torch.cat([x, y, x * 2], 1), [(2, 3, 4), (2, 1, 4)]),
    "stack": (lambda x, y: torch.stack([x, y], 1), [(2, 3), (2, 3)]),
    "split": (lambda x: [part * 2 for part in torch.split(x, 3, 1)], [(2, 8)]),
    "chunk": (lambda x: torch.chunk(x, 2, 0)[1] + 1, [(4, 3)]),
    "unbind": (lambda x: sum(torch.unbind(x, 1)), [(4, 3)]),
    "flip": (lambda x: torch.flip(x, [0, 2]), [(2, 3, 4)]),
    "repeat": (lambda x: x.repeat(2, 3, 2), [(3, 4)]),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 3), value=0.5), [(2, 3, 4)]),
    "pad negative": (lambda x: F.pad(x, (-1, 2, 1, -1)), [(2, 3, 4)]),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), [(2, 8, 3, 5)]),
    "unfold": (lambda x: x.unfold(1, 3, 2), [(2, 9)]),
    "squeeze": (lambda x: x.squeeze(1).unsqueeze(-1) * 2, [(2, 1, 4)]),
    "full_like": (lambda x: torch.full_like(x, 2.5) + x, [(2, 3)]),
    # products
    "linear": (lambda x, w, b: F.linear(x, w, b), [(5, 37), (70, 37), (70,)]),
    "linear one row": (lambda x, w, b: F.linear(x, w, b), [(1, 37), (70, 37), (70,)]),
    "linear of three": (lambda x, w: F.linear(x, w), [(2, 5, 33), (9, 33)]),
    "linear of transposed": (lambda x, w: F.linear(x.transpose(1, 2), w), [(2, 33, 5), (9, 33)]),
    "mm": (torch.mm, [(40, 50), (50, 70)]),
    "mm transposed": (lambda x, y: torch.mm(x.t(), y.t()), [(50, 40), (70, 50)]),
    "addmm": (lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2.0), [(9,), (6, 7), (7, 9)]),
    "bmm": (torch.bmm, [(3, 33, 7), (3, 7, 40)]),
    "baddbmm": (torch.baddbmm, [(3, 1, 5), (3, 4, 7), (3, 7, 5)]),
    "matmul of four": (torch.matmul, [(2, 3, 6, 7), (2, 3, 7, 5)]),
    "matmul broadcast": (torch.matmul, [(2, 3, 6, 7), (7, 5)]),
    "attention": (F.scaled_dot_product_attention, [(2, 3, 9, 8), (2, 3, 7, 8), (2, 3, 7, 5)]),
    "attention causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [(2, 3, 9, 8), (2, 3, 9, 8), (2, 3, 9, 8)],
    ),
    "attention mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        [(2, 3, 9, 8), (2, 3, 7, 8), (2, 3, 7, 8), (9, 7)],
    ),
    "attention bool mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m > -1),
        [(2, 3, 9, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 1, 9, 7)],
    ),
    "attention grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        [(2, 6, 9, 8), (2, 2, 7, 8), (2, 2, 7, 8)],
    ),
    "attention of transposed": (
        lambda x: F.scaled_dot_product_attention(*(x.view(2, 9, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0))),
        [(2, 9, 96)],
    ),
    # convolutions
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), [*IMAGE, (12, 8, 3, 3), (12,)]),
    "conv2d strided": (lambda x, w: F.conv2d(x, w, stride=(2, 1), dilation=2), [*IMAGE, (5, 8, 3, 3)]),
    "conv2d point": (lambda x, w, b: F.conv2d(x, w, b), [*IMAGE, (40, 8, 1, 1), (40,)]),
    "conv2d groups": (lambda x, w, b: F.conv2d(x, w, b, groups=2), [*IMAGE, (8, 4, 3, 3), (8,)]),
    "conv2d depthwise": (lambda x, w, b: F.conv2d(x, w, b, groups=8, padding=1), [*IMAGE, (8, 1, 3, 3), (8,)]),
    "conv2d without images": (lambda x, w: F.conv2d(x, w), [(8, 9, 11), (4, 8, 3, 3)]),
    "conv2d of permuted": (lambda x, w: F.conv2d(x.permute(0, 3, 1, 2), w), [(2, 9, 11, 8), (4, 8, 3, 3)]),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=2), [(2, 6, 17), (8, 6, 5), (8,)]),
    "conv1d depthwise": (lambda x, w: F.conv1d(x, w, groups=6), [(2, 6, 17), (6, 1, 5)]),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1),
        [*IMAGE, (8, 6, 3, 3), (6,)],
    ),
    "conv_transpose2d groups": (
        lambda x, w: F.conv_transpose2d(x, w, stride=(1, 2), groups=2, dilation=2),
        [*IMAGE, (8, 3, 3, 3)],
    ),
    "conv3d": (
        lambda x, w, b: F.conv3d(x, w, b, stride=(1, 2, 1), padding=(1, 0, 2), dilation=(2, 1, 1)),
        [(2, 3, 5, 6, 7), (8, 3, 2, 3, 3), (8,)],
    ),
    "conv3d groups": (lambda x, w: F.conv3d(x, w, groups=4), [(1, 4, 3, 5, 6), (4, 1, 2, 2, 3)]),
    "conv_transpose3d": (
        lambda x, w, b: F.conv_transpose3d(x, w, b, stride=(2, 1, 2), padding=1, output_padding=(1, 0, 1)),
        [(1, 4, 3, 4, 5), (4, 3, 2, 3, 3), (3,)],
    ),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=3), [(2, 6, 7), (6, 4, 5)]),
    # pools and sizes
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "max_pool2d ceil": (lambda x: F.max_pool2d(x, (2, 3), ceil_mode=True, dilation=(2, 1)), IMAGE),
    "max_pool2d places": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), IMAGE),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
    "avg_pool2d ceil": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), IMAGE),
    "avg_pool2d without padding": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), IMAGE),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (4, 5)), IMAGE),
    "adaptive_avg_pool2d to one": (lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.0), IMAGE),
    "nearest to size": (lambda x: F.interpolate(x, size=(13, 5)), IMAGE),
    "bilinear": (lambda x: F.interpolate(x, size=(13, 5), mode="bilinear"), IMAGE),
    "bilinear aligned": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True), IMAGE),
    # norms
    "softmax": (lambda x: torch.softmax(x, -1), [(4, 100)]),
    "softmax of channels": (lambda x: torch.softmax(x, 1), IMAGE),
    "log_softmax": (lambda x: torch.log_softmax(x, 1), [(4, 10)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (70,), w, b), [(2, 3, 70), (70,), (70,)]),
    "layer_norm of two": (lambda x: F.layer_norm(x, (3, 70)), [(2, 3, 70)]),
    "layer_norm of permuted": (lambda x: F.layer_norm(x.permute(0, 2, 1), (3,)), [(2, 3, 70)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (70,), w, 1e-5), [(2, 3, 70), (70,)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 4, w, b), [*IMAGE, (8,), (8,)]),
    "instance_norm": (lambda x: F.instance_norm(x), IMAGE),
    "batch_norm": (
        lambda x, w, b, m, v: F.batch_norm(x, m, v.abs() + 0.5, w, b),
        [*IMAGE, (8,), (8,), (8,), (8,)],
    ),
    # reductions
    "sum": (lambda x: x.sum(1), [(4, 70, 3)]),
    "sum of all": (lambda x: x.sum(), [(4, 70, 3)]),
    "sum keeping": (lambda x: x.sum((0, 2), keepdim=True), [(4, 70, 3)]),
    "sum of int": (lambda x: x.sum(1, dtype=torch.int32), [_whole(4, 70)]),
    "mean": (lambda x: x.mean((2, 3)), IMAGE),
    "mean of permuted": (lambda x: x.permute(3, 1, 0, 2).mean((0, 2)), IMAGE),
    "amax": (lambda x: x.amax(-1), [(4, 70)]),
    "amin": (lambda x: x.amin((0, 1)), [(4, 7, 3)]),
    "max": (lambda x: torch.max(x, 1), [(4, 70)]),
    "min of int": (lambda x: torch.min(x, 1)[0], [_whole(4, 70)]),
    "argmax": (lambda x: x.argmax(-1), [(4, 70)]),
    "argmin of equal": (lambda x: x.argmin(0), [_whole(40, 3).float()]),
    "var": (lambda x: x.var(1), [(4, 70)]),
    "var biased": (lambda x: x.var((0, 1), unbiased=False), [(4, 70, 3)]),
    "any": (lambda x: (x > 2).any(1), [(4, 70)]),
    "all": (lambda x: (x > -1).all(1), [(4, 7)]),
    "prod": (lambda x: x.prod(1), [(4, 7)]),
    "cumsum": (lambda x: x.cumsum(1), [(4, 7, 3)]),
    # indices
    "embedding": (F.embedding, [_ints(2, 5, high=9), (9, 6)]),
    "index_select": (lambda x, i: x.index_select(1, i), [(3, 7, 4), _ints(9)]),
    "index": (lambda x, i: x[:, i], [(3, 7, 4), _ints(2, 3)]),
    "bitwise_not": (lambda x: (~(x > 0), ~(x * 3).int()), BOTH[:1]),
    "places of words": (lambda x: (torch.cumsum((x != 1).int(), 1) * (x != 1)).long() + 1, [_ints(2, 5)]),
    "index of two": (lambda x, i, j: x[i, :, j], [(3, 7, 4, 2), _ints(2, 3, high=3), _ints(3, high=4)]),
    "index of neighbours": (lambda x, i, j: x[:, i, j], [(3, 7, 4, 2), _ints(5), _ints(2, 1, high=4)]),
    "index of ints": (lambda x, i, j: x[i, j], [_whole(3, 7), _ints(5, high=3), _ints(5)]),
    "index_put": (lambda x, i, y: torch.ops.aten.index_put(x, [None, i], y), [(3, 7, 4), torch.tensor([5, 0, 2]), (3, 4)]),
    "index_put of two": (
        lambda x, i, j, y: torch.ops.aten.index_put(x, [i, None, j], y),
        [(3, 7, 4), torch.tensor([2, 0]), torch.tensor([3, 3]), (2, 7)],
    ),
    "index_copy": (lambda x, i, y: x.index_copy(1, i, y), [(3, 7, 4), torch.tensor([5, 0]), (3, 2, 4)]),
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 1, 1, 6, 2), [(3, 7, 4), (3, 3, 4)]),
    "select_scatter": (lambda x, y: torch.select_scatter(x, y, 1, -2), [(3, 7, 4), (3, 4)]),
    "scatter": (lambda x, y: x.scatter(1, torch.tensor([[5, 0], [1, 2]]), y), [(3, 7), (2, 3)]),
    "scatter number": (lambda x: x.scatter(0, torch.tensor([[2, 0, 1]]), 2.5), [(3, 7)]),
    "gather of less": (lambda x, i: x.gather(1, i), [(3, 7, 4), _ints(2, 5, 3)]),
    "gather": (lambda x, i: x.gather(1, i), [(3, 7, 4), _ints(3, 5, 4)]),
}  # fmt: skip
