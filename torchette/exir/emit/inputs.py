# SPDX-License-Identifier: BSD-3-Clause
# In: a placeholder. Out: its value in the method: an input, a constant, or state.
"""The values of the placeholders of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export.graph_signature import InputSpec
from torch.fx import Node

from torchette.exir.emit.constants import Storage
from torchette.exir.emit.records import Unsupported, ranges, scalar_record
from torchette.exir.emit.values import Values
from torchette.exir.interface import GraphInterface
from torchette.exir.tensor import TensorSpec


def user_input(values: Values, node: Node, stored: InputSpec, constraints: Mapping[Any, Any]) -> int:
    """Adds the value of an input that the caller sets. Returns its index."""
    spec = node.meta.get("spec")
    if isinstance(spec, TensorSpec):
        index = values.tensor(spec, 0, str(node.target))
        bounds = ranges(node.meta["val"], constraints)
        if bounds:
            values.records[index].val.extra_tensor_info.ranges = bounds
    else:
        # A scalar that export specialized, or a symbolic scalar, whose type is that of the node's value.
        index = values.add(scalar_record(node.meta.get("val", getattr(stored.arg, "value", None))))
    values.of_node[node] = index
    return index


def stored_tensor(
    values: Values,
    storage: Storage,
    interface: GraphInterface,
    node: Node,
    stored: InputSpec,
    tensor: torch.Tensor | None,
) -> None:
    """Adds the value of a constant or of state, and stores its bytes in the program or in a data file."""
    spec = node.meta.get("spec")
    if tensor is None or not isinstance(spec, TensorSpec):
        if node.users:
            raise Unsupported(f"{stored.kind.name.lower()} {stored.target!r} is not a tensor")
    elif node in interface.mutable_buffers or not spec.const:
        trained = stored.target in interface.gradients
        values.of_node[node] = _state(values, storage, spec, tensor, node, str(stored.target), trained)
    elif node.users:
        values.of_node[node] = _constant(values, storage, spec, tensor, node, str(stored.target))


def _state(
    values: Values,
    storage: Storage,
    spec: TensorSpec,
    tensor: torch.Tensor,
    node: Node,
    target: str,
    trained: bool,
) -> int:
    outside, planned = storage.outside, spec.mem_offset is not None
    named = trained or storage.names_state
    if not named and not planned:
        raise Unsupported(f"state {target!r} has no memory: plan it, or set emit_mutable_buffer_names=True")
    if trained and (file := outside.file_of(node) or outside.file_of_trained):
        key = outside.add(file, target, outside.store.add(tensor, spec.dim_order), spec)
        return values.tensor(spec, 0, key, outside=True)
    # The runtime zero-fills planned memory, so that state with initial zeros needs no bytes in the file.
    data = storage.mutable_data.add(tensor, spec.dim_order) if planned and bool(tensor.any()) else 0
    return values.tensor(spec, data, target if named else None)


def _constant(
    values: Values, storage: Storage, spec: TensorSpec, tensor: torch.Tensor, node: Node, target: str
) -> int:
    outside = storage.outside
    file = outside.file_of(node)
    if not file:
        return values.tensor(spec, storage.constants.add(tensor, spec.dim_order))
    place = (file, target, outside.store.add(tensor, spec.dim_order))
    key = outside.add(*place, spec)
    outside.location_of[spec] = place
    return values.tensor(spec, 0, key, outside=True)
