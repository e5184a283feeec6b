# SPDX-License-Identifier: BSD-3-Clause
# The operators `torch.ops.llama.*` with ExecuTorch's schemas, for exporters of language models. The import of this module
# registers them. Export decomposes them into torch's operators, which the engine and every backend recognize.
"""`llama::custom_sdpa` and `llama::update_cache`: attention over a KV cache, and writes into one.

Tensors are [batch, tokens, heads, depth], caches [batch, positions, heads, depth]. `start_pos` is the first token's position.
"""

from __future__ import annotations

import torch
from torch import Tensor

_CACHE = "Tensor value, Tensor(a!) cache, SymInt start_pos"
_QKV = "Tensor query, Tensor key, Tensor value"
_HOW = "Tensor? attn_mask=None, float drpout_p=0.0, bool is_causal=False, float? scale=None"
_library = torch.library.Library("llama", "FRAGMENT")


def _define(schema: str) -> None:
    name = schema.partition("(")[0]
    if hasattr(torch.ops.llama, name):
        return  # the process has loaded ExecuTorch's library, as tests do
    _library.define(schema)
    _library.impl(name, globals()[f"_{name}"], "CompositeImplicitAutograd")


def _update_cache_with_indices(value: Tensor, cache: Tensor, start_pos: int, indices: Tensor) -> Tensor:
    if indices.dim() == 1 or indices.shape[0] == 1:
        cache.index_copy_(1, indices.reshape(-1), value)
    else:
        cache.scatter_(1, indices[..., None, None].expand_as(value), value)
    return value.new_empty(1)  # required by the schema; unused


def _update_cache(value: Tensor, cache: Tensor, start_pos: int) -> Tensor:
    return _update_cache_with_indices(value, cache, start_pos, _positions(start_pos, value))


def _positions(start_pos: int, of: Tensor) -> Tensor:
    return start_pos + torch.arange(of.shape[1])


def _custom_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start_pos: int,
    attn_mask: Tensor | None = None,
    drpout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    if attn_mask is None:  # all rows written so far; if causal, up to each token's own position
        last = _positions(start_pos, query) if is_causal else torch.full((1,), start_pos + query.shape[1] - 1)
        attn_mask = torch.arange(key.shape[1]) <= last.unsqueeze(1)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    is_grouped = query.shape[1] != key.shape[1]
    result = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, drpout_p, scale=scale, enable_gqa=is_grouped
    )
    return result.transpose(1, 2)


def _sdpa_with_kv_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    start_pos: int,
    seq_len: int,
    attn_mask: Tensor | None = None,
    drpout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    _update_cache(key, key_cache, start_pos)
    _update_cache(value, value_cache, start_pos)
    return _custom_sdpa(query, key_cache, value_cache, start_pos, attn_mask, drpout_p, is_causal, scale)


_define(f"update_cache({_CACHE}) -> Tensor")
_define(f"update_cache_with_indices({_CACHE}, Tensor indices) -> Tensor")
_define(f"custom_sdpa({_QKV}, SymInt start_pos, {_HOW}) -> Tensor")
_define(
    f"sdpa_with_kv_cache({_QKV}, Tensor(a!) key_cache, Tensor(b!) value_cache, SymInt start_pos, SymInt seq_len, {_HOW})"
    " -> Tensor"
)
custom_sdpa, update_cache = torch.ops.llama.custom_sdpa, torch.ops.llama.update_cache
