# SPDX-License-Identifier: BSD-3-Clause
# A captured program comes in; attention with a mask goes out in operators that XNNPACK has.
"""Attention without truth values.

Torch chooses by the mask: `where(mask, scores, -inf)`, or adds numbers that may be -inf, and a row that is wholly masked
gives zeros. The library has no choice and no truth values, so the mask becomes a number that is added (one so low that
its exponential is 0 where torch has -inf) and a factor per row (1, or 0 where all is masked). Both are computed once for
all layers that share the mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import Argument

from torchette.exir.arguments import node_arg
from torchette.exir.graph import add_constant, calls, fake_mode, replace

aten = torch.ops.aten

# Finite, so that a factor of 0 makes it 0; lower than any score by more than a softmax can see.
_LOW = {torch.float32: -1e38, torch.float16: -6e4}

Insert = Callable[..., Node]


def spell_out_attention(program: ExportedProgram) -> ExportedProgram:
    """Replace attention with a mask; edits and returns the program."""
    masks: dict[Any, tuple[Node, Node | None]] = {}
    mode = fake_mode(program)
    for node in calls(program, aten.scaled_dot_product_attention.default):
        query, key = (node_arg(node, place).meta["val"] for place in (0, 1))
        given = dict(zip(("attn_mask", "dropout_p", "is_causal"), node.args[3:], strict=False)) | node.kwargs
        mask, causal = given.get("attn_mask"), bool(given.get("is_causal", False))
        plain = not given.get("dropout_p") and not given.get("enable_gqa") and (mask is None) == causal
        depth, kind = query.shape[-1], query.dtype
        if not plain or mode is None or kind not in _LOW or not isinstance(depth, int):
            continue
        if isinstance(mask, Node) and mask.meta["val"].dtype not in (torch.bool, kind):
            continue

        def insert(
            target: Callable[..., Any], *args: Argument, node: Node = node, **kwargs: Argument
        ) -> Node:
            with node.graph.inserting_before(node):
                made = node.graph.call_function(target, args, kwargs)
            made.meta = {key: item for key, item in node.meta.items() if key != "val"}
            values = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
            with mode:
                made.meta["val"] = target(*values[0], **values[1])
            return made

        lengths = (query.shape[-2], key.shape[-2])
        wanted = (*map(str, lengths), kind) if causal else (mask, kind)
        if wanted not in masks:
            if isinstance(mask, Node):
                choose = _chosen if mask.meta["val"].dtype is torch.bool else _added
                masks[wanted] = choose(insert, mask, kind)
            elif all(isinstance(length, int) for length in lengths):
                unseen = torch.full(lengths, _LOW[kind], dtype=kind).triu(1)
                masks[wanted] = add_constant(program, "causal_mask", unseen), None
            else:
                rows, columns = (_places(insert, node_arg(node, place)) for place in (0, 1))
                seen = insert(aten.le.Tensor, columns, insert(aten.unsqueeze.default, rows, 1))
                masks[wanted] = _chosen(insert, seen, kind)[0], None  # everyone sees the first
        added, factor = masks[wanted]
        scale = given.get("scale")
        scaled = insert(aten.mul.Scalar, node.args[0], 1 / math.sqrt(depth) if scale is None else scale)
        scores = insert(aten.matmul.default, scaled, insert(aten.transpose.int, node.args[1], -2, -1))
        weights = insert(aten.softmax.int, insert(aten.add.Tensor, scores, added), -1)
        result = insert(aten.matmul.default, weights, node.args[2])
        if factor is not None:
            result = insert(aten.mul.Tensor, result, factor)
        replace(program, node, result)
    return program


def _places(insert: Insert, source: Node) -> Node:
    """0, 1, 2 ... for the rows of queries or keys."""
    return insert(aten.arange.default, insert(aten.sym_size.int, source, source.meta["val"].dim() - 2))


def _chosen(insert: Insert, mask: Node, kind: torch.dtype) -> tuple[Node, Node]:
    """What true and false add, and the factor for rows."""
    as_number = insert(aten.to.dtype, mask, kind)
    lowered = insert(aten.mul.Scalar, insert(aten.sub.Scalar, as_number, 1.0), -_LOW[kind])
    return lowered, insert(aten.to.dtype, insert(aten.any.dim, mask, -1, True), kind)


def _added(insert: Insert, mask: Node, kind: torch.dtype) -> tuple[Node, Node]:
    """The same for numbers, of which -inf is what nobody sees; the lowest number of the type is none of these."""
    low = _LOW[kind]
    lowered = insert(aten.clamp.default, mask, low)
    if not isinstance(mask.meta["val"].shape[-1], int):  # the library does not add up so many
        seen = insert(aten.any.dim, insert(aten.ne.Scalar, mask, -math.inf), -1, True)
        return lowered, insert(aten.to.dtype, seen, kind)
    above = insert(aten.sub.Scalar, insert(aten.clamp.default, insert(aten.mul.Scalar, mask, 0.25), low), low)
    seen = insert(aten.clamp.default, insert(aten.mul.Scalar, above, -100 / low), None, 2.0)
    count = insert(aten.sum.dim_IntList, seen, [-1], True)
    return lowered, insert(aten.clamp.default, count, None, 1.0)
