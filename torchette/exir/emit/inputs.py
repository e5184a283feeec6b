# SPDX-License-Identifier: BSD-3-Clause
# A placeholder comes in; what it stands for is entered among the values: an input, a constant, or state.
"""What the inputs of a graph become."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.fx import Node

from torchette.exir.emit.records import Unsupported, ranges, scalar_record
from torchette.exir.graph import tensor_of
from torchette.exir.tensor import TensorSpec

if TYPE_CHECKING:
    from torchette.exir.emit.method import MethodEmitter


def placeholder(method: MethodEmitter, node: Node, stored: Any) -> None:
    """The value of a placeholder, with its bytes where they are in the file."""
    if node in method.interface.inputs:
        spec = node.meta.get("spec")
        if isinstance(spec, TensorSpec):
            index = method.values.tensor(spec, 0, str(node.target))
            bounds = ranges(node.meta["val"], method.program.range_constraints)
            if bounds:
                method.values.records[index].val.extra_tensor_info.ranges = bounds
        else:
            # A number that export has fixed, or a symbolic one: the value says which and of what type.
            index = method.values.add(scalar_record(node.meta.get("val", getattr(stored.arg, "value", None))))
        method.values.of_node[node] = index
        method.inputs.append(index)
        return
    tensor = tensor_of(method.program, stored)
    spec = node.meta.get("spec")
    if tensor is None or not isinstance(spec, TensorSpec):
        if node.users:
            raise Unsupported(f"{stored.kind.name.lower()} {stored.target!r} is no tensor")
        return
    name = None
    if node in method.interface.mutable_buffers or not spec.const:
        trained = stored.target in method.interface.gradients
        if trained or method.emit_mutable_buffer_names:
            name = stored.target
        elif spec.mem_offset is None:
            raise Unsupported(
                f"state {stored.target!r} has no memory: plan it, or emit it by name (emit_mutable_buffer_names)"
            )
        planned = spec.mem_offset is not None
        if trained and (file := method.outside.file_of(node) or method.outside.file_of_trained):
            buffer = method.outside.store.add(tensor, spec.dim_order)
            key = method.outside.add(file, stored.target, buffer, spec)
            method.values.of_node[node] = method.values.tensor(spec, 0, key, outside=True)
            return
        # The runtime fills planned memory with zeros: state that starts so needs no bytes in the file.
        data = method.mutable_data.add(tensor, spec.dim_order) if planned and bool(tensor.any()) else 0
    elif not node.users:
        return
    elif file := method.outside.file_of(node):
        place = (file, stored.target, method.outside.store.add(tensor, spec.dim_order))
        method.values.of_node[node] = method.values.tensor(
            spec, 0, method.outside.add(*place, spec), outside=True
        )
        method.outside_of[spec] = place
        return
    else:
        data = method.constants.add(tensor, spec.dim_order)
    method.values.of_node[node] = method.values.tensor(spec, data, name)
