# SPDX-License-Identifier: BSD-3-Clause
# In: convolutions of constant filters, channels first. Out: the engine's, on packed filters, between two permutations,
# which `layouts.py` takes away where they meet.
"""Convolutions become `cpu::convolution` and `cpu::depthwise`, and the pools between them the engine's."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.cpu.pack import pack_convolution, pack_depthwise
from torchette.backends.cpu.passes.constants import Weights
from torchette.backends.cpu.passes.layouts import channels_first, channels_last, permuted
from torchette.exir.delegation.delegate import reject
from torchette.exir.graph import call, calls, note, replace

aten = torch.ops.aten


def place_convolutions(program: ExportedProgram) -> ExportedProgram:
    """Convolutions with a constant filter become the engine's, channels last."""
    weights = Weights(program)
    count = 0
    for node in calls(program, aten.convolution.default):
        placed = _placed(weights, node)
        if placed is None:
            continue
        replace(program, node, channels_first(placed, before=node))
        count += 1
    for node in () if count else calls(program, *_POOLS):
        reject(node, "nothing to gain: there is no convolution beside it")
    pools = sum(_place_pool(program, node) for node in calls(program, *_POOLS)) if count else 0
    if count:
        note(
            program, f"{count} convolutions became cpu::convolution or cpu::depthwise, {pools} pools followed"
        )
    return program


_POOLS = (aten.max_pool2d_with_indices.default, aten.avg_pool2d.default)


def _place_pool(program: ExportedProgram, node: Node) -> bool:
    """Put the engine's pool in the place of torch's: between convolutions, that spares two permutations."""
    x = node.args[0]
    if not isinstance(x, Node) or x.meta["val"].dim() != 4 or x.meta["val"].dtype != torch.float32:
        reject(node, "its image has no batch, or is not float32")
        return False
    largest = node.target is aten.max_pool2d_with_indices.default
    results = [user for user in node.users if largest and user.args[1:] == (0,)] if largest else [node]
    if largest and (len(results) != 1 or any(user.users for user in node.users if user not in results)):
        reject(node, "the places of the largest elements are read, too")
        return False
    (result,) = results
    defaults = (
        [None, None, [], [0, 0], [1, 1], False] if largest else [None, None, [], [0, 0], False, True, None]
    )
    given: list[Any] = [*node.args[1:], *defaults[len(node.args) :]]
    kernel = _each(given[0], 2)
    where = [_each(each, 2) for each in (given[1] or kernel, *given[2 : 4 if largest else 3])]
    args = (channels_last(x, before=node), kernel, *where, *given[4 if largest else 3 :])
    target = torch.ops.cpu.max_pool.default if largest else torch.ops.cpu.avg_pool.default
    placed = call(node, target, args, val=permuted(result.meta["val"], [0, 2, 3, 1]), like=node)
    replace(program, result, channels_first(placed, before=node))
    return True


def _placed(weights: Weights, node: Node) -> Node | None:
    x, filters, bias, stride, padding, dilation, transposed, _, groups = node.args
    filter_values = weights.get(filters)
    if filter_values is None or transposed or not isinstance(x, Node):
        reject(node, weights.why_not(filters, "filter") or "it is transposed")
        return None
    if bias is not None and weights.get(bias) is None:
        reject(node, weights.why_not(bias, "bias") or "")
        return None
    spatial = filter_values.dim() - 2
    if x.meta["val"].dim() != spatial + 2 or not 1 <= spatial <= 3:
        reject(node, "its image has no batch, or not one to three dimensions")
        return None
    where = [_each(given, spatial) for given in (stride, padding, dilation)]
    outputs = filter_values.shape[0]
    image = channels_last(x, before=node)
    val = permuted(node.meta["val"], [0, *range(2, spatial + 2), 1])
    if groups > 1 and groups == outputs and filter_values.shape[1] == 1 and x.meta["val"].shape[1] == outputs:
        packed = weights.packed(filters, "depthwise", pack_depthwise)
        args: tuple[Any, ...] = (image, packed, bias, None, *where, "none")
        return call(node, torch.ops.cpu.depthwise.default, args, val=val, like=node)
    packed = weights.packed(filters, ("convolution", groups), lambda tensor: pack_convolution(tensor, groups))
    args = (image, packed, bias, None, *where, outputs, "none")
    return call(node, torch.ops.cpu.convolution.default, args, val=val, like=node)


def _each(given: Any, spatial: int) -> list[int]:
    return list(given) * spatial if len(given) == 1 else list(given)
