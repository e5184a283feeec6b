# SPDX-License-Identifier: BSD-3-Clause
# Operators on tensors of different dtypes come in; explicit casts and operators on one dtype go out, so that a kernel
# is a loop over one type.
"""Type promotion becomes explicit: `int + float` casts first."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import ops
from torchette.exir.graph import call, calls, note

aten = torch.ops.aten

# Pointwise, but their tensors are not combined: a condition, a logical value, a source and its destination.
_NOT_COMBINED = frozenset(
    {aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default, aten.copy.default}
)
# Division of integers happens in floating point.
_IN_FLOAT = frozenset({aten.div.Tensor, aten.atan2.default})


def promote_types(program: ExportedProgram) -> ExportedProgram:
    """Cast the tensor operands of pointwise operators to the dtype that torch would compute in."""
    casts: dict[tuple[Node, torch.dtype], Node] = {}
    for node in calls(program):
        if not ops.is_pointwise(node.target) or node.target in _NOT_COMBINED:
            continue
        operands = [
            (place, value)
            for place, value in ops.tensor_arguments(node.target, node.args, node.kwargs)
            if isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)
        ]
        if node.target is aten.where.self:
            operands = operands[1:]
        if len(operands) < 2:
            continue
        dtype = _common_dtype(node, [value.meta["val"] for _, value in operands])
        for place, value in operands:
            if value.meta["val"].dtype == dtype:
                continue
            key = (value, dtype)
            if key not in casts or casts[key].graph is not node.graph:
                casts[key] = call(
                    node,
                    aten._to_copy.default,
                    (value,),
                    {"dtype": dtype},
                    val=value.meta["val"].to(dtype),
                    like=node,
                )
            if isinstance(place, int):
                node.update_arg(place, casts[key])
            else:
                node.update_kwarg(place, casts[key])
    if casts:
        note(program, f"{len(casts)} casts made explicit")
    return program


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
