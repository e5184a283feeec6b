# SPDX-License-Identifier: BSD-3-Clause
# In: Python scalars as operands of type tensor. Out: 0-dimensional constants, one per value. The runtime then needs
# only the tensor overloads.
"""Replaces scalars by tensors: `mul(x, 2.0)` reads a constant."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import control_flow, ops
from torchette.exir.arguments import overload, owner
from torchette.exir.graph import add_constant, call, calls, fake, note

_NUMBERS = (bool, int, float)


def scalars_to_tensors(program: ExportedProgram) -> ExportedProgram:
    """Replace scalar operands of type tensor by 0-d constants, with the dtype that torch computes in."""
    constants: dict[tuple[Any, ...], Node] = {}
    callers = control_flow.owners(program.graph_module)

    def constant(value: bool | int | float, dtype: torch.dtype, like: Node) -> Node:
        # torch computes 16-bit operators with a scalar of higher precision than a 16-bit tensor provides.
        narrow = dtype in (torch.bfloat16, torch.float16)
        exact = torch.tensor(value, dtype=torch.float32 if narrow else dtype)
        key = (dtype, repr(exact.item()))
        if key not in constants:
            constants[key] = add_constant(program, "scalar", exact.to(dtype), like)
            constants[key].meta["exact"] = exact
        return control_flow.pass_to_branch(constants[key], owner(like), callers)

    for node in calls(program):
        if not ops.is_operator(node.target):
            continue
        twin = ops.tensor_overload(node.target)
        if twin is not None and any(isinstance(arg, _NUMBERS) for arg in node.args[1:2]):
            node.target = twin
        for place, value in list(ops.tensor_arguments(node.target, node.args, node.kwargs)):
            if _is_symbolic(value):
                if _use_scalar_overload(node, place):
                    continue
                tensor = _filled(program, node, value)
            elif isinstance(value, _NUMBERS):
                tensor = constant(value, _compute_dtype(node, value), node)
            else:
                continue
            if isinstance(place, int):
                node.update_arg(place, tensor)
            else:
                node.update_kwarg(place, tensor)
    if constants:
        note(program, f"{len(constants)} distinct scalars became constants")
    return program


def _is_symbolic(value: object) -> bool:
    return isinstance(value, Node) and isinstance(
        value.meta.get("val"), (torch.SymInt, torch.SymFloat, int, float)
    )


def _use_scalar_overload(node: Node, place: int | str) -> bool:
    """Replaces `add(tensor, size)` by its scalar overload. Returns whether that overload takes a number at `place`."""
    twin = ops.scalar_overload(overload(node))
    if twin is None or not any(
        str(declared.type) == "number" and place in (position, declared.name)
        for position, declared in enumerate(twin._schema.arguments)
    ):
        return False
    node.target = twin
    return True


def _filled(program: ExportedProgram, node: Node, value: Node) -> Node:
    """Returns a 0-d tensor with a number that is known at run time, such as `size` of `size - tensor`."""
    dtype = _compute_dtype(node, value.meta["val"])
    tensor = fake(program, torch.empty((), dtype=dtype))
    return call(node, torch.ops.aten.full.default, ([], value), {"dtype": dtype}, val=tensor, like=node)


def _compute_dtype(node: Node, value: bool | int | float) -> torch.dtype:
    """Returns the dtype in which torch combines the scalar with the tensors of the call."""
    dtype: torch.dtype | None = None
    for _, operand in ops.tensor_arguments(overload(node), node.args, node.kwargs):
        tensor = operand.meta.get("val") if isinstance(operand, Node) else None
        # A condition selects values and does not affect their promotion.
        if isinstance(tensor, torch.Tensor) and not (
            node.target is torch.ops.aten.where.self and operand is node.args[0]
        ):
            # Keep the rank of the other tensors: 0-d tensors have lower priority in type promotion.
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
