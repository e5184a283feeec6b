# SPDX-License-Identifier: BSD-3-Clause
# KV caches and a graph pass under the names that exporters written for ExecuTorch import.
"""KV caches in the layout of `llama::custom_sdpa`: [batch, positions, heads, depth]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from torchette.exir.arguments import int_arg, ints_arg, node_arg
from torchette.llm.exporting import custom_ops  # noqa: F401


class CustomKVCache(nn.Module):
    """KV cache of positions 0 to `max_context_length` - 1, in the buffers `k_cache` and `v_cache`."""

    k_cache: Tensor
    v_cache: Tensor

    def __init__(
        self,
        max_batch_size: int,
        max_context_length: int,
        n_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.max_batch_size, self.max_context_length = max_batch_size, max_context_length
        self.n_heads, self.head_dim = n_heads, head_dim
        for name in "k_cache", "v_cache":
            cache = torch.zeros(max_batch_size, max_context_length, n_heads, head_dim, dtype=dtype)
            self.register_buffer(name, cache)

    def _write(
        self, start: int | float, keys: Tensor, values: Tensor, indices: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ops, caches = torch.ops.llama, (self.k_cache, self.v_cache)
        for tensor, cache in zip((keys, values), caches):
            rows = tensor.transpose(1, 2)
            if indices is None:
                ops.update_cache(rows, cache, start)
            else:
                ops.update_cache_with_indices(rows, cache, start, indices)
        return self.k_cache.transpose(1, 2), self.v_cache.transpose(1, 2)

    def update(
        self, input_pos: Tensor, k_val: Tensor, v_val: Tensor, indices: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Writes keys and values of new tokens.

        Args:
            input_pos: int64 [tokens], consecutive positions.
            k_val: keys [batch, heads, tokens, depth].
            v_val: values [batch, heads, tokens, depth].
            indices: rows of the cache to write instead of those at `input_pos`.

        Returns:
            Both caches in full, [batch, heads, positions, depth].
        """
        return self._write(input_pos[0].item(), k_val, v_val, indices)


class CustomRingKVCache(CustomKVCache):
    """KV cache for a sliding window of `max_context_length` tokens: a ring buffer of twice that length.

    A call accepts at most `max_context_length` tokens.
    """

    positions: Tensor

    def __init__(self, max_batch_size: int, max_context_length: int, *args: Any, **named: Any) -> None:
        super().__init__(max_batch_size, 2 * max_context_length, *args, **named)
        self.window_size = max_context_length
        self.is_ring_buffer = True
        self.register_buffer("positions", torch.full((2 * max_context_length,), -1))  # [rows]

    def create_causal_mask_for_ring_buffer(self, start_pos: int, seq_len: int) -> Tensor:
        """Returns the attention mask of the tokens from `start_pos`: float32 [seq_len, rows], 0 for a visible row, else -inf."""
        token = (start_pos + torch.arange(seq_len)).unsqueeze(1)
        age = token - self.positions
        visible = (self.positions >= 0) & (age >= 0) & (age < self.window_size)
        return torch.where(visible, 0.0, float("-inf"))

    def update(
        self, input_pos: Tensor, k_val: Tensor, v_val: Tensor, indices: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Like `CustomKVCache.update`, for the rows `input_pos` modulo the length of the ring buffer."""
        torch._check(
            k_val.shape[2] <= self.window_size, lambda: "a call has more tokens than the sliding window"
        )
        rows = input_pos % self.max_context_length
        self.positions.index_copy_(0, rows, input_pos)
        return self._write(0, k_val, v_val, rows)


class RemoveRedundantTransposes(PassBase):
    """Removes a transpose or permute that inverts the transpose or permute of its input."""

    def call(self, graph_module: GraphModule) -> PassResult:
        """Changes the graph in place."""
        graph, changed = graph_module.graph, False
        for node in list(graph.nodes):
            if (order := _order(node)) is None or (before := _order(node.args[0])) is None:
                continue
            if [before[d] for d in order] == list(range(len(before))):
                node.replace_all_uses_with(node.args[0].args[0])
                changed = True
        if changed:
            graph.eliminate_dead_code()
            graph_module.recompile()
        return PassResult(graph_module, changed)


def _order(node: Node) -> list[int] | None:
    aten = torch.ops.aten
    if node.target not in (aten.transpose.int, aten.permute.default):
        return None
    order = list(range(node_arg(node).meta["val"].dim()))
    if node.target == aten.permute.default:
        return [order[d] for d in ints_arg(node, 1)]
    first, second = int_arg(node, 1), int_arg(node, 2)
    order[first], order[second] = order[second], order[first]
    return order
