# SPDX-License-Identifier: BSD-3-Clause
# In: a convolution or linear layer followed by a batch norm in inference mode. Out: only the layer, with scaled weights
# and a shifted bias.
"""Folds batch norms into the preceding layers."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import ops
from torchette.exir.arguments import optional_node_arg
from torchette.exir.graph import (
    add_constant,
    calls,
    constants,
    drop_unused_constants,
    note,
    replace,
    replace_constant,
)

aten = torch.ops.aten

# The operators of both dialects: as captured by torch.export, and core ATen.
_TRANSPOSED = frozenset(
    {aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input}
)
_LAYERS = _TRANSPOSED | {
    aten.convolution.default, aten.linear.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default,
    aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding,
}  # fmt: skip
_CAPTURED, _CORE = aten.batch_norm.default, aten._native_batch_norm_legit_no_training.default


def fold_batch_norm(program: ExportedProgram) -> ExportedProgram:
    """Fold each batch norm that is the only user of its layer into the layer.

    w' = w g / sqrt(v + eps), b' = (b - m) g / sqrt(v + eps) + beta. The pass runs on the captured program, because
    every removed norm makes torch's decomposition faster, and again on core ATen, for norms that a decomposition
    creates.
    """
    stored = constants(program)
    folded = 0
    for norm in calls(program, _CAPTURED, _CORE):
        layer, results = norm.args[0], _results(norm)
        if not results or not isinstance(layer, Node) or layer.target not in _LAYERS or len(layer.users) != 1:
            continue
        (*casts, weight), bias = _stored_as(layer.args[1]), ops.argument(layer, "bias")
        gamma, beta = optional_node_arg(norm, 1), optional_node_arg(norm, 2)
        mean, variance = optional_node_arg(norm, 3), optional_node_arg(norm, 4)
        if mean is None or variance is None:
            continue
        # A weight that another layer also reads would be stored twice.
        needed = [weight, mean, variance, *(n for n in (bias, gamma, beta) if n is not None)]
        shared = any(len(n.users) - _assertions(n) != 1 for n in (*casts, weight) if isinstance(n, Node))
        if any(n not in stored for n in needed) or shared or "bias" in layer.kwargs:
            continue
        if not stored[weight].is_floating_point() or not _channels_fit(layer):
            continue
        scale, shift = _scale_and_shift(stored, gamma, beta, mean, variance, bias, ops.argument(norm, "eps"))
        new_weight = _scaled(layer, stored[weight], scale)
        replace_constant(program, weight, new_weight)
        new_bias = add_constant(program, f"{norm.name}_bias", shift.to(layer.meta["val"].dtype), norm)
        stored[weight], stored[new_bias] = new_weight, program.constants[new_bias.name]
        if len(layer.args) > 2:
            layer.update_arg(2, new_bias)
        else:
            layer.args = (*layer.args, new_bias)
        # The layer yields the value of the norm from now on. Tools compare values by debug handle.
        if norm.meta.get("debug_handle"):
            layer.meta["debug_handle"] = norm.meta["debug_handle"]
        for result in results:
            replace(program, result, layer)
        if norm not in results:
            norm.graph.erase_node(norm)
        folded += 1
    if folded:
        drop_unused_constants(program)
        note(program, f"{folded} batch norms folded into the preceding layers")
    return program


def _stored_as(weight: object) -> list[Any]:
    """Returns a weight; or the casts that compute it, and the stored tensor that they read."""
    chain = [weight]
    while isinstance(chain[-1], Node) and chain[-1].target in (aten.to.dtype, aten._to_copy.default):
        chain.append(chain[-1].args[0])
    return chain


def _assertions(value: Node) -> int:
    return sum(user.target in ops.ASSERTIONS for user in value.users)


def _results(norm: Node) -> list[Node]:
    """Returns the nodes of the normalized value; empty if the norm cannot be folded."""
    if norm.target is _CAPTURED:
        return [] if norm.args[5] else [norm]
    if any(user.target is not operator.getitem or user.args[1] != 0 for user in norm.users):
        return []
    return list(norm.users)


def _channels_fit(layer: Node) -> bool:
    if layer.target is aten.linear.default:
        # Batch norm scales dimension 1, but the features of a linear layer are the last dimension.
        result: bool = layer.meta["val"].dim() == 2
        return result
    return not _is_transposed(layer) or ops.argument(layer, "groups") == 1


def _is_transposed(layer: Node) -> bool:
    return layer.target in _TRANSPOSED or (layer.target is aten.convolution.default and bool(layer.args[6]))


def _scale_and_shift(
    stored: dict[Node, torch.Tensor],
    gamma: Node | None,
    beta: Node | None,
    mean: Node,
    variance: Node,
    bias: Node | None,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    # Compute in float64, because a rounding error of the scale would affect every result.
    scale = (stored[variance].double() + epsilon).rsqrt()
    if gamma is not None:
        scale = scale * stored[gamma].double()
    moved = -stored[mean].double() if bias is None else stored[bias].double() - stored[mean].double()
    shift = moved * scale
    if beta is not None:
        shift = shift + stored[beta].double()
    return scale.detach(), shift.detach()


def _scaled(layer: Node, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    shape = [1] * weight.dim()
    shape[1 if _is_transposed(layer) else 0] = -1
    return (weight.detach().double() * scale.reshape(shape)).to(weight.dtype).contiguous()
