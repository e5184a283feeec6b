# SPDX-License-Identifier: BSD-3-Clause
# Numbers, dtypes and tensor specs come in, records of the file's values go out. No graph, and no state.
"""What a single value becomes in the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchette import schema
from torchette.exir.tensor import TensorShapeDynamism, TensorSpec, upper_bound
from torchette.format import pte


class Unsupported(Exception):
    """What the file has no form for; becomes one line of the EmitError."""


_SCALAR_TYPES = {
    getattr(torch, dtype.torch_name): dtype.schema_name
    for dtype in schema.DTYPES
    if dtype.computed or dtype.torch_name.startswith(("float8", "complex"))
}


def scalar_type(dtype: torch.dtype) -> Any:
    """The file's number for a dtype; ValueError for one that it has none for."""
    try:
        return pte.ScalarType[_SCALAR_TYPES[dtype]]
    except KeyError:
        raise ValueError(f"the file format has no tensors of {dtype}") from None


_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


def plain(given: object, kind: str) -> bool | int | float | str | None:
    """A constant as the file knows it, in the type that the schema wants."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, torch.dtype):
        return int(scalar_type(given))
    if isinstance(given, torch.memory_format):
        return _MEMORY_FORMATS[given]
    if isinstance(given, torch.layout) and given is torch.strided:
        return 0
    if isinstance(given, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        if not given.node.is_constant():
            raise Unsupported(f"the symbolic number {given} is not a node of the graph")
        given = given.node.constant_value() if hasattr(given.node, "constant_value") else int(given)
    if isinstance(given, (bool, int, float)):
        if kind == "float":
            return float(given)
        if kind == "int" and isinstance(given, bool):
            return int(given)
        if kind == "bool":
            return bool(given)
        return given
    raise Unsupported(f"a {type(given).__name__} ({given})")


def scalar_record(value: object) -> Any:
    """A number, string or None as a record; a symbolic number as a place for one."""
    if value is None:
        return pte.Null()
    if isinstance(value, bool):
        return pte.Bool(value)
    if isinstance(value, int):
        return pte.Int(value)
    if isinstance(value, float):
        return pte.Double(value)
    if isinstance(value, str):
        return pte.String(value)
    if isinstance(value, torch.SymInt):
        return pte.Int(0)
    if isinstance(value, torch.SymFloat):
        return pte.Double(0.0)
    if isinstance(value, torch.SymBool):
        return pte.Bool(False)
    raise Unsupported(f"a {type(value).__name__} ({value})")


def _dynamism(spec: TensorSpec) -> TensorShapeDynamism:
    """What says in the file where memory comes from: an unbounded tensor takes its own, an alias of one is a view of it."""
    if spec.owned:
        return TensorShapeDynamism.DYNAMIC_UNBOUND
    if spec.base is not None and spec.is_dynamic_unbound_tensor:
        return TensorShapeDynamism.DYNAMIC_BOUND
    return spec.shape_dynamism


def ranges(tensor: torch.Tensor, constraints: Mapping[Any, Any]) -> list[int]:
    """The least and the greatest size of each dimension; nothing where all of them are fixed."""
    if all(isinstance(size, int) for size in tensor.shape):
        return []
    from torch.utils._sympy.value_ranges import bound_sympy  # loads sympy

    ranges = []
    for size in tensor.shape:
        if isinstance(size, int):
            ranges += [size, size]
            continue
        bounds = bound_sympy(size.node.expr, dict(constraints))
        least, most = bounds.lower, upper_bound(size)
        ranges += [max(0, int(least)) if least.is_finite else 0, schema.NO_BOUND if most is None else most]
    return ranges


def tensor_record(
    spec: TensorSpec, data_buffer_idx: int, name: str | None = None, outside: bool = False
) -> Any:
    """A tensor of the file: `name` stands with inputs, state and what is `outside`, in a data file."""
    allocation = None
    if spec.mem_offset is not None and spec.mem_id is not None:
        allocation = pte.AllocationDetails(spec.mem_id, spec.mem_offset & 0xFFFFFFFF, spec.mem_offset >> 32)
    return pte.Tensor(
        scalar_type=scalar_type(spec.dtype),
        sizes=list(spec.shape),
        dim_order=list(spec.dim_order),
        data_buffer_idx=data_buffer_idx,
        allocation_info=allocation,
        shape_dynamism=pte.TensorShapeDynamism(int(_dynamism(spec))),
        extra_tensor_info=pte.ExtraTensorInfo(
            fully_qualified_name=name, location=pte.TensorDataLocation(int(outside))
        )
        if name
        else None,
    )
