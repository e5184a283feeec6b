# SPDX-License-Identifier: BSD-3-Clause
# In: operators on tensors with different dtypes. Out: explicit casts and operators on one dtype, so that kernels need
# no mixed dtypes.
"""Makes type promotion explicit: `int + float` becomes a cast and an addition."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import ops
from torchette.exir.arguments import overload
from torchette.exir.dialects import MIXED
from torchette.exir.graph import call, calls, note

aten = torch.ops.aten

# Integer division yields a floating-point result.
_IN_FLOAT = frozenset({aten.div.Tensor, aten.atan2.default})


def promote_types(program: ExportedProgram) -> ExportedProgram:
    """Cast the operands of pointwise operators and the members of tensor lists to torch's common dtype."""
    casts: dict[tuple[Node, torch.dtype], Node] = {}

    def cast(value: object, dtype: torch.dtype, node: Node) -> Any:
        if not _is_tensor(value) or value.meta["val"].dtype == dtype:
            return value
        key = (value, dtype)
        if key not in casts or casts[key].graph is not node.graph:
            val = value.meta["val"].to(dtype)
            casts[key] = call(node, aten._to_copy.default, (value,), {"dtype": dtype}, val=val, like=node)
        return casts[key]

    for node in calls(program):
        if not ops.is_operator(node.target):
            continue
        for place, members in _lists(node):
            tensors = [member for member in members if _is_tensor(member)]
            if len({tensor.meta["val"].dtype for tensor in tensors}) > 1:
                dtype = _common_dtype(node, [tensor.meta["val"] for tensor in tensors])
                node.update_arg(place, [cast(member, dtype, node) for member in members])
        if not ops.is_pointwise(node.target) or node.target in MIXED:
            continue
        operands = [
            (place, value)
            for place, value in ops.tensor_arguments(node.target, node.args, node.kwargs)
            if _is_tensor(value)
        ]
        if node.target is aten.where.self:
            operands = operands[1:]
        if len(operands) < 2:
            continue
        dtype = _common_dtype(node, [value.meta["val"] for _, value in operands])
        for operand, value in operands:
            if isinstance(operand, int):
                node.update_arg(operand, cast(value, dtype, node))
            else:
                node.update_kwarg(operand, cast(value, dtype, node))
    if casts:
        note(program, f"{len(casts)} casts made explicit")
    return program


def _is_tensor(value: object) -> TypeGuard[Node]:
    return isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _lists(node: Node) -> list[tuple[int, Any]]:
    """Returns (position, members) of the tensor lists of a call."""
    declared = overload(node)._schema.arguments
    pairs = enumerate(zip(declared, node.args, strict=False))
    return [(place, members) for place, (argument, members) in pairs if str(argument.type) == "List[Tensor]"]


def _common_dtype(node: Node, tensors: list[torch.Tensor]) -> torch.dtype:
    samples = [torch.empty([1] * min(tensor.dim(), 1), dtype=tensor.dtype) for tensor in tensors]
    combined = samples[0]
    for sample in samples[1:]:
        shape = [1] * max(combined.dim(), sample.dim())
        combined = torch.empty(shape, dtype=torch.result_type(combined, sample))
    dtype = combined.dtype
    if node.target in _IN_FLOAT and not dtype.is_floating_point and not dtype.is_complex:
        return torch.get_default_dtype()
    return dtype
