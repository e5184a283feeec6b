# SPDX-License-Identifier: BSD-3-Clause
# What torch.export captured comes in; functional core ATen goes out. The only pass that traces: torch's own
# decompositions run once, with a table in which attention is written out more tightly than torch does.
"""Decompose to core ATen operators and make every mutation functional."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions

aten = torch.ops.aten

# Kept whole: `linear` reads its weight as the model stores it, [out, in], where addmm would want a transposed copy.
KEPT = (aten.linear.default,)


def decompose_to_core(
    program: ExportedProgram, preserve: Iterable[torch._ops.OpOverload] = ()
) -> ExportedProgram:
    """Rewrite every operator into core ATen ones, except those to preserve; mutations become outputs."""
    table = dict(_table(len(torch._C._dispatch_get_all_op_names())))
    for op in (*KEPT, *preserve):
        table.pop(op, None)
    with warnings.catch_warnings():
        # torch warns of a call that torch itself makes.
        warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)
        return program.run_decompositions(table)


@functools.cache
def _table(operators: int) -> dict[Any, Callable]:
    """Torch's table and ours. Reading torch's costs tens of milliseconds: once for as long as no operator is added."""
    table = dict(default_decompositions().items())
    attention = aten.scaled_dot_product_attention.default
    table[attention] = _attention(table[attention])
    table[aten.linalg_vector_norm.default] = torch._refs.linalg.vector_norm
    return table


def _attention(fallback: Callable) -> Callable:
    """Attention in few operators: torch's own spends six on every score matrix to find rows that are wholly masked,
    but which rows those are follows from the mask, which all layers share."""

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if dropout_p or (is_causal and attn_mask is not None) or not query.is_floating_point():
            return fallback(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        scores = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.transpose(
            -2, -1
        )
        if is_causal:
            attn_mask = torch.ones(
                query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device
            ).tril()
        dead = None
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = torch.where(attn_mask, scores, -math.inf)
            dead = None if is_causal else attn_mask.any(-1, keepdim=True).logical_not()
        elif attn_mask is not None:
            scores = scores + attn_mask
            dead = (attn_mask > -math.inf).any(-1, keepdim=True).logical_not()
        result = torch.softmax(scores, -1) @ value
        return result if dead is None else torch.where(dead, 0.0, result)

    return attention
