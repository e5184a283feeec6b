# SPDX-License-Identifier: BSD-3-Clause
# Kernels: torchette/kernels/engine/recurrent.cpp.
"""`cpu::lstm` and `cpu::gru`: one layer in one direction over all time steps."""

from __future__ import annotations

import torch

from torchette.backends.engine.operators._library import LIBRARY, widened
from torchette.backends.engine.pack import unpack_gate_bias, unpack_gates
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

_aten = ops.edge.aten


@bind_pattern_to_op(
    LIBRARY,
    "lstm(Tensor input, Tensor hidden, Tensor cell, Tensor weight, Tensor state_weight, Tensor? bias, bool reverse, "
    "bool batch_first) -> (Tensor, Tensor, Tensor)",
)
def lstm(
    input: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    weight: torch.Tensor,
    state_weight: torch.Tensor,
    bias: torch.Tensor | None,
    reverse: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes one layer of torch.nn.LSTM without projection.

    Args:
        input: float32 [T, B, I], or [B, T, I] if `batch_first`.
        hidden, cell: [B, H].
        weight, state_weight: `pack_gates` of the input weights and of the state weights; float32, or both stored as
            bfloat16 or float16.
        bias: `pack_gate_bias` of the sum of the two biases.
        reverse: whether to run from the last step to the first.

    Returns:
        The hidden states of all steps, [T, B, H] or [B, T, H], and the last hidden and cell states, [B, H].
    """
    units = hidden.shape[1]
    params = [widened(unpack_gates(panel, 4, units), input.dtype) for panel in (weight, state_weight)]
    if bias is not None:
        gate_bias = unpack_gate_bias(bias, units)
        params += [gate_bias, torch.zeros_like(gate_bias)]
    steps_in_order = _in_time_order(input, reverse, batch_first)
    state = [hidden[None], cell[None]]
    layer = torch.ops.aten.lstm.input
    output, last, last_cell = layer(
        steps_in_order, state, params, bias is not None, 1, 0.0, False, False, batch_first
    )
    return _in_time_order(output, reverse, batch_first), last[0].clone(), last_cell[0].clone()


@bind_pattern_to_op(
    LIBRARY,
    "gru(Tensor input, Tensor hidden, Tensor weight, Tensor state_weight, Tensor? bias, Tensor? state_bias, bool reverse, "
    "bool batch_first) -> (Tensor, Tensor)",
)
def gru(
    input: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    state_weight: torch.Tensor,
    bias: torch.Tensor | None,
    state_bias: torch.Tensor | None,
    reverse: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes one layer of torch.nn.GRU, with three gates and separate biases; see `lstm`."""
    units = hidden.shape[1]
    params = [widened(unpack_gates(panel, 3, units), input.dtype) for panel in (weight, state_weight)]
    if bias is not None and state_bias is not None:
        params += [unpack_gate_bias(bias, units), unpack_gate_bias(state_bias, units)]
    steps_in_order = _in_time_order(input, reverse, batch_first)
    layer = torch.ops.aten.gru.input
    output, last = layer(
        steps_in_order, hidden[None], params, bias is not None, 1, 0.0, False, False, batch_first
    )
    return _in_time_order(output, reverse, batch_first), last[0].clone()


def _in_time_order(steps: torch.Tensor, reverse: bool, batch_first: bool) -> torch.Tensor:
    return _aten.flip.default(steps, [1 if batch_first else 0]) if reverse else steps


def _output_like(input: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return input.new_empty([*input.shape[:2], hidden.shape[1]])


# Shape functions: tracing the patterns would run all steps and specialize the graph to the number of steps.
LIBRARY.impl(
    "lstm", lambda x, h, c, *_: (_output_like(x, h), torch.empty_like(h), torch.empty_like(c)), "Meta"
)
LIBRARY.impl("gru", lambda x, h, *_: (_output_like(x, h), torch.empty_like(h)), "Meta")
