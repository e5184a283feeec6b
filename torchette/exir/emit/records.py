# SPDX-License-Identifier: BSD-3-Clause
# In: scalars, dtypes and tensor specs. Out: records of the file's values. This file does not depend on graphs.
"""Conversion of single values to records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from torchette import schema
from torchette.exir.tensor import MAX_ELEMENTS, TensorShapeDynamism, TensorSpec, upper_bound
from torchette.format import pte


class Unsupported(Exception):
    """A value that the file format cannot represent. It becomes one line of the EmitError."""


_SCALAR_TYPES = {
    getattr(torch, dtype.torch_name): dtype.schema_name
    for dtype in schema.DTYPES
    if dtype.is_computed or dtype.torch_name.startswith(("float8", "complex"))
}


def scalar_type(dtype: torch.dtype) -> Any:
    """Returns the file's enum value of a dtype. Raises ValueError if there is none."""
    try:
        return pte.ScalarType[_SCALAR_TYPES[dtype]]
    except KeyError:
        raise ValueError(f"the file format does not support {dtype}") from None


_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


def plain(given: object, kind: str) -> bool | int | float | str | None:
    """Returns a constant as a value of the file format, with the type of the schema."""
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
            raise Unsupported(f"the symbolic scalar {given} is not a node of the graph")
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
    """Returns the record of a scalar, string or None. A symbolic scalar becomes a record with a dummy value."""
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
    """Returns the shape dynamism that the file stores. It also selects the memory: an unbounded tensor has separate
    memory, an alias of it is a view."""
    if spec.owned:
        return TensorShapeDynamism.DYNAMIC_UNBOUND
    if spec.base is not None and spec.is_dynamic_unbound_tensor:
        return TensorShapeDynamism.DYNAMIC_BOUND
    return spec.shape_dynamism


def ranges(tensor: torch.Tensor, constraints: Mapping[Any, Any]) -> list[int]:
    """Returns the minimum and maximum of each dimension; empty if all dimensions are static."""
    if all(isinstance(size, int) for size in tensor.shape):
        return []
    from torch.utils._sympy.value_ranges import bound_sympy  # loads sympy

    ranges = []
    for size in tensor.shape:
        if isinstance(size, int):
            ranges += [size, size]
            continue
        # The range of a derived dimension such as 32 * n, which torch computes from the given range of n. The range of the
        # root n itself starts at 2 in the constraints if it was given from 1.
        bounds = constraints.get(size.node.expr) or bound_sympy(size.node.expr, dict(constraints))
        least, most = bounds.lower, upper_bound(size)
        ranges.append(max(0, int(least)) if least.is_finite else 0)
        ranges.append(schema.NO_BOUND if most is None else min(most, schema.NO_BOUND))
    return ranges


def tensor_record(
    spec: TensorSpec, data_buffer_idx: int, name: str | None = None, outside: bool = False
) -> Any:
    """Returns the record of a tensor. Inputs, state, and constants `outside` the program in a data file have a
    `name`."""
    if math.prod(spec.shape) > MAX_ELEMENTS:
        size = " x ".join(map(str, spec.shape))
        raise Unsupported(
            f"a tensor of {size} elements: the runtime supports at most {MAX_ELEMENTS:,} elements"
        )
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
