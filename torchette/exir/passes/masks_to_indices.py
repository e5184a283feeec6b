# SPDX-License-Identifier: BSD-3-Clause
# In: indexing with masks. Out: indexing with integers that nonzero computes from the mask.
"""Replaces `x[mask]` by `x[nonzero(mask)]`."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from torchette.exir.arguments import list_arg
from torchette.exir.graph import call, calls, fake_mode, note

aten = torch.ops.aten


def masks_to_indices(program: ExportedProgram) -> ExportedProgram:
    """Replace masks of index and index_put by the coordinates of their true elements, one tensor per dimension."""
    count = 0
    coordinates: dict[Node, list[Node]] = {}
    for node in calls(program, aten.index.Tensor, aten.index_put.default):
        indices: list[Any] = []
        operands = list_arg(node, 1)
        for index in operands:
            if isinstance(index, Node) and index.meta["val"].dtype in (torch.bool, torch.uint8):
                if index not in coordinates:
                    coordinates[index] = _coordinates(program, node, index)
                # Results of the same mask have the size that the first one binds.
                node.meta.pop("unbacked_bindings", None)
                indices += coordinates[index]
            else:
                indices.append(index)
        if len(indices) != len(operands) or indices != list(operands):
            node.update_arg(1, indices)
            count += 1
    if count:
        note(program, f"{count} masks became indices")
    return program


def _coordinates(program: ExportedProgram, before: Node, mask: Node) -> list[Node]:
    from torch.fx.experimental.symbolic_shapes import CallMethodKey  # loads sympy

    val = mask.meta["val"]
    # The number of true elements is a size of the result of index. nonzero now binds its symbol.
    bindings = before.meta.pop("unbacked_bindings", None)
    mode = fake_mode(program)
    with mode:
        if bindings:
            length = pytree.key_get(before.meta["val"], next(iter(bindings.values())))
        else:
            assert mode.shape_env is not None
            with mode.shape_env.ignore_fresh_unbacked_symbols():
                length = torch.nonzero(val).shape[0]
        places = torch.empty((length, val.dim()), dtype=torch.int64)
        column = torch.empty((length,), dtype=torch.int64)
    coordinates = call(before, aten.nonzero.default, (mask,), val=places, like=before)
    if isinstance(length, torch.SymInt):
        path: pytree.KeyPath = (CallMethodKey("size"), pytree.SequenceKey(0))
        coordinates.meta["unbacked_bindings"] = {length.node.expr: path}
    return [
        call(before, aten.select_copy.int, (coordinates, 1, dim), val=column, like=before)
        for dim in range(val.dim())
    ]
