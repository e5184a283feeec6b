# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/selective_scan.cpp.
"""`cpu::selective_scan`: the recurrence of Mamba, in which each element of the state has its own decay."""

from __future__ import annotations

import torch

from torchette.backends.engine.operators._library import LIBRARY, register_shape
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

_aten = ops.edge.aten


@bind_pattern_to_op(
    LIBRARY,
    "selective_scan(Tensor x, Tensor dt, Tensor rates, Tensor b, Tensor c, Tensor state) -> (Tensor, Tensor)",
)
def selective_scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    rates: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Updates the state with each token: state = exp(dt rates) state + (dt x) b; the token's output is state c.

    Args:
        x: float32 [T, V], one input for each channel.
        dt: [T, V].
        rates: [V, K].
        b: [T, K].
        c: [T, K].
        state: [V, K], the state before the first token.

    Returns:
        The outputs, [T, V], and the state after the last token, [V, K].
    """
    last, outputs = _aten.clone.default(state), []
    for t in range(x.shape[0]):
        step = _aten.unsqueeze_copy.default(dt[t], 1)
        added = _aten.mul.Tensor(_aten.mul.Tensor(step, _aten.unsqueeze_copy.default(x[t], 1)), b[t])
        last = _aten.add.Tensor(
            _aten.mul.Tensor(_aten.exp.default(_aten.mul.Tensor(step, rates)), last), added
        )
        outputs.append(_aten.sum.dim_IntList(_aten.mul.Tensor(last, c[t]), [1]))
    return torch.stack(outputs) if outputs else _aten.clone.default(x), last


# Tracing the pattern would unroll it.
register_shape(
    "selective_scan",
    lambda x, dt, rates, b, c, state: (x.new_empty(x.shape), state.new_empty(state.shape)),
)
