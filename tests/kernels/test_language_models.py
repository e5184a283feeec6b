# SPDX-License-Identifier: BSD-3-Clause
# The operators of ExecuTorch's language model exports compared with torch's attention, as defined in
# torchette/llm/exporting/custom_ops.py. Invalid arguments must produce an error that names them.

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchette.llm.exporting.custom_ops  # noqa: F401  declares the operators
from torchette.runtime import _native

llama = torch.ops.llama


def drawn(batch: int, tokens: int, heads: int, groups: int, positions: int) -> list[torch.Tensor]:
    """Returns a query, new keys and values, and key and value caches, with depth 16."""
    sizes = [(tokens, heads), (tokens, groups), (tokens, groups), (positions, groups), (positions, groups)]
    return [torch.randn(batch, count, num_heads, 16) for count, num_heads in sizes]


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(
    "batch, tokens, heads, groups, positions, start",
    [(1, 1, 4, 2, 32, 7), (2, 5, 4, 4, 8, 3), (1, 70, 4, 2, 96, 20)],
)
def test_attention_over_a_cache(
    batch: int, tokens: int, heads: int, groups: int, positions: int, start: int, is_causal: bool
) -> None:
    query, key, value, *caches = drawn(batch, tokens, heads, groups, positions)
    ours, theirs = [x.clone() for x in caches], [x.clone() for x in caches]
    expected = llama.sdpa_with_kv_cache(query, key, value, *theirs, start, tokens, None, 0.0, is_causal)
    result = torch.empty_like(query)
    _native.call_kernel(
        "llama::sdpa_with_kv_cache.out",
        query,
        key,
        value,
        *ours,
        start,
        tokens,
        None,
        0.0,
        is_causal,
        None,
        result,
    )
    torch.testing.assert_close(result, expected)
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("is_bool", [True, False])
def test_mask_replaces_causality(is_bool: bool) -> None:
    query, *_, keys, values = drawn(1, 3, 4, 2, 12)
    mask = torch.rand(3, 12) > 0.5
    mask[:, 0] = True
    mask_arg = mask if is_bool else torch.where(mask, 0.0, -1e9)
    expected = llama.custom_sdpa(query, keys, values, 9, mask_arg, 0.0, False, 0.3)
    result = torch.empty_like(query)
    _native.call_kernel("llama::custom_sdpa.out", query, keys, values, 9, mask_arg, 0.0, False, 0.3, result)
    torch.testing.assert_close(result, expected)


QUERY, KEY, VALUE, KEYS, VALUES = (torch.ones(1, tokens, 2, 4) for tokens in (2, 2, 2, 5, 5))
ATTENTION = [QUERY, KEYS, VALUES, 3, None, 0.0, True, None, torch.empty(1, 2, 2, 4)]
UPDATE = [VALUE, VALUES, 3, torch.empty(1)]
INDICES = [VALUE, VALUES, 0, torch.tensor([[1, 4]]), torch.empty(1)]
FAULTS: list[tuple[str, list[Any], int, Any, str]] = [
    ("custom_sdpa", ATTENTION, 0, QUERY.double(), "attention: query is of type 7"),
    ("custom_sdpa", ATTENTION, 1, torch.ones(1, 5, 3, 4), "attention: query has 2 heads"),
    ("custom_sdpa", ATTENTION, 3, 4, "custom_sdpa: 2 tokens from position 4 do not fit into 5 positions"),
    ("custom_sdpa", ATTENTION, 3, -1, "custom_sdpa: 2 tokens from position -1"),
    ("custom_sdpa", ATTENTION, 3, 2**62, "custom_sdpa: 2 tokens from position"),
    ("custom_sdpa", ATTENTION, 4, torch.ones(2, 5), "both attn_mask and is_causal are set"),
    ("custom_sdpa", ATTENTION, 5, 0.5, "drpout_p is 0.5"),
    ("update_cache", UPDATE, 0, VALUE.half(), "update_cache: value and cache are of types 5 and 6"),
    ("update_cache", UPDATE, 0, VALUE[0], "update_cache: value and cache differ"),
    ("update_cache", UPDATE, 0, torch.ones(1, 2, 1, 4), "update_cache: value and cache differ"),
    ("update_cache", UPDATE, 2, 4, "update_cache: 2 tokens from position 4 do not fit into 5 positions"),
    ("update_cache", UPDATE, 2, -1, "update_cache: 2 tokens from position -1"),
    ("update_cache_with_indices", INDICES, 3, torch.tensor([[1, 5]]), "position 5 is out of range for a cache of 5 positions"),
    ("update_cache_with_indices", INDICES, 3, torch.tensor([[-1, 0]]), "position -1 is out of range for a cache of 5 positions"),
    ("update_cache_with_indices", INDICES, 3, torch.tensor([1, 4]), "indices are of type 4 or have other sizes, expected int64"),
    ("update_cache_with_indices", INDICES, 3, torch.tensor([[1, 4]]).int(), "indices are of type 3"),
]  # fmt: skip


@pytest.mark.parametrize("name, right, place, wrong, message", FAULTS)
def test_invalid_arguments_are_rejected(
    name: str, right: list[Any], place: int, wrong: Any, message: str
) -> None:
    _native.call_kernel(f"llama::{name}.out", *right)
    before = VALUES.clone()
    with pytest.raises(RuntimeError, match=message):
        _native.call_kernel(
            f"llama::{name}.out", *(wrong if i == place else item for i, item in enumerate(right))
        )
    assert torch.equal(VALUES, before)
