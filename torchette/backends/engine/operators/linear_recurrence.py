# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/linear_recurrence.cpp.
"""`cpu::linear_recurrence`: linear attention with a decaying state, such as Mamba 2 and the gated delta rule."""

from __future__ import annotations

import torch

from torchette.backends.engine.operators._library import LIBRARY, register_shape
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

_aten = ops.edge.aten


@bind_pattern_to_op(
    LIBRARY,
    "linear_recurrence(Tensor query, Tensor key, Tensor value, Tensor decay, Tensor? beta, Tensor state) -> (Tensor, Tensor)",
)
def linear_recurrence(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor | None,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Updates the state with each token: state = decay state + key^T delta; the token's output is query state.

    delta is the value, or beta (value - key (decay state)) if `beta` is given.

    Args:
        query: float32 [T, G, K].
        key: [T, G, K].
        value: [T, H, V]; H is a multiple of G. Each key head serves H / G adjacent heads.
        decay: [T, H, 1] or [T, H, K].
        beta: [T, H].
        state: [H, K, V], the state before the first token.

    Returns:
        The outputs, [T, H, V], and the state after the last token, [H, K, V].
    """
    heads = value.shape[1]

    def columns(x: torch.Tensor) -> torch.Tensor:
        """[T, G or H, K] -> [T, H, K, 1]"""
        tokens, groups, depth = x.shape
        grouped = _aten.expand_copy.default(
            _aten.unsqueeze_copy.default(x, 2), [tokens, groups, heads // max(groups, 1), depth]
        )
        result: torch.Tensor = _aten.view_copy.default(grouped, [tokens, heads, depth, 1])
        return result

    queries, keys, decays = columns(query), columns(key), columns(decay)
    last, outputs = _aten.clone.default(state), []
    for t in range(value.shape[0]):
        k, delta = keys[t], value[t]
        last = _aten.mul.Tensor(last, decays[t])
        if beta is not None:
            predicted = _aten.sum.dim_IntList(_aten.mul.Tensor(last, k), [1])
            delta = _aten.mul.Tensor(
                _aten.sub.Tensor(delta, predicted), _aten.unsqueeze_copy.default(beta[t], 1)
            )
        last = _aten.add.Tensor(last, _aten.mul.Tensor(k, _aten.unsqueeze_copy.default(delta, 1)))
        outputs.append(_aten.sum.dim_IntList(_aten.mul.Tensor(last, queries[t]), [1]))
    return torch.stack(outputs) if outputs else _aten.clone.default(value), last


# Tracing the pattern would unroll it.
register_shape(
    "linear_recurrence",
    lambda q, k, value, decay, beta, state: (torch.empty_like(value), torch.empty_like(state)),
)
