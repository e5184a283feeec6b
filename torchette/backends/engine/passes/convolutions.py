# SPDX-License-Identifier: BSD-3-Clause
# In: convolutions with constant filters, channels first. Out: the operators of the engine with packed filters, between
# two permutations, which `layouts.py` removes if they cancel.
"""Replaces convolutions by `cpu::convolution`, `cpu::depthwise` or `cpu::transposed_convolution`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.engine.pack import (
    cut_last_panel,
    pack_convolution,
    pack_depthwise,
    pack_transposed_convolution,
)
from torchette.backends.engine.passes.constants import Weights
from torchette.backends.engine.passes.layouts import channels_first, channels_last, permuted
from torchette.exir import ops
from torchette.exir.arguments import int_arg, ints_arg, list_arg, number_arg
from torchette.exir.delegation.delegate import reject
from torchette.exir.graph import call, calls, note, replace

aten = torch.ops.aten


def place_convolutions(program: ExportedProgram) -> ExportedProgram:
    """Replaces convolutions with a constant filter by the engine's operators, channels last."""
    weights = Weights(program)
    count = 0
    for node in calls(program, aten.convolution.default):
        placed = _placed(weights, node)
        if placed is None:
            continue
        replace(program, node, channels_first(placed, before=node))
        count += 1
    norms = (
        sum(_place_batch_norm(weights, program, node) for node in calls(program, *_BATCH_NORMS))
        if count
        else 0
    )
    if count:
        note(
            program,
            f"{count} convolutions run on the engine, and {norms} batch norms became depthwise filters of one tap",
        )
    return program


_BATCH_NORMS = (aten._native_batch_norm_legit_no_training.default,)


def _place_batch_norm(weights: Weights, program: ExportedProgram, node: Node) -> bool:
    """Replaces a batch norm that was not folded into a convolution by a depthwise filter of one tap for each
    channel.
    """
    x, *stored, _, _ = node.args
    eps = number_arg(node, len(node.args) - 1)
    scale, shift, mean, variance = (weights.get(value) for value in stored)
    result = only_result(node)
    if mean is None or variance is None or result is None or not isinstance(x, Node):
        return False
    spatial = x.meta["val"].dim() - 2
    if not 1 <= spatial <= 3 or x.meta["val"].dtype != torch.float32:
        return False
    factor = (variance + eps).rsqrt() * (1.0 if scale is None else scale)
    bias = (0.0 if shift is None else shift) - mean * factor
    filters = pack_depthwise(factor.detach().view(-1, *[1] * (spatial + 1)))
    args = (
        channels_last(x, before=node),
        weights.add(f"{node.name}_factor", filters, node),
        weights.add(f"{node.name}_bias", bias.detach(), node),
        None,
        *([number] * spatial for number in (1, 0, 1)),
        "none",
    )
    val = permuted(result.meta["val"], [0, *range(2, spatial + 2), 1])
    placed = call(node, torch.ops.cpu.depthwise.default, args, val=val, like=node)
    replace(program, result, channels_first(placed, before=node))
    return True


def only_result(node: Node) -> Node | None:
    """Returns the node of the first result, or None if another result is read."""
    if isinstance(node.meta["val"], torch.Tensor):
        return node
    results = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
    is_used = any(user.users for user in node.users if user not in results)
    return results[0] if len(results) == 1 and not is_used else None


