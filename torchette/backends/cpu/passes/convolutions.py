# SPDX-License-Identifier: BSD-3-Clause
# In: convolutions of constant filters, channels first. Out: the engine's, on packed filters, between two permutations,
# which `layouts.py` takes away where they meet.
"""Convolutions become `cpu::convolution` and `cpu::depthwise`."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.cpu.pack import pack_convolution, pack_depthwise
from torchette.backends.cpu.passes.constants import Weights
from torchette.backends.cpu.passes.layouts import channels_first, channels_last, permuted
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
    if count:
        note(program, f"{count} convolutions became cpu::convolution or cpu::depthwise")
    return program


def _placed(weights: Weights, node: Node) -> Node | None:
    x, filters, bias, stride, padding, dilation, transposed, _, groups = node.args
    filter_values = weights.get(filters)
    if filter_values is None or transposed or not isinstance(x, Node):
        return None
    if bias is not None and weights.get(bias) is None:
        return None
    spatial = filter_values.dim() - 2
    if x.meta["val"].dim() != spatial + 2 or not 1 <= spatial <= 3:
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
