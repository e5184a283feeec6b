# SPDX-License-Identifier: BSD-3-Clause
# In: pools, resizes and norms, channels first, in a program with convolutions of the engine. Out: the operators of the
# engine between two permutations, which `layouts.py` removes if they cancel.
"""Replaces pools, resizes and norms between convolutions by operators with channels last."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.engine.passes.convolutions import only_result, per_dimension
from torchette.backends.engine.passes.layouts import (
    channels_first,
    channels_last,
    is_permutation,
    permuted,
    supports_any_order,
)
from torchette.exir import ops
from torchette.exir.arguments import checked, ints_arg, node_arg, overload
from torchette.exir.delegation.delegate import reject
from torchette.exir.graph import call, calls, note, replace, same_size

aten = torch.ops.aten
cpu = torch.ops.cpu

_CONVOLUTIONS = (
    cpu.convolution.default, cpu.planar_convolution.default, cpu.depthwise.default,
    cpu.transposed_convolution.default,
)  # fmt: skip


def place_images(program: ExportedProgram) -> ExportedProgram:
    """Replaces pools, resizes and norms by the engine's operators if the program has convolutions of the engine."""
    if next(calls(program, *_CONVOLUTIONS), None) is None:
        for node in calls(program, *_RULES):
            reject(node, "nothing to gain: the program has no convolution")
        return program  # permutations would not cancel
    count = 0
    for node in calls(program, *_RULES):
        x, result, replacement = node.args[0], only_result(node), _RULES[node.target](node)
        if (
            not isinstance(x, Node)
            or x.meta["val"].dtype != torch.float32
            or result is None
            or replacement is None
        ):
            reject(node, "it is not float32, its other results are read, or its batch size is not 1")
            continue
        target, args = replacement
        if node.target in _RESIZES and _stays_planar(node):
            reject(node, "no operator after it has channels last")
            continue
        val = permuted(result.meta["val"], [0, *range(2, result.meta["val"].dim()), 1])
        placed = call(node, target, (channels_last(x, before=node), *args), val=val, like=node)
        replace(program, result, channels_first(placed, before=node))
        count += 1
    if count:
        note(program, f"{count} pools, resizes and norms between convolutions run with channels last")
    return program


def _stays_planar(resize: Node) -> bool:
    """Returns whether permutations around a resize would not cancel, or cost more than one of its input."""
    sources, users = _around(resize, "all_input_nodes"), _around(resize, "users")
    if any(map(_has_channels_last, users)):
        return False
    if not any(map(_has_channels_last, sources)):
        return True
    # A reduction may remove the permutation.
    return _enlarges(resize) and all(
        user.op == "output" or user.target in _RESIZES or ops.is_pointwise(user.target) for user in users
    )


def _around(resize: Node, side: str) -> set[Node]:
    """Returns the nodes on one side of a resize, up to those that require an order of dimensions."""
    pending, found = [*getattr(resize, side)], set[Node]()
    while pending:
        node = pending.pop()
        if node not in found and (node.target in _RESIZES or supports_any_order(node)):
            pending += getattr(node, side)
        found.add(node)
    return found


def _has_channels_last(node: Node) -> bool:
    return is_permutation(node) or (node.target in _RULES and node.target not in _RESIZES)


def _enlarges(resize: Node) -> bool:
    sizes, result = node_arg(resize).meta["val"].shape, resize.meta["val"].shape
    return all(isinstance(size, int) for size in (*sizes, *result)) and math.prod(result) > math.prod(sizes)


# ---- rules: the operator that replaces each call, and its arguments after the image ----

Placed = tuple[Any, tuple[Any, ...]] | None


def _filled(node: Node, defaults: list[Any]) -> list[Any]:
    """Returns the arguments after the first one, completed with `defaults`."""
    return [*node.args[1:], *defaults[len(node.args) - 1 :]]


def _spatial(node: Node) -> int:
    result: int = node_arg(node).meta["val"].dim() - 2
    return result


def _max_pool(node: Node) -> Placed:
    kernel, stride, padding, dilation, ceil = _filled(node, [None, [], [0], [1], False])
    where = [
        per_dimension(values, _spatial(node)) for values in (kernel, stride or kernel, padding, dilation)
    ]
    return cpu.max_pool.default, (*where, ceil)


def _avg_pool(node: Node) -> Placed:
    kernel, stride, padding, *options = _filled(node, [None, [], [0], False, True, None])
    where = [per_dimension(values, _spatial(node)) for values in (kernel, stride or kernel, padding)]
    return cpu.avg_pool.default, (*where, *options)


def _adaptive_avg_pool(node: Node) -> Placed:
    return cpu.adaptive_avg_pool.default, (ints_arg(node, 1),)


def _group_norm(node: Node) -> Placed:
    _, weight, bias, *_, groups, eps = node.args
    return cpu.group_norm.default, (weight, bias, groups, eps)


def _instance_norm(node: Node) -> Placed:
    """Supports a batch of one image, because torch merges the batch into the channels."""
    x, weight, bias, _, _, eps = node.args
    batch, channels = checked(x, Node).meta["val"].shape[:2]
    return (cpu.group_norm.default, (weight, bias, channels, eps)) if same_size(batch, 1) else None


def _resize(mode: str) -> Callable[[Node], Placed]:
    def placed(node: Node) -> Placed:
        size, *others = node.args[1:]
        align = False if mode.startswith("nearest") else others.pop(0)
        if overload(node)._overloadname == "vec":
            (scales,) = others or (None,)
        else:
            scales = others if others and None not in others else None
        return cpu.resize.default, (size, scales, mode, align)

    return placed


_RESIZES: dict[Any, Callable[[Node], Placed]] = {
    **{overload: _resize("nearest") for overload in (
        aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest2d.vec,
        aten.upsample_nearest3d.default)},
    **{overload: _resize("nearest-exact") for overload in (
        aten._upsample_nearest_exact1d.default, aten._upsample_nearest_exact2d.default,
        aten._upsample_nearest_exact3d.default)},
    **{overload: _resize("linear") for overload in (
        aten.upsample_linear1d.default, aten.upsample_bilinear2d.default, aten.upsample_bilinear2d.vec,
        aten.upsample_trilinear3d.default)},
    aten.upsample_bicubic2d.default: _resize("cubic"),
}  # fmt: skip
_RULES: dict[Any, Callable[[Node], Placed]] = {
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.max_pool3d_with_indices.default: _max_pool,
    aten.avg_pool2d.default: _avg_pool,
    aten.avg_pool3d.default: _avg_pool,
    aten._adaptive_avg_pool2d.default: _adaptive_avg_pool,
    aten._adaptive_avg_pool3d.default: _adaptive_avg_pool,
    aten.native_group_norm.default: _group_norm,
    aten._native_batch_norm_legit.no_stats: _instance_norm,
    **_RESIZES,
}  # fmt: skip
