# SPDX-License-Identifier: BSD-3-Clause
# In: the record of a value in a dump, and the debug buffer with the elements of tensors. Out: the value: a scalar, a
# torch tensor, or an array if torch is not installed.
"""Reads the values that a device logged."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

import numpy as np

from torchette.errors import FormatError
from torchette.format.schema import Record
from torchette.schema import DTYPES

_TORCH_NAMES = {dtype.schema_name: dtype.torch_name for dtype in DTYPES}
_NUMBERS = {
    "Int": ("int_value", "int_val"),
    "Bool": ("bool_value", "bool_val"),
    "Float": ("float_value", "float_val"),
    "Double": ("double_value", "double_val"),
}


def read_value(record: Record, buffer: memoryview | None) -> Any:
    """Returns a scalar, a tensor, a list of tensors, or None. Without a buffer, tensors are None.

    Raises FormatError if a tensor is outside the buffer or has a dtype that neither torch nor numpy has.
    """
    kind = record.val.name
    if kind in _NUMBERS:
        member, field = _NUMBERS[kind]
        return getattr(getattr(record, member), field)
    if kind == "Tensor":
        return _tensor(record.tensor, buffer)
    if kind == "TensorList":
        return [_tensor(tensor, buffer) for tensor in record.tensor_list.tensors]
    return None


def is_output(record: Record) -> bool:
    """Whether a value is an output of the method."""
    return record.output is not None and bool(record.output.bool_val)


def as_float64(value: object) -> np.ndarray:
    """Returns a tensor, an array or a scalar as a float64 array."""
    if hasattr(value, "detach"):  # numpy does not support torch's bfloat16
        value = value.detach().cpu().double().numpy()
    return np.asarray(value, dtype=np.float64)


class TensorLike(Protocol):
    """A torch tensor or a numpy array."""

    @property
    def shape(self) -> Sequence[int]:
        """The sizes of the dimensions."""

    @property
    def dtype(self) -> object:
        """The type of the elements."""


def is_tensor(value: object) -> TypeGuard[TensorLike]:
    """Whether a value is a torch tensor or a numpy array."""
    return hasattr(value, "dtype") and hasattr(value, "shape")


def equal(one: object, other: object) -> bool:
    """Whether two logged values are equal; NaN equals NaN."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if is_tensor(one) and is_tensor(other):
        return tuple(one.shape) == tuple(other.shape) and bool(
            np.array_equal(as_float64(one), as_float64(other), equal_nan=True)
        )
    return type(one) is type(other) and one == other


def _tensor(record: Record, buffer: memoryview | None) -> Any:
    if buffer is None:
        return None
    name = _TORCH_NAMES.get(record.scalar_type.name)
    dtype = None if name is None else np.dtype("uint16") if name == "bfloat16" else _numpy(name)
    if dtype is None:
        raise FormatError(f"a logged tensor has dtype {record.scalar_type.name}, which is not supported")
    sizes = [int(size) for size in record.sizes]
    strides = [int(stride) for stride in record.strides] or _contiguous(sizes)
    count = math.prod(sizes)
    # number of elements from the first to the last one in memory
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if count else 0
    end = record.offset + span * dtype.itemsize
    # ExecuTorch writes offset -1 for a tensor without elements
    if count and (
        record.offset < 0 or min(strides, default=0) < 0 or max(end, count * dtype.itemsize) > len(buffer)
    ):
        raise FormatError(
            f"a logged tensor has bytes {record.offset} to {end} of the debug buffer, which has {len(buffer)} bytes",
            hints=["pass the complete debug buffer of the run that wrote the dump"],
        )
    flat = np.frombuffer(buffer, dtype, count=span, offset=record.offset) if span else np.empty(0, dtype)
    if span:
        array = np.lib.stride_tricks.as_strided(flat, sizes, [stride * dtype.itemsize for stride in strides])
    else:
        array = flat.reshape(sizes)
    array = np.array(array)  # a contiguous copy
    if importlib.util.find_spec("torch") is None:
        return (array.astype(np.uint32) << 16).view(np.float32) if name == "bfloat16" else array
    import torch

    tensor = torch.from_numpy(array.view(np.int16) if name == "bfloat16" else array)
    return tensor.view(torch.bfloat16) if name == "bfloat16" else tensor


def _numpy(name: str) -> np.dtype | None:
    try:
        return np.dtype(name)
    except TypeError:
        return None


def _contiguous(sizes: Sequence[int]) -> list[int]:
    return [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