def _placed(weights: Weights, node: Node) -> Node | None:
    x, filters, bias, *_ = node.args
    transposed = node.args[6]
    groups = int_arg(node, 8)
    filter_values = weights.weight(filters)
    if filter_values is None or not isinstance(filters, Node) or not isinstance(x, Node):
        reject(node, weights.why_not(filters, "filter") or "its image is not a tensor")
        return None
    if bias is not None and weights.get(bias) is None:
        reject(node, weights.why_not(bias, "bias") or "")
        return None
    spatial = filter_values.dim() - 2
    if x.meta["val"].dim() != spatial + 2 or not 1 <= spatial <= 3:
        reject(node, "its image has no batch dimension, or not one to three spatial dimensions")
        return None
    where = [per_dimension(ints_arg(node, index), spatial) for index in (3, 4, 5)]
    outputs = filter_values.shape[1] * groups if transposed else filter_values.shape[0]
    if transposed and outputs == groups > 1:
        reject(node, "nothing to gain: it is transposed with one output channel per group")
        return None
    if not transposed:
        x, where[1] = _without_zeros(x, where[1])
    val = permuted(node.meta["val"], [0, *range(2, spatial + 2), 1])
    if not transposed and groups == 1 and spatial <= 2 and _is_planar(x):
        packed = weights.packed(filters, "planar", lambda tensor: _pack_filters(tensor.unsqueeze(1), 1))
        args: tuple[Any, ...] = (x, packed, bias, None, *where, outputs, "none")
        return call(node, torch.ops.cpu.planar_convolution.default, args, val=val, like=node)
    image = channels_last(x, before=node)
    if transposed:
        how = "transposed_convolution", groups
        packed = weights.packed(
            filters, how, lambda tensor: pack_transposed_convolution(tensor.float(), groups)
        )
        args = (image, packed, bias, None, *where, per_dimension(ints_arg(node, 7), spatial), outputs, "none")
        return call(node, torch.ops.cpu.transposed_convolution.default, args, val=val, like=node)
    if groups > 1 and groups == outputs and filter_values.shape[1] == 1 and x.meta["val"].shape[1] == outputs:
        packed = weights.packed(
            filters, "depthwise", lambda tensor: cut_last_panel(pack_depthwise(tensor.float()), outputs)
        )
        args = (image, packed, bias, None, *where, "none")
        return call(node, torch.ops.cpu.depthwise.default, args, val=val, like=node)

    packed = weights.packed(filters, ("convolution", groups), lambda tensor: _pack_filters(tensor, groups))
    args = (image, packed, bias, None, *where, outputs, "none")
    return call(node, torch.ops.cpu.convolution.default, args, val=val, like=node)


def _pack_filters(tensor: torch.Tensor, groups: int) -> torch.Tensor:
    return torch.stack(
        [cut_last_panel(group, tensor.shape[0] // groups) for group in pack_convolution(tensor, groups)]
    )


# The number of channels of usual images. `cpu::convolution` is faster for many channels; the break-even was not
# measured.
_FEW_CHANNELS = 4


def _is_planar(image: Node) -> bool:
    """Whether an image has few channels and is a model input, possibly moved or changed elementwise, not a layer's
    result.
    """
    value = image.meta["val"]
    if value.shape[1] > _FEW_CHANNELS:
        return False
    while image.op != "placeholder":
        sources = [
            source
            for source in image.all_input_nodes
            if isinstance(source.meta["val"], torch.Tensor) and source.meta["val"].dim() == value.dim()
        ]
        moves = image.target in (aten.slice_copy.Tensor, aten.constant_pad_nd.default, aten._to_copy.default)
        if not (moves or ops.is_pointwise(image.target)) or len(sources) != 1:
            return False
        (image,) = sources
    return True


def _without_zeros(x: Node, padding: list[int]) -> tuple[Node, list[int]]:
    """Merges symmetric zero padding before a convolution into its padding. Returns the image and the padding."""
    if x.target is not aten.constant_pad_nd.default or ops.argument(x, "value") != 0:
        return x, padding
    source, amounts = x.args[0], list_arg(x, 1)
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))[::-1]
    widths = [a for a, b in pairs if isinstance(a, int) and isinstance(b, int) and a == b >= 0]
    framed = len(widths) == len(pairs) <= len(padding)
    if not framed or not isinstance(source, Node):
        return x, padding
    first = len(padding) - len(pairs)
    return source, padding[:first] + [a + width for a, width in zip(padding[first:], widths, strict=True)]


def per_dimension(given: Sequence[int], spatial: int) -> list[int]:
    """Expands a single value to one value for each spatial dimension."""
    return list(given) * spatial if len(given) == 1 else list(given)
