# SPDX-License-Identifier: BSD-3-Clause
# In: a mixture of experts of transformers without an interface for implementations of experts. Out: the same computation with the
# matrices of the selected experts only, for any number of tokens.
"""Mixtures of experts that replace those of transformers while a model is exported."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def llama4_experts(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """Llama4TextMoe.forward: an expert receives the token scaled by its score, so other experts compute zeros.

    Args:
        self: the module Llama4TextMoe.
        hidden_states: float32 [1, n, size].

    Returns:
        float32 [n, size], and the router's logits [n, experts].
    """
    rows = hidden_states.squeeze(0)
    logits = self.router(rows)[1]
    scores, chosen = torch.topk(logits, self.top_k, dim=1)
    inputs = rows.unsqueeze(1) * torch.sigmoid(scores).unsqueeze(2)
    # Not view(): it would require a relation between the number of tokens and the number of experts.
    expert_ids, inputs = chosen.flatten(), inputs.flatten(0, 1).unsqueeze(1)
    gate, up = torch.bmm(inputs, self.experts.gate_up_proj[expert_ids]).chunk(2, dim=2)
    outputs = torch.bmm(up * self.experts.act_fn(gate), self.experts.down_proj[expert_ids])
    routed = outputs.squeeze(1).unflatten(0, (-1, self.top_k)).sum(1)
    return self.shared_expert(rows) + routed, logits
