# SPDX-License-Identifier: BSD-3-Clause
# In: a program in the Edge dialect. Out: the program, with a tag on each node that this backend can run and a reason on each
# other node.
"""Selects the nodes that the backend runs."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.null.preprocess import DTYPES, OPERATORS, NullBackend, operator_name
from torchette.exir.arguments import checked
from torchette.exir.delegation.delegate import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
    reject,
    rejection_reason,
    tag_constant_data,
)
from torchette.exir.graph import calls, same_shape


class NullPartitioner(Partitioner):
    """Selects additions and multiplications of two tensors with the same shape and dtype."""

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags the nodes and the weights that only they read."""
        tags = {}
        for node in calls(exported_program):
            reason = rejection_reason(lambda: _why_not(node))  # noqa: B023
            if reason is not None:
                reject(node, reason)
                continue
            # One tag for each shape: all values of a program of this backend have the same shape.
            tag = f"null {tuple(node.meta['val'].shape)}"
            node.meta["delegation_tag"] = tag
            tags[tag] = DelegationSpec(NullBackend.__name__, [])
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, tags)


def _why_not(node: Node) -> str | None:
    if operator_name(node) not in OPERATORS:
        return "the null backend supports only add and mul"
    operands, result = node.args[:2], node.meta["val"]
    if not all(isinstance(operand, Node) for operand in operands):
        return "an operand is a scalar, not a tensor"
    if node.kwargs.get("alpha", 1) != 1:
        return "alpha is not 1"
    for operand in operands:
        value = checked(operand, Node).meta["val"]
        if not isinstance(value, torch.Tensor) or value.dtype != result.dtype or value.dtype not in DTYPES:
            return f"dtype {getattr(value, 'dtype', type(value).__name__)}"
        if not same_shape(value.shape, result.shape):
            return "an operand is broadcast"
        if not value.is_contiguous():
            return "an operand is not contiguous"
    return None
