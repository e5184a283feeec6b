# SPDX-License-Identifier: BSD-3-Clause
# In: a node. Out: the reason why XNNPACK cannot run it, or None.
"""Checks whether XNNPACK can run a node."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.nodes import MAX_DIMS, arg
from torchette.backends.xnnpack.operators.table import INDEXED, OPERATORS, Refused
from torchette.backends.xnnpack.payload import FLOATS
from torchette.backends.xnnpack.quantization import int8_element, role, rows_source, weights_of
from torchette.exir.tensor import MAX_ELEMENTS, upper_bound

aten = torch.ops.aten


def why_not(node: Node, constants: Mapping[Node, torch.Tensor]) -> str | None:
    """Returns the reason why XNNPACK cannot run a node, or None if it can.

    Args:
        node: a call.
        constants: the stored tensors that no node writes, by their nodes.
    """
    try:
        if role(node) is not None:
            _check_quantized(node, constants)
            return None
        operator = OPERATORS.get(node.target)
        if operator is None:
            return "XNNPACK has no such operator"
        dtypes: set[torch.dtype] = set()
        # Indices must be constants, so they do not become values of the payload.
        read = node.all_input_nodes[:1] if node.target in INDEXED else node.all_input_nodes
        for value in (node, *read):
            dtypes |= _check_value(value)
        if len(dtypes) > 1 and node.target != aten._to_copy.default:
            raise Refused("float16 and float32 in one operator")
        operator.check(node, lambda source: source in constants or weights_of(source, constants) is not None)
    except Refused as reason:
        return str(reason)
    return None


def _check_value(node: Node) -> set[torch.dtype]:
    """Checks the tensors of a node; returns their floating-point dtypes. Raises `Refused` if XNNPACK does not support one."""
    val, elements = node.meta.get("val"), set()
    for tensor in val if isinstance(val, (list, tuple)) else [val]:
        if not isinstance(tensor, torch.Tensor):
            raise Refused("a value is a symbolic scalar, not a tensor")
        if node.target == aten._native_batch_norm_legit_no_training.default and 0 in tensor.shape[:1]:
            continue  # a batch norm returns empty statistics for inference
        if tensor.dtype in FLOATS:
            elements.add(tensor.dtype)
        elif not (tensor.dtype is torch.int64 and isinstance(val, (list, tuple))):
            raise Refused(f"dtype {str(tensor.dtype).removeprefix('torch.')}")
        check_shape(tensor)
    return elements


def check_shape(tensor: torch.Tensor) -> None:
    """Raises `Refused` for a shape that XNNPACK does not support."""
    if tensor.dim() > MAX_DIMS:
        raise Refused(f"{tensor.dim()} dimensions, the limit is {MAX_DIMS}")
    if 0 in tensor.shape:
        raise Refused("an empty tensor")
    bounds = [upper_bound(size) for size in tensor.shape]
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        raise Refused("a dimension without an upper bound")
    if math.prod(known) > MAX_ELEMENTS:
        raise Refused("2^31 elements or more at the upper bounds of its dimensions")


def _check_quantized(node: Node, constants: Mapping[Node, torch.Tensor]) -> None:
    kind = role(node)
    if kind == "weights" or (kind == "dequantize" and arg(node, 0) in constants):
        if weights_of(node, constants) is None and kind == "weights":
            raise Refused("the weights have a quantization that XNNPACK does not support")
        for user in node.users:
            reason = "it is a result" if user.op == "output" else why_not(user, constants)
            if reason is not None:
                raise Refused(f"{user.target} reads it: {reason}")
        return
    if kind in ("quantize", "dequantize"):
        integers, real = (node, arg(node, 0)) if kind == "quantize" else (arg(node, 0), node)
        if real.meta["val"].dtype not in FLOATS or int8_element(integers) is None:
            raise Refused(
                "it does not convert between float and int8 in the range -128 to 127, or has several scales"
            )
        check_shape(real.meta["val"])
        return
    if kind == "choose":
        readers = {user for part in node.users for user in part.users if role(user) == "dequantize rows"}
    else:
        readers = set(node.users) if kind == "quantize rows" else {node}
    source = None
    for reader in readers:
        source = rows_source(reader, constants)
        if source is None:
            break
    if source is None:
        raise Refused(
            "its scale is chosen at run time, but not all of its users are layers that XNNPACK supports"
        )
    check_shape(source.meta["val"])
