# SPDX-License-Identifier: BSD-3-Clause
# The remedies in the error message for an input of a wrong shape: changes of the call or of the compilation.
"""`shape_hints`."""

from __future__ import annotations

from collections.abc import Sequence

from torchette.runtime.tensor_info import TensorInfo
from torchette.units import counted

_NO_MAXIMUM = 2**31 - 1


def shape_hints(names: Sequence[str], index: int, tensor: TensorInfo, shape: Sequence[int]) -> list[str]:
    """Returns the remedies for an input of a wrong shape: the dimensions to change, and how to compile for the given shape.

    Args:
        names: the inputs of the method.
        index: the input, among the names.
        tensor: its signature.
        shape: the shape that was given.
    """
    name, ranges = names[index], _ranges(tensor)
    if len(shape) != len(ranges):
        hints = [f"{name} must have {counted(len(ranges), 'dimension')}, got {len(shape)}"]
        if len(shape) + 1 == len(ranges) and _fits((1, *shape), ranges):
            hints.append(f"to add dimension 0: {name}[None]")
        return hints
    wrong = [(dim, *bounds) for dim, bounds in enumerate(ranges) if not _fits((shape[dim],), [bounds])]
    hints = [
        f"dimension {dim} of {name} must be {_range_text(low, high)}, got {shape[dim]}"
        for dim, low, high in wrong
    ]
    if order := _order(shape, tensor.sizes()):
        return [
            *hints,
            f"or reorder the dimensions: {name}.transpose{order} in numpy, {name}.permute{order} in torch",
        ]
    dims = {
        dim: (min(low, shape[dim]), max(shape[dim], 0 if high == _NO_MAXIMUM else high))
        for dim, low, high in wrong
    }
    option = " ".join(f"--dynamic {index}:{dim}=n{dim}:{low}..{high}" for dim, (low, high) in dims.items())
    text = ", ".join(
        f"{dim}: torch.export.Dim('n{dim}', min={low}, max={high})" for dim, (low, high) in dims.items()
    )
    if all(input_name.isidentifier() for input_name in names):
        shapes = ", ".join(
            f"{input_name!r}: {f'{{{text}}}' if input_name == name else None}" for input_name in names
        )
        text = f"dynamic_shapes={{{shapes}}}"
    else:
        text = f"{{{text}}} for {name} in dynamic_shapes"
    return [*hints, f"or compile for sizes that vary: {text}, or `torchette compile {option}`"]


def _ranges(tensor: TensorInfo) -> list[tuple[int, int]]:
    """Returns the minimum and the maximum size of each dimension."""
    return list(tensor.ranges) or [(0 if tensor.is_dynamic else size, size) for size in tensor.sizes()]


def _fits(shape: Sequence[int], ranges: Sequence[tuple[int, int]]) -> bool:
    return all(low <= size <= high for size, (low, high) in zip(shape, ranges, strict=True))


def _range_text(low: int, high: int) -> str:
    if low == high:
        return str(low)
    return f"{low} or more" if high == _NO_MAXIMUM else f"{low} to {high}"


def _order(shape: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the permutation of `shape` that equals `sizes`; empty if there is none."""
    remaining, order = dict(enumerate(shape)), []
    for size in sizes:
        match = next((dim for dim, length in remaining.items() if length == size), None)
        if match is None:
            return ()
        del remaining[match]
        order.append(match)
    return tuple(order)
