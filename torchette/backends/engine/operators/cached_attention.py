# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/attention.cpp.
"""`cpu::cached_attention` and `cpu::int8_cached_attention`: attention over the written part of a KV cache."""

from __future__ import annotations

import torch

from torchette.backends.engine.operators._library import LIBRARY, register_shape
from torchette.backends.engine.operators.quantized import _to
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

_aten = ops.edge.aten


@bind_pattern_to_op(
    LIBRARY,
    "cached_attention(Tensor query, Tensor key, Tensor value, Tensor start, Tensor? sinks, float scale, int window, "
    "float cap) -> Tensor",
)
def cached_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    start: torch.Tensor,
    sinks: torch.Tensor | None,
    scale: float,
    window: int,
    cap: float,
) -> torch.Tensor:
    """Computes softmax(cap tanh(query key^T scale / cap)) value for each head, over the keys that each query sees.

    Args:
        query: float32 [1, T, H, D], for the positions start to start + T - 1.
        key: float32 or float16, the same dtype as value, [C, G, D]; H is a multiple of G. Each key head serves H / G
            query heads.
        value: [C, G, E].
        start: int64, one element, at most C - T.
        sinks: [H], one extra score for each head. It is part of the softmax's denominator and has no value.
        window: number of keys that a query sees, up to and including its own position; 0 means all keys up to its own
            position. If it is negative, the positions are divided into chunks of -window, and a query sees the keys of its
            chunk up to its own position.
        cap: the limit of the scores; 0 disables it.

    Returns:
        [1, T, H, E].
    """
    (_, rows, heads, _), (columns, groups, _) = query.shape, key.shape
    key, value = _to(key, query.dtype), _to(value, query.dtype)

    def for_each_head(x: torch.Tensor, order: list[int]) -> torch.Tensor:
        grouped = _aten.unsqueeze_copy.default(_aten.permute_copy.default(x, order), 1)
        shape = grouped.shape[2:]
        grouped = _aten.expand_copy.default(grouped, [groups, heads // groups, *shape])
        result: torch.Tensor = _aten.view_copy.default(grouped, [heads, *shape])
        return result

    queries = _aten.view_copy.default(
        _aten.permute_copy.default(query, [0, 2, 1, 3]), [heads, rows, query.shape[3]]
    )
    scores = _aten.mul.Scalar(_aten.bmm.default(queries, for_each_head(key, [1, 2, 0])), scale)
    if cap:
        scores = _aten.mul.Scalar(_aten.tanh.default(_aten.mul.Scalar(scores, 1 / cap)), cap)
    at = _aten.arange.start_step(0, columns, 1, dtype=torch.int64)
    positions = _aten.add.Tensor(_aten.arange.start_step(0, rows, 1, dtype=torch.int64), start)
    back = _aten.sub.Tensor(
        _aten.unsqueeze_copy.default(positions, 1), at
    )  # distance from a query back to a key
    visible = _aten.ge.Scalar(back, 0)
    if window > 0:
        visible = _aten.bitwise_and.Tensor(visible, _aten.lt.Scalar(back, window))
    elif window < 0:
        in_chunk = _aten.remainder.Scalar(_aten.unsqueeze_copy.default(positions, 1), -window)
        visible = _aten.bitwise_and.Tensor(visible, _aten.le.Tensor(back, in_chunk))
    scores = _aten.where.self(visible, scores, _aten.full_like.default(scores, float("-inf")))
    if sinks is not None:
        sinks = _aten.expand_copy.default(_aten.view_copy.default(sinks, [heads, 1, 1]), [heads, rows, 1])
        weights = _aten._softmax.default(_aten.cat.default([scores, sinks], 2), 2, False)
        weights = _aten.slice_copy.Tensor(weights, 2, 0, columns)
    else:
        weights = _aten._softmax.default(scores, 2, False)
    result = _aten.bmm.default(weights, for_each_head(value, [1, 0, 2]))
    outcome: torch.Tensor = _aten.permute_copy.default(
        _aten.view_copy.default(result, [1, heads, rows, value.shape[2]]), [0, 2, 1, 3]
    )
    return outcome


register_shape(
    "cached_attention", lambda query, key, value, *_: query.new_empty([*query.shape[:3], value.shape[2]])
)


@bind_pattern_to_op(
    LIBRARY,
    "int8_cached_attention(Tensor query, Tensor key, Tensor value, Tensor key_scales, Tensor value_scales, Tensor start, "
    "Tensor? sinks, float scale, int window, float cap) -> Tensor",
)
def int8_cached_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_scales: torch.Tensor,
    value_scales: torch.Tensor,
    start: torch.Tensor,
    sinks: torch.Tensor | None,
    scale: float,
    window: int,
    cap: float,
) -> torch.Tensor:
    """`cached_attention` over keys and values that `quantize_rows` has quantized symmetrically, one row per head and
    position.

    Args:
        key, value: int8.
        key_scales, value_scales: float32 [C, G, 2], scale and zero point; the zero point is not read.
    """

    def floats(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _aten.mul.Tensor(_to(x, query.dtype), _aten.slice_copy.Tensor(scales, 2, 0, 1))
        return result

    dequantized = floats(key, key_scales), floats(value, value_scales)
    return cached_attention(query, *dequantized, start, sinks, scale, window, cap)


register_shape(
    "int8_cached_attention", lambda query, key, value, *_: query.new_empty([*query.shape[:3], value.shape[2]])
)
