# SPDX-License-Identifier: BSD-3-Clause
# In: matrix multiplications with a weight that is computed from stored integers and their scales, and lookups in such a
# table. Out: `cpu::weight_only_linear` and `cpu::weight_only_embedding` on the integers. The float matrix is never
# stored in memory.
"""Replaces layers with 8-, 4- or 2-bit weights by `cpu::weight_only_linear` and `cpu::weight_only_embedding`."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.engine.pack import OCTET, QUAD, pack_linear, pack_nibbles, pack_quads, pack_rows
from torchette.backends.engine.passes.constants import Weights
from torchette.backends.engine.passes.linears import operands
from torchette.exir.delegation.delegate import reject
from torchette.exir.graph import call, calls, constants, note, replace
from torchette.exir.passes.fold_constants import evaluate
from torchette.exir.passes.remove_dead_code import remove_dead_code

aten = torch.ops.aten
_INTEGERS = (torch.int8, torch.uint8)


class QuantizedMatrix(NamedTuple):
    """A matrix [N, K] of integers, with scales and zero points for groups of inputs, float32 [N, groups]."""

    values: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None


class PackedMatrix(NamedTuple):
    """A quantized matrix in the layout of the engine's operators."""

    values: Node
    scales: Node
    outputs: int
    group: int  # inputs that share a scale


def place_weight_only(program: ExportedProgram) -> ExportedProgram:
    """Keeps the integers of matrix multiplications and embedding tables with quantized weights."""
    weights, stored = Weights(program), dict(constants(program))
    packed: dict[Node, PackedMatrix | None] = {}
    count = 0
    for node in calls(program, aten.linear.default, aten.mm.default, aten.addmm.default):
        x, weight, bias = operands(node)
        if node.kwargs or not isinstance(weight, Node) or weight in stored or not isinstance(x, Node):
            continue
        if weight not in packed:
            packed[weight] = packed_weight(weights, stored, node, weight)
        matrix = packed[weight]
        if matrix is None or x.meta["val"].dtype != torch.float32:
            continue
        added = weights.get(bias)
        if bias is not None and (added is None or added.shape != (matrix.outputs,)):
            reject(
                node, weights.why_not(bias, "bias") or "its bias does not have one element for each output"
            )
            continue
        args = (x, matrix.values, matrix.scales, bias, matrix.outputs)
        placed = call(node, torch.ops.cpu.weight_only_linear.default, args, val=node.meta["val"], like=node)
        replace(program, node, placed)
        count += 1
    if count:
        note(program, f"{count} linear layers keep 8- or 4-bit weights")
    tables = _place_tables(program, weights, stored)
    if count or tables:
        remove_dead_code(program)
    return program


def _place_tables(program: ExportedProgram, weights: Weights, stored: dict[Node, torch.Tensor]) -> int:
    """Replaces lookups in quantized tables, so that only the requested rows are dequantized."""
    packed: dict[Node, tuple[Any, ...] | None] = {}
    count = 0
    for node in calls(program, aten.embedding.default):
        table, indices = node.args[:2]
        if not isinstance(table, Node) or table in stored:
            continue
        if table not in packed:
            packed[table] = _packed_table(weights, _scaled(stored, table, False), table)
        matrix = packed[table]
        if matrix is None:
            reject(node, "its table is not computed from 8-bit integers and their scales")
            continue
        target = torch.ops.cpu.weight_only_embedding.default
        placed = call(node, target, (*matrix, indices), val=node.meta["val"], like=node)
        replace(program, node, placed)
        count += 1
    if count:
        note(program, f"{count} embedding tables keep 8-, 4- or 2-bit integers")
    return count


