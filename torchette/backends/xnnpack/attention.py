# SPDX-License-Identifier: BSD-3-Clause
# A captured program comes in; attention with a mask of true and false goes out in operators that XNNPACK has.
"""Attention without truth values.

Torch chooses by the mask: `where(mask, scores, -inf)`, and a row that is wholly masked gives zeros. The library has no
choice and no truth values, so the mask becomes a number that is added (0, or one so low that its exponential is 0) and
a factor per row (1, or 0 where all is masked). Both are computed once for all layers that share the mask.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir.graph import add_constant, calls, fake_mode, replace

aten = torch.ops.aten

_LOW = -1e38  # finite, so that a factor of 0 makes it 0; lower than any score by more than a softmax can see


def spell_out_attention(program: ExportedProgram) -> ExportedProgram:
    """Replace attention with a boolean or causal mask; edits and returns the program."""
    masks: dict[Any, tuple[Node, Node | None]] = {}
    mode = fake_mode(program)
    for node in calls(program, aten.scaled_dot_product_attention.default):
        query, key, value = node.args[:3]
        given = dict(zip(("attn_mask", "dropout_p", "is_causal"), node.args[3:], strict=False)) | node.kwargs
        mask, causal = given.get("attn_mask"), bool(given.get("is_causal", False))
        plain = not given.get("dropout_p") and not given.get("enable_gqa") and (mask is None) == causal
        if not plain or query.meta["val"].dtype is not torch.float32:  # type: ignore[union-attr]
            continue
        if mask is not None and mask.meta["val"].dtype is not torch.bool:
            continue
        scale = given.get("scale")
        depth = query.meta["val"].shape[-1]  # type: ignore[union-attr]
        if mode is None or not isinstance(depth, int):
            continue

        def insert(target: Any, *args: Any, node: Node = node, **kwargs: Any) -> Node:
            with node.graph.inserting_before(node):
                made = node.graph.call_function(target, args, kwargs)
            made.meta = {key: item for key, item in node.meta.items() if key != "val"}
            values = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
            with mode:
                made.meta["val"] = target(*values[0], **values[1])
            return made

        lengths = (query.meta["val"].shape[-2], key.meta["val"].shape[-2])  # type: ignore[union-attr]
        if causal:
            if not all(isinstance(length, int) for length in lengths):
                continue
            if lengths not in masks:
                seen = torch.full(lengths, _LOW).triu(1)
                masks[lengths] = add_constant(program, "causal_mask", seen), None
            added, factor = masks[lengths]
        else:
            if mask not in masks:
                as_number = insert(aten.to.dtype, mask, torch.float32)
                lowered = insert(aten.mul.Scalar, insert(aten.sub.Scalar, as_number, 1.0), -_LOW)
                alive = insert(aten.to.dtype, insert(aten.any.dim, mask, -1, True), torch.float32)
                masks[mask] = lowered, alive
            added, factor = masks[mask]
        scaled = insert(aten.mul.Scalar, query, 1 / math.sqrt(depth) if scale is None else scale)
        scores = insert(aten.matmul.default, scaled, insert(aten.transpose.int, key, -2, -1))
        weights = insert(aten.softmax.int, insert(aten.add.Tensor, scores, added), -1)
        result = insert(aten.matmul.default, weights, value)
        if factor is not None:
            result = insert(aten.mul.Tensor, result, factor)
        replace(program, node, result)
    return program
