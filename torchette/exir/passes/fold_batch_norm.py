# SPDX-License-Identifier: BSD-3-Clause
# A convolution or linear layer followed by a batch norm in inference comes in; the layer alone, with scaled weights
# and a moved bias, goes out.
"""Batch norm is folded into the layer before it."""

from __future__ import annotations

import operator

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir.graph import (
    add_constant,
    constants,
    drop_unused_constants,
    note,
    replace,
    replace_constant,
)

aten = torch.ops.aten


def fold_batch_norm(program: ExportedProgram) -> ExportedProgram:
    """w' = w g / sqrt(v + eps), b' = (b - m) g / sqrt(v + eps) + beta, for every batch norm that alone reads its layer."""
    stored = constants(program)
    folded = 0
    for norm in list(program.graph.find_nodes(op="call_function", target=_NORM)):
        layer, gamma, beta, mean, variance, _, epsilon = norm.args
        only_result = all(user.target is operator.getitem and user.args[1] == 0 for user in norm.users)
        if not only_result or not isinstance(layer, Node) or len(layer.users) != 1 or not norm.users:
            continue
        if layer.target not in _CHANNEL_DIM or mean not in stored or variance not in stored:
            continue
        weight, bias = layer.args[1], layer.args[2] if len(layer.args) > 2 else None
        given = [weight, *(n for n in (bias, gamma, beta) if n is not None)]
        # A weight that another layer reads as well would have to be stored twice.
        if any(n not in stored for n in given) or len(weight.users) != 1:
            continue
        scale, shift = _scale_and_shift(stored, gamma, beta, mean, variance, bias, epsilon)
        if not _foldable(layer, scale, stored[weight]):
            continue
        replace_constant(program, weight, _scaled(layer, stored[weight], scale))
        new_bias = add_constant(program, f"{norm.name}_bias", shift.to(stored[weight].dtype), norm)
        stored[new_bias] = shift
        layer.update_arg(2, new_bias) if len(layer.args) > 2 else layer.insert_arg(2, new_bias)
        for result in list(norm.users):
            replace(program, result, layer)
        program.graph.erase_node(norm)
        folded += 1
    if folded:
        drop_unused_constants(program)
        note(program, f"{folded} batch norms folded into the layer before them")
    return program


_NORM = aten._native_batch_norm_legit_no_training.default
_CHANNEL_DIM = (aten.convolution.default, aten.linear.default)


def _scale_and_shift(stored, gamma, beta, mean, variance, bias, epsilon):
    # In double: the rounding happens once, at the end.
    scale = (stored[variance].double() + epsilon).rsqrt()
    if gamma is not None:
        scale = scale * stored[gamma].double()
    moved = -stored[mean].double() if bias is None else stored[bias].double() - stored[mean].double()
    shift = moved * scale
    if beta is not None:
        shift = shift + stored[beta].double()
    return scale.detach(), shift.detach()


def _foldable(layer: Node, scale: torch.Tensor, weight: torch.Tensor) -> bool:
    if not weight.is_floating_point():
        return False
    if layer.target is aten.linear.default:
        # Batch norm scales dimension 1, a linear layer's features are the last.
        return layer.meta["val"].dim() == 2
    transposed, groups = layer.args[6], layer.args[8]
    return not transposed or groups == 1


def _scaled(layer: Node, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    transposed = layer.target is aten.convolution.default and layer.args[6]
    shape = [1] * weight.dim()
    shape[1 if transposed else 0] = -1
    return (weight.detach() * scale.to(weight.dtype).reshape(shape)).contiguous()