def _packed_table(weights: Weights, found: QuantizedMatrix | None, table: Node) -> tuple[Any, ...] | None:
    """Returns the table in the narrowest format that fits, its scales, its zero points or None, and the bits per
    value.
    """
    if found is None:
        return None
    values, scales, zeros = found
    fits = (
        b
        for b in (2, 4)
        if values.min() >= -(1 << b - 1) and values.max() < 1 << b - 1 and values.shape[1] % (8 // b) == 0
    )
    bits = next(fits, 8)
    return (
        weights.add(f"{table.name}_whole", pack_rows(values, bits), table),
        weights.add(f"{table.name}_scales", scales, table),
        None if zeros is None else weights.add(f"{table.name}_zeros", zeros, table),
        bits,
    )


def packed_weight(
    weights: Weights, stored: dict[Node, torch.Tensor], node: Node, weight: Node
) -> PackedMatrix | None:
    """Returns the packed weight of a matrix multiplication if it is computed from stored integers, otherwise None."""
    matrix = _scaled(stored, weight, node.target is not aten.linear.default)
    if matrix is None or matrix.zeros is not None:
        return None
    packed = pack(weights, weight, matrix)
    if packed is None:
        reject(node, f"its weight has groups of inputs with a size that is not a multiple of {QUAD}")
    return packed


def pack(weights: Weights, like: Node, matrix: QuantizedMatrix) -> PackedMatrix | None:
    """Packs and stores a matrix. Returns None if the group size is not a multiple of 4."""
    values, scales, _ = matrix
    outputs, inputs = values.shape
    size = inputs // scales.shape[1]
    nibbles = values.min() >= -8 and values.max() <= 7 and (scales.shape[1] == 1 or size % OCTET == 0)
    if not nibbles and scales.shape[1] > 1 and size % QUAD != 0:
        return None
    return PackedMatrix(
        weights.add(f"{like.name}_whole", (pack_nibbles if nibbles else pack_quads)(values), like),
        weights.add(f"{like.name}_scales", pack_linear(scales), like),
        outputs,
        size,
    )


def _scaled(stored: dict[Node, torch.Tensor], weight: Node, transposed: bool) -> QuantizedMatrix | None:
    """Returns the integers, scales and zero points that reproduce a matrix as (values - zero) scale, bit for bit, or
    None.
    """
    roots = _roots(stored, weight)
    if roots is None or weight.meta["val"].dim() != 2 or weight.meta["val"].dtype != torch.float32:
        return None
    elements = weight.meta["val"].numel()
    tables = [t for t in roots if t.dtype in _INTEGERS and t.numel() == elements > 0]
    if len(tables) != 1:
        return None
    matrix = evaluate(weight, dict(stored))
    matrix = matrix.t() if transposed else matrix
    outputs, inputs = matrix.shape
    remaining = [t for t in roots if t is not tables[0]]
    table = tables[0].detach()
    # The stored table has the layout of the matrix or, after a pass transposed the matrix, that of its transpose.
    layouts = [table.reshape(outputs, inputs), *([table.reshape(inputs, outputs).t()] if transposed else [])]
    floats = [t.detach() for t in remaining if t.is_floating_point()]
    for values, scale in itertools.product(layouts, floats or [torch.ones(outputs)]):
        if scale.numel() == 1:
            scale = scale.reshape(1).expand(outputs)
        groups = scale.numel() // outputs
        if groups * outputs != scale.numel() or groups == 0 or inputs % groups != 0:
            continue
        factors, grouped = scale.reshape(outputs, groups).float(), values.reshape(outputs, groups, -1)
        zeros = [t.detach() for t in remaining if t.numel() == outputs * groups and t is not scale]
        for zero in [torch.zeros(outputs, groups), *(t.reshape(outputs, groups).float() for t in zeros)]:
            centred = grouped.float() - zero.unsqueeze(2)
            if not torch.equal((centred * factors.unsqueeze(2)).view(outputs, inputs), matrix):
                continue
            # Subtract the zero point from the integers if the differences fit into 8 bits.
            if centred.min() >= -128 and centred.max() <= 127 and torch.equal(centred, centred.round()):
                return QuantizedMatrix(centred.view(outputs, inputs).to(torch.int8), factors)
            return QuantizedMatrix(values, factors, zero)
    return None


def _roots(stored: dict[Node, torch.Tensor], node: Node) -> list[torch.Tensor] | None:
    """Returns the stored tensors that a value is computed from, or None if it also depends on other values."""
    roots: dict[Node, None] = {}
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current in roots:
            continue
        if current in stored:
            roots[current] = None
        elif current.op != "call_function" or len(roots) > 16:
            return None
        else:
            waiting += current.all_input_nodes
    return [stored[root] for root in roots]
