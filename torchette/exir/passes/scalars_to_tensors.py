# SPDX-License-Identifier: BSD-3-Clause
# In: Python numbers where an operator's schema takes a tensor. Out: constants without dimensions, one per value.
# Then the runtime needs only the tensor overloads.
"""Numbers become tensors: `mul(x, 2.0)` reads a constant."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import control_flow, ops
from torchette.exir.arguments import overload, owner
from torchette.exir.graph import add_constant, calls, note

_NUMBERS = (bool, int, float)


def scalars_to_tensors(program: ExportedProgram) -> ExportedProgram:
    """Replace numbers by 0-d constants where the schema takes a tensor, in the dtype that torch computes in."""
    made: dict[tuple[Any, ...], Node] = {}
    callers = control_flow.owners(program.graph_module)

    def constant(value: bool | int | float, dtype: torch.dtype, like: Node) -> Node:
        # In 16 bits torch computes with more of the number than such a tensor holds.
        narrow = dtype in (torch.bfloat16, torch.float16)
        exact = torch.tensor(value, dtype=torch.float32 if narrow else dtype)
        key = (dtype, repr(exact.item()))
        if key not in made:
            made[key] = add_constant(program, "scalar", exact.to(dtype), like)
            made[key].meta["exact"] = exact
        return control_flow.bring_in(made[key], owner(like), callers)

    for node in calls(program):
        if not ops.is_operator(node.target):
            continue
        twin = ops.tensor_overload(node.target)
        if twin is not None and any(isinstance(arg, _NUMBERS) for arg in node.args[1:2]):
            node.target = twin
        for place, value in list(ops.tensor_arguments(node.target, node.args, node.kwargs)):
            if isinstance(value, (torch.SymInt, torch.SymFloat)) or _is_symbolic(value):
                _use_scalar_overload(node)
            elif isinstance(value, _NUMBERS):
                made_node = constant(value, _compute_dtype(node, value), node)
                if isinstance(place, int):
                    node.update_arg(place, made_node)
                else:
                    node.update_kwarg(place, made_node)
    if made:
        note(program, f"{len(made)} distinct numbers became constants")
    return program


def _is_symbolic(value: object) -> bool:
    return isinstance(value, Node) and isinstance(
        value.meta.get("val"), (torch.SymInt, torch.SymFloat, int, float)
    )


def _use_scalar_overload(node: Node) -> None:
    twin = ops.scalar_overload(overload(node))
    if twin is not None:
        node.target = twin


def _compute_dtype(node: Node, value: bool | int | float) -> torch.dtype:
    """The dtype in which torch would combine the number with the other tensors of the call."""
    dtype: torch.dtype | None = None
    for _, other in ops.tensor_arguments(overload(node), node.args, node.kwargs):
        tensor = other.meta.get("val") if isinstance(other, Node) else None
        # A condition selects values and does not affect their promotion.
        if isinstance(tensor, torch.Tensor) and not (
            node.target is torch.ops.aten.where.self and other is node.args[0]
        ):
            # The other tensors with their shapes: in promotion, tensors without dimensions count less.
            sample = torch.empty([1] * min(tensor.dim(), 1), dtype=tensor.dtype)
            dtype = (
                torch.result_type(sample, value)
                if dtype is None
                else torch.promote_types(dtype, torch.result_type(sample, value))
            )
    result = node.meta.get("val")
    if dtype is None:
        dtype = result.dtype if isinstance(result, torch.Tensor) else torch.get_default_dtype()
    integral = not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool
    if integral and isinstance(value, int) and not torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max:
        return torch.int64
    return dtype
