# SPDX-License-Identifier: BSD-3-Clause
# In: a captured program. Out: the program, with masked attention replaced by operators that XNNPACK has.
"""Replaces masked attention by operators without booleans.

Torch computes `where(mask, scores, -inf)`, or adds a mask that may contain -inf. A row in which all elements are masked returns
zeros. XNNPACK has neither `where` nor booleans, so the mask becomes two tensors:

* a term that is added to the scores; instead of -inf it contains a value with an exponential of 0;
* a factor for each row: 0 if all elements of the row are masked, else 1.

Layers that share a mask share both tensors.
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
from torchette.exir.graph import add_constant, calls, fake_mode, replace, size_key

aten = torch.ops.aten

# Finite, so that multiplication by 0 yields 0. Low enough that the softmax of a score with this term is 0.
_LOW = {torch.float32: -1e38, torch.float16: -6e4}

Insert = Callable[..., Node]


def decompose_attention(program: ExportedProgram) -> ExportedProgram:
    """Replaces masked and causal attention; edits and returns the program."""
    masks: dict[Any, tuple[Node, Node | None]] = {}
    mode = fake_mode(program)
    for node in calls(program, aten.scaled_dot_product_attention.default):
        query, key = (node_arg(node, index).meta["val"] for index in (0, 1))
        arguments = (
            dict(zip(("attn_mask", "dropout_p", "is_causal"), node.args[3:], strict=False)) | node.kwargs
        )
        mask, causal = arguments.get("attn_mask"), bool(arguments.get("is_causal", False))
        is_supported = (
            not arguments.get("dropout_p") and not arguments.get("enable_gqa") and (mask is None) == causal
        )
        depth, kind = query.shape[-1], query.dtype
        if not is_supported or mode is None or kind not in _LOW or not isinstance(depth, int):
            continue
        if isinstance(mask, Node) and mask.meta["val"].dtype not in (torch.bool, kind):
            continue

        def insert(
            target: Callable[..., Any], *args: Argument, node: Node = node, **kwargs: Argument
        ) -> Node:
            with node.graph.inserting_before(node):
                inserted = node.graph.call_function(target, args, kwargs)
            inserted.meta = {key: item for key, item in node.meta.items() if key != "val"}
            values = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
            with mode:
                inserted.meta["val"] = target(*values[0], **values[1])
            return inserted

        lengths = (query.shape[-2], key.shape[-2])
        mask_key = (*map(size_key, lengths), kind) if causal else (mask, kind)
        if mask_key not in masks:
            if isinstance(mask, Node):
                choose = _boolean_terms if mask.meta["val"].dtype is torch.bool else _float_terms
                masks[mask_key] = choose(insert, mask, kind)
            elif all(isinstance(length, int) for length in lengths):
                masked = torch.full(lengths, _LOW[kind], dtype=kind).triu(1)
                masks[mask_key] = add_constant(program, "causal_mask", masked), None
            else:
                rows, columns = (_row_indices(insert, node_arg(node, index)) for index in (0, 1))
                visible = insert(aten.le.Tensor, columns, insert(aten.unsqueeze.default, rows, 1))
                # each query sees the first key, so no row factor
                masks[mask_key] = _boolean_terms(insert, visible, kind)[0], None
        added, factor = masks[mask_key]
        scale = arguments.get("scale")
        scaled = insert(aten.mul.Scalar, node.args[0], 1 / math.sqrt(depth) if scale is None else scale)
        scores = insert(aten.matmul.default, scaled, insert(aten.transpose.int, node.args[1], -2, -1))
        weights = insert(aten.softmax.int, insert(aten.add.Tensor, scores, added), -1)
        result = insert(aten.matmul.default, weights, node.args[2])
        if factor is not None:
            result = insert(aten.mul.Tensor, result, factor)
        replace(program, node, result)
    return program


def _row_indices(insert: Insert, source: Node) -> Node:
    """Returns the indices 0, 1, 2, ... of the rows of queries or keys."""
    return insert(aten.arange.default, insert(aten.sym_size.int, source, source.meta["val"].dim() - 2))


def _boolean_terms(insert: Insert, mask: Node, kind: torch.dtype) -> tuple[Node, Node]:
    """Returns the term and the row factor of a boolean mask."""
    as_float = insert(aten.to.dtype, mask, kind)
    term = insert(aten.mul.Scalar, insert(aten.sub.Scalar, as_float, 1.0), -_LOW[kind])
    return term, insert(aten.to.dtype, insert(aten.any.dim, mask, -1, True), kind)


def _float_terms(insert: Insert, mask: Node, kind: torch.dtype) -> tuple[Node, Node]:
    """Returns the term and the row factor of a floating-point mask: -inf is masked, the minimum of the dtype is not."""
    low = _LOW[kind]
    term = insert(aten.clamp.default, mask, low)
    if not isinstance(mask.meta["val"].shape[-1], int):  # XNNPACK cannot sum over a dynamic dimension
        visible = insert(aten.any.dim, insert(aten.ne.Scalar, mask, -math.inf), -1, True)
        return term, insert(aten.to.dtype, visible, kind)
    shifted = insert(
        aten.sub.Scalar, insert(aten.clamp.default, insert(aten.mul.Scalar, mask, 0.25), low), low
    )
    visible = insert(aten.clamp.default, insert(aten.mul.Scalar, shifted, -100 / low), None, 2.0)
    count = insert(aten.sum.dim_IntList, visible, [-1], True)
    return term, insert(aten.clamp.default, count, None, 1.0)
