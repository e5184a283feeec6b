# SPDX-License-Identifier: BSD-3-Clause
# In: matrix multiplications with a constant right operand. Out: `cpu::linear` with packed weights.
"""Replaces linear layers by `cpu::linear`."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.engine.pack import cut_last_panel, pack_linear
from torchette.backends.engine.passes.constants import Weights
from torchette.backends.engine.passes.narrow import widened_from
from torchette.exir.delegation.delegate import reject
from torchette.exir.graph import call, calls, note, replace

aten = torch.ops.aten


def place_linears(program: ExportedProgram) -> ExportedProgram:
    """Replaces matrix multiplications with a constant matrix by cpu::linear."""
    weights = Weights(program)
    count = 0
    for node in calls(program, aten.linear.default, aten.mm.default, aten.addmm.default):
        placed = _placed(weights, node)
        if placed is not None:
            replace(program, node, placed)
            count += 1
    if count:
        note(program, f"{count} linear layers became cpu::linear")
        _read_tables_from_panels(program, weights)
    return program


def _read_tables_from_panels(program: ExportedProgram, weights: Weights) -> None:
    """Reads tied embedding tables from the packed weight of the linear layer, so that the file stores them once."""
    layers = [(weights.any(of), packed) for of, how, packed in weights.packings() if how == _AS_GIVEN]
    for node in calls(program, aten.embedding.default):
        table, indices = node.args[:2]
        values = weights.any(table)
        packed = next((packed for one, packed in layers if values is not None and _same(one, values)), None)
        if values is None or packed is None:
            continue
        packed = weights.visible(packed, node)
        args, val = (packed, indices, values.shape[0]), node.meta["val"]
        rows = call(node, torch.ops.cpu.packed_embedding.default, args, val=val.float(), like=node)
        for user in list(node.users):
            if widened_from(user) is node:
                replace(program, user, rows)
        if node.users and val.dtype != torch.float32:
            rows = call(node, aten._to_copy.default, (rows,), {"dtype": val.dtype}, val=val, like=node)
        replace(program, node, rows)
        note(program, "an embedding table is read from the packed weight of a linear layer")


def _same(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    """Whether two tensors have equal elements. A tied weight is stored twice if each copy was computed separately."""
    return one is not None and one.dtype is other.dtype and torch.equal(one, other)


# Key of the packing of the weight of `aten.linear`, [outputs, inputs].
_AS_GIVEN = ("linear", False)


def operands(node: Node) -> tuple[Any, Any, Any]:
    """Returns the input, the weight, and the bias or None of a linear, mm or addmm."""
    if node.target is aten.addmm.default:
        bias, x, weight = node.args
        return x, weight, bias
    x, weight, bias, *_ = (*node.args, None)
    return x, weight, bias


def _placed(weights: Weights, node: Node) -> Node | None:
    if node.kwargs:
        reject(node, "the matrix multiplication is scaled by alpha or beta")
        return None
    transposed = node.target is not aten.linear.default
    x, weight, bias = operands(node)
    values = weights.weight(weight)
    if values is None or values.dim() != 2 or not isinstance(x, Node) or x.meta["val"].dtype != torch.float32:
        reject(node, weights.why_not(weight) or "its input is not float32")
        return None
    outputs = values.shape[1] if transposed else values.shape[0]
    if bias is not None:
        bias_values = weights.get(bias)
        if bias_values is None or tuple(bias_values.shape) != (outputs,):
            reject(
                node, weights.why_not(bias, "bias") or "its bias does not have one element for each output"
            )
            return None
    packed = weights.packed(
        weight,
        ("linear", transposed),
        lambda tensor: cut_last_panel(pack_linear(tensor.t() if transposed else tensor), outputs),
    )
    args: tuple[Any, ...] = (x, packed, bias, None, outputs, "none")
    return call(node, torch.ops.cpu.linear.default, args, val=node.meta["val"], like=node)
