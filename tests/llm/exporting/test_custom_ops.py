# SPDX-License-Identifier: BSD-3-Clause
# torch.ops.llama.*, compared with ExecuTorch's operators; compiled programs with them; the KV caches built on them.

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import torchette
from torchette.llm.exporting.custom_cache import CustomKVCache, CustomRingKVCache, RemoveRedundantTransposes
from torchette.llm.exporting.custom_ops import custom_sdpa, update_cache

# Calls: start_pos, tokens, heads of keys, with a mask, causal.
CALLS = [(0, 3, 2, False, False), (4, 3, 2, False, True), (4, 1, 4, False, False), (5, 2, 1, True, False)]


def tensors(call: tuple) -> tuple[torch.Tensor, ...]:
    start, tokens, heads, masked, _ = call
    torch.manual_seed(start)
    q, k, v = torch.randn(1, tokens, 4, 8), torch.randn(1, 10, heads, 8), torch.randn(1, 10, heads, 8)
    mask = torch.randn(tokens, 10) if masked else None
    return q, k, v, mask


# ExecuTorch's library registers operators with the same names, so it runs in a separate process.
PEER = """
import sys, torch
from executorch.extension.llm.custom_ops import custom_ops
from executorch.extension.llm.custom_ops.custom_ops import custom_sdpa
from executorch.examples.models.llama.source_transformation.custom_kv_cache import CustomKVCache, CustomRingKVCache
calls = torch.load(sys.argv[1])
found = []
for (start, tokens, _, _, causal), (q, k, v, mask) in calls:
    cache, values = k.clone(), v.clone()
    found.append((
        torch.ops.llama.custom_sdpa(q, k, v, start, mask, 0.0, causal, 0.3),
        torch.ops.llama.sdpa_with_kv_cache(q, k[:, :tokens] + 1, v[:, :tokens] - 1, cache, values, start, tokens, mask, 0.0, causal, None),
        cache, values,
    ))
torch.save(found, sys.argv[2])
"""


def test_operators_equal_those_of_executorch(tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    calls = [(call, tensors(call)) for call in CALLS]
    torch.save(calls, tmp_path / "calls")
    command = [sys.executable, "-c", PEER, str(tmp_path / "calls"), str(tmp_path / "found")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not (tmp_path / "found").exists():
        pytest.skip(f"ExecuTorch's operators do not load: {done.stderr[-300:]}")
    for ((start, tokens, _, _, causal), (q, k, v, mask)), expected in zip(
        calls, torch.load(tmp_path / "found")
    ):
        cache, values = k.clone(), v.clone()
        actual = (
            custom_sdpa(q, k, v, start, mask, 0.0, causal, 0.3),
            torch.ops.llama.sdpa_with_kv_cache(
                q, k[:, :tokens] + 1, v[:, :tokens] - 1, cache, values, start, tokens, mask, 0.0, causal
            ),
            cache,
            values,
        )
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


class Attention(nn.Module):
    def __init__(self, cache: nn.Module) -> None:
        super().__init__()
        self.cache = cache

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor):
        start = position[0].item()
        torch._check(start >= 0)
        torch._check(start < 8)
        keys, values = (x.transpose(1, 2) for x in self.cache.update(position, k, v))
        if isinstance(self.cache, CustomRingKVCache):
            mask = self.cache.create_causal_mask_for_ring_buffer(start, q.shape[1])
            return custom_sdpa(q, keys, values, start, mask)
        return custom_sdpa(q, keys, values, start, None, 0.0, True)


@pytest.mark.parametrize("kind", [CustomKVCache, CustomRingKVCache])
@pytest.mark.parametrize("backend", ["portable", "cpu"])
def test_compiled_cache_equals_attention_without_a_cache(kind: type[CustomKVCache], backend: str) -> None:
    """Runs token by token. The ring buffer of six rows, for a window of three, wraps around."""
    q, k, v = torch.randn(1, 8, 4, 8), torch.randn(1, 2, 8, 8), torch.randn(1, 2, 8, 8)
    age = torch.arange(8).unsqueeze(1) - torch.arange(8)
    is_visible = (age >= 0) & ((age < 3) | (kind is CustomKVCache))
    expected = nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k, v, is_visible, enable_gqa=True
    )
    model = Attention(kind(1, 8 if kind is CustomKVCache else 3, 2, 8)).eval()
    step = (q[:, :1], k[:, :, :1], v[:, :, :1], torch.tensor([0]))
    compiled = torchette.compile(model, step, backend=backend)
    for i in range(8):
        actual = compiled(q[:, i : i + 1], k[:, :, i : i + 1], v[:, :, i : i + 1], torch.tensor([i]))
        torch.testing.assert_close(actual, expected.transpose(1, 2)[:, i : i + 1], rtol=1e-5, atol=1e-6)


def test_rows_by_index() -> None:
    cache, value = torch.zeros(2, 5, 1, 2), torch.randn(2, 2, 1, 2)
    torch.ops.llama.update_cache_with_indices(value, cache, 0, torch.tensor([[4, 1], [0, 3]]))
    torch.testing.assert_close(cache[0, [4, 1]], value[0])
    torch.testing.assert_close(cache[1, [0, 3]], value[1])
    assert update_cache(value, cache, 1).shape == (1,)
    torch.testing.assert_close(cache[:, 1:3], value)


def test_ring_cache_rejects_more_tokens_than_its_window() -> None:
    ring = CustomRingKVCache(1, 3, 2, 8)
    with pytest.raises(RuntimeError, match="more tokens than the sliding window"):
        ring.update(torch.arange(4), torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8))


def test_inverse_transposes_are_removed() -> None:
    class Turns(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.transpose(1, 2).transpose(2, 1) + x.permute(1, 2, 0).permute(2, 0, 1) + x.transpose(0, 1)

    x = torch.randn(3, 3, 3)
    module = torch.export.export(Turns(), (x,)).module()
    changed = RemoveRedundantTransposes()(module)
    left = [
        node
        for node in module.graph.nodes
        if "permute" in str(node.target) or "transpose" in str(node.target)
    ]
    assert changed.modified and len(left) == 1
    torch.testing.assert_close(module(x), Turns()(x))
