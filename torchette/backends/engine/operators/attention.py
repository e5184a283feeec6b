# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/attention.cpp.
"""`cpu::attention`: fused attention that does not store the matrix of scores; in float32, or with matmuls in bfloat16."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchette.backends.engine.operators._library import LIBRARY
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

_aten = ops.edge.aten


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def _rounded(x: torch.Tensor) -> torch.Tensor:
    narrow = _aten._to_copy.default(x, dtype=torch.bfloat16)
    result: torch.Tensor = _aten._to_copy.default(narrow, dtype=x.dtype)
    return result


def _bind(name: str, rounded: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Binds softmax(query key^T scale + mask) value for each head. `rounded` applies to the operands of both matmuls.

    A query that no key is visible to yields zeros.

    Args of the operator:
        query: float32 [B, T, H, D].
        key: [B, S, G, D]; H is a multiple of G. Each key head serves H / G query heads.
        value: [B, S, G, E].
        mask: broadcasts to [B, H, T, S]. A float32 mask is added to the scores; a bool mask is True for visible keys.
        causal: query i sees the keys 0 to i.
        heads_first: key and value have the layout [B, G, S, ...] of KV caches.

    The operator returns [B, T, H, E].
    """

    @bind_pattern_to_op(
        LIBRARY,
        f"{name}(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale, bool causal, bool heads_first) -> Tensor",
    )
    def pattern(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
        causal: bool,
        heads_first: bool,
    ) -> torch.Tensor:
        def swap_tokens_and_heads(x: torch.Tensor) -> torch.Tensor:
            swapped: torch.Tensor = _aten.permute_copy.default(x, [0, 2, 1, 3])
            return swapped

        def flat(x: torch.Tensor) -> torch.Tensor:
            merged: torch.Tensor = _aten.view_copy.default(x, [batch * heads, *x.shape[2:]])
            return merged

        query, key, value = rounded(query), rounded(key), rounded(value)
        query = swap_tokens_and_heads(query)
        if not heads_first:
            key, value = swap_tokens_and_heads(key), swap_tokens_and_heads(value)
        (batch, heads, rows, _), (_, groups, columns, _) = query.shape, key.shape

        def for_each_head(x: torch.Tensor) -> torch.Tensor:
            grouped = _aten.unsqueeze_copy.default(x, 2)
            grouped = _aten.expand_copy.default(
                grouped, [batch, groups, heads // groups, columns, x.shape[3]]
            )
            result: torch.Tensor = _aten.view_copy.default(grouped, [batch, heads, columns, x.shape[3]])
            return result

        keys = _aten.permute_copy.default(flat(for_each_head(key)), [0, 2, 1])
        scores = _aten.bmm.default(flat(query), keys)
        scores = _aten.mul.Scalar(_aten.view_copy.default(scores, [batch, heads, rows, columns]), scale)
        nothing = _aten.full_like.default(scores, float("-inf"))
        if mask is not None:
            scores = (
                _aten.where.self(mask, scores, nothing)
                if mask.dtype == torch.bool
                else _aten.add.Tensor(scores, mask)
            )
        if causal:
            visible = _aten.tril.default(_aten.full_like.default(scores, True, dtype=torch.bool))
            scores = _aten.where.self(visible, scores, nothing)
        unseen = _aten.logical_not.default(_aten.any.dim(_aten.ne.Tensor(scores, nothing), -1, True))
        weights = _aten._softmax.default(scores, -1, False)
        weights = _aten.where.self(unseen, _aten.full_like.default(weights, 0.0), weights)
        result = _aten.bmm.default(flat(rounded(weights)), flat(for_each_head(value)))
        return swap_tokens_and_heads(_aten.view_copy.default(result, [batch, heads, rows, value.shape[3]]))

    return pattern


attention = _bind("attention", _same)
"""In float32."""
bfloat16_attention = _bind("bfloat16_attention", _rounded)
"""The kernel does not round for a few queries, and on processors without instructions for pairs of bfloat16."""
