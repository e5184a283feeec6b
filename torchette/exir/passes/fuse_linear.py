# SPDX-License-Identifier: BSD-3-Clause
# In: mm or addmm with a transposed weight, which is a linear layer in core ATen. Out: `linear`. The weight keeps the
# layout of the model, so that a tied embedding is stored once and no transpose runs.
"""Restores linear layers."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir.arguments import ints_arg, node_arg
from torchette.exir.graph import call, calls, constants, note, replace

aten = torch.ops.aten


def fuse_linear(program: ExportedProgram) -> ExportedProgram:
    """Replace mm and addmm of permute(weight) by linear."""
    stored = constants(program)
    fused = 0
    for node in calls(program, aten.mm.default, aten.addmm.default):
        bias, (x, transposed) = (
            (None, node.args) if node.target is aten.mm.default else (node.args[0], node.args[1:])
        )
        weight = transpose_source(transposed)
        if not isinstance(transposed, Node) or weight is None or weight not in stored or node.kwargs:
            continue
        if bias is not None and (
            not isinstance(bias, Node) or bias.meta["val"].shape != weight.meta["val"].shape[:1]
        ):
            continue
        args = (x, weight) if bias is None else (x, weight, bias)
        replace(program, node, call(node, aten.linear.default, args, val=node.meta["val"], like=node))
        if not transposed.users:
            transposed.graph.erase_node(transposed)
        fused += 1
    if fused:
        note(program, f"{fused} matmuls with a transposed weight became linear layers")
    return program


def transpose_source(node: object) -> Node | None:
    """Returns the two-dimensional value that a node transposes, or None."""
    if not isinstance(node, Node) or node.op != "call_function":
        return None
    if node.target in (aten.permute_copy.default, aten.permute.default):
        swaps = [dim % 2 for dim in ints_arg(node, 1)] == [1, 0]
    else:
        swaps = node.target in (aten.t_copy.default, aten.t.default)
    return node_arg(node) if swaps else None
