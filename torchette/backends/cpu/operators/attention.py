# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/cpu/attention.cpp.
"""`cpu::attention`: softmax of scaled products, without a matrix of scores."""

from __future__ import annotations

import torch

from torchette.backends.cpu.operators._library import LIBRARY
from torchette.exir.dialects._ops import bind_pattern_to_op


@bind_pattern_to_op(
    LIBRARY,
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale, bool causal, bool heads_first) -> Tensor",
)
def attention(query, key, value, mask, scale, causal, heads_first):
    q = query.transpose(1, 2)
    k, v = (key, value) if heads_first else (key.transpose(1, 2), value.transpose(1, 2))
    g = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, is_causal=causal)
    return y.transpose(1, 2).contiguous()
