# SPDX-License-Identifier: BSD-3-Clause
# In: lstm and gru as torch.export captures them, before the decompositions expand them into a graph of time steps. Out:
# `cpu::lstm` and `cpu::gru`, one call for each layer and direction.
"""Replaces recurrent layers by one operator for all time steps."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.engine.pack import pack_gate_bias, pack_gates
from torchette.backends.engine.passes.constants import Weights
from torchette.backends.engine.passes.narrow import NARROW
from torchette.exir import ops
from torchette.exir.arguments import checked, node_arg, overload
from torchette.exir.graph import call, calls, fake_mode, note
from torchette.exir.passes.steps_to_scan import (
    Emit,
    LayerWeights,
    layer_weights,
    replace_results,
    write_layers,
)

aten = torch.ops.aten
cpu = torch.ops.cpu

_GATES = {aten.lstm.input: 4, aten.gru.input: 3}


def place_recurrent(program: ExportedProgram) -> ExportedProgram:
    """Replaces lstm and gru with stored weights by cpu::lstm and cpu::gru.

    16-bit layers compute in float32, between casts.
    """
    weights, mode, count = Weights(program), fake_mode(program), 0
    for node in calls(program, *_GATES):
        if not _is_supported(weights, node):
            continue
        emit = Emit(mode, lambda target, args, val: call(node, target, args, val=val, like=node))  # noqa: B023
        results = write_layers(emit, node, node_arg(node), _direction(weights, node))
        replace_results(program, node, results)
        count += 1
    if count:
        note(program, f"{count} recurrent layers became cpu::lstm or cpu::gru")
    return program


def _is_supported(weights: Weights, node: Node) -> bool:
    if ops.argument(node, "train") and ops.argument(node, "dropout"):
        return False
    dtype = node_arg(node).meta["val"].dtype
    if dtype not in (torch.float32, *NARROW):
        return False
    layers = layer_weights(node)
    tensors = [weights.any(one) for layer in layers for one in layer if one is not None]
    return all(layer.projection is None for layer in layers) and all(
        tensor is not None and tensor.dtype is dtype for tensor in tensors
    )


def _direction(weights: Weights, node: Node) -> Any:
    """Returns a function that emits one layer in one direction."""
    gates, batch_first = _GATES[overload(node)], ops.argument(node, "batch_first")
    how = "gates", gates

    def packed(weight: Node) -> Node:
        return weights.packed(weight, how, lambda tensor: pack_gates(tensor, gates))

    def bias(*given: Node | None) -> Node | None:
        if given[0] is None:
            return None
        stored = [checked(weights.any(one), torch.Tensor).float() for one in given]
        total = torch.stack(stored).sum(0).detach()
        return weights.add(f"{given[0].name}_packed", pack_gate_bias(total, gates), given[0])

    def direction(emit: Emit, x: Node, start: list[Node], layer: LayerWeights, backwards: bool) -> list[Node]:
        matrices = packed(layer.input), packed(layer.state)
        both = layer.input_bias, layer.state_bias
        biases = [bias(*both)] if gates == 4 else [bias(one) for one in both]
        target = cpu.lstm.default if gates == 4 else cpu.gru.default
        dtype = x.meta["val"].dtype
        x, *start = (_cast(emit, value, torch.float32) for value in (x, *start))
        layers = emit(target, x, *start, *matrices, *biases, backwards, batch_first)
        results = (emit(operator.getitem, layers, index) for index in range(len(start) + 1))
        output, *final = (_cast(emit, value, dtype) for value in results)
        return [*final, output]

    return direction


def _cast(emit: Emit, value: Node, dtype: torch.dtype) -> Node:
    return value if value.meta["val"].dtype is dtype else emit(aten.to.dtype, value, dtype)
