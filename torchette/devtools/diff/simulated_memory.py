# SPDX-License-Identifier: BSD-3-Clause
# In: the memory plan of a method, and the values that its instructions wrote. Out: the content of each value at any
# time. Values share memory here exactly as on the device.
"""`SimulatedMemory`: the values of a method during its execution, as torch tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchette import schema
from torchette.errors import UnsupportedError
from torchette.format import pte
from torchette.format.schema import Record

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TORCH = {dtype.schema_name: getattr(torch, dtype.torch_name, None) for dtype in schema.DTYPES}


class Overwritten(NamedTuple):
    """A value that is read after another value overwrote it."""

    value: int
    by: int  # the instruction


class Source(NamedTuple):
    """The last write to the bytes of a view."""

    value: int
    instruction: int


class _Write(NamedTuple):
    step: int
    instruction: int
    value: int
    memory: int
    start: int
    end: int

    def touches(self, memory: int, start: int, end: int) -> bool:
        return self.memory == memory and self.start < end and start < self.end


class SimulatedMemory:
    """The contents of a method's values."""

    def __init__(self, file: pte.PteFile, plan: Record, external: Mapping[str, Any] | None = None) -> None:
        self._plan = plan
        self._stored: dict[int, Tensor] = {}  # initial bytes of state
        self._records = [value.val for value in plan.values]
        self._arenas = [torch.zeros(size, dtype=torch.uint8) for size in plan.non_const_buffer_sizes]
        self._own: dict[int, Any] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._written: dict[int, tuple[int, Tensor]] = {}  # step, and the written tensor
        self._writes: list[_Write] = []
        for index, record in enumerate(self._records):
            if not isinstance(record, pte.Tensor):
                continue
            extra = record.extra_tensor_info
            if extra and extra.location == pte.TensorDataLocation.EXTERNAL:
                if external is None or extra.fully_qualified_name not in external:
                    raise UnsupportedError(
                        f"the weight {extra.fully_qualified_name!r} is in a data file that was not passed",
                        hints=["pass the data files: data_files=['weights.ptd']"],
                    )
                self._own[index] = self._tensor(record, external[extra.fully_qualified_name])
            elif record.data_buffer_idx and not record.allocation_info:
                self._own[index] = self._tensor(record, file.constant(record.data_buffer_idx))
            elif record.data_buffer_idx:
                segment = extra.mutable_data_segments_idx if extra else 0
                data = file.mutable(record.data_buffer_idx, segment)
                self._stored[index] = _bytes(data, pte.tensor_nbytes(record))
        self._constants = dict(self._own)
        self.reset()

    def reset(self) -> None:
        """Restores the state after loading."""
        self._own = dict(self._constants)
        self._shapes.clear()
        self._written.clear()
        self._writes.clear()
        for arena in self._arenas:
            arena.zero_()
        for index, data in self._stored.items():
            memory, start = self.place(index)
            self._arenas[memory][start : start + len(data)] = data

    def record(self, index: int) -> Any:
        """Returns the record of a value in the file."""
        return self._records[index]

    def is_constant(self, index: int) -> bool:
        """Whether a value is a stored tensor that nothing writes."""
        return index in self._constants

    def constant(self, index: int) -> Tensor:
        """Returns a stored tensor that nothing writes."""
        result: Tensor = self._constants[index]
        return result

    def _tensor(self, record: Record, data: Buffer) -> Tensor:
        """Returns a tensor over stored bytes, in the dim order of the record."""
        flat = _bytes(data, pte.tensor_nbytes(record))
        return _arranged(flat, dtype_of(record), tuple(record.sizes), record.dim_order)

    def place(self, index: int) -> tuple[int, int]:
        """Returns planned buffer and offset of a planned value."""
        info = self._records[index].allocation_info
        return info.memory_id, info.memory_offset_low + (info.memory_offset_high << 32)

    def is_planned(self, index: int) -> bool:
        """Whether a value is in planned memory."""
        record = self._records[index]
        return isinstance(record, pte.Tensor) and record.allocation_info is not None

    def is_list(self, index: int) -> bool:
        """Whether a value is a list of tensors."""
        return isinstance(self._records[index], (pte.TensorList, pte.OptionalTensorList))

    def members(self, index: int) -> list[int]:
        """Returns the values in a list of tensors, or the value itself."""
        return list(self._records[index].items) if self.is_list(index) else [index]

    def read(self, index: int) -> Any:
        """Returns the current content of a value: a read-only tensor, a scalar, a string, None, or a list."""
        if index == -1:
            return None
        record = self._records[index]
        kind = type(record).__name__
        if kind == "Tensor":
            return self._read_tensor(index, record)
        if index in self._own:
            return self._own[index]
        if kind == "Null":
            return None
        if kind in ("IntList", "TensorList", "OptionalTensorList"):
            return [self.read(item) for item in record.items]
        if kind in ("DoubleList", "BoolList"):
            return list(record.items)
        return getattr(
            record, {"Int": "int_val", "Double": "double_val", "Bool": "bool_val"}.get(kind, "string_val")
        )

    def _read_tensor(self, index: int, record: Record) -> Tensor:
        if index in self._own:
            result: Tensor = self._own[index]
            return result
        shape = self._shapes.get(index, tuple(record.sizes))
        dtype = dtype_of(record)
        if record.allocation_info is None:
            return torch.zeros(shape, dtype=dtype)  # it was not written yet
        memory, start = self.place(index)
        size = math.prod(shape) * dtype.itemsize
        return _arranged(self._arenas[memory][start : start + size].clone(), dtype, shape, record.dim_order)

    def overwritten(self, index: int) -> Overwritten | None:
        """Returns the instruction that changed the content of a value after its last write, if any."""
        known = self._written.get(index)
        if known is None or not self.is_planned(index):
            return None
        step, value = known
        memory, start = self.place(index)
        end = start + value.numel() * value.element_size()
        for write in self._writes:
            if write.step <= step or write.value == index or not write.touches(memory, start, end):
                continue
            now = self._read_tensor(index, self._records[index])
            if now.shape != value.shape or _raw(now).equal(_raw(value)):
                return None
            return Overwritten(index, write.instruction)
        return None

    def source(self, index: int) -> Source | None:
        """Returns the last write to the bytes of a value that is only written through other values, such as a view."""
        if not self.is_planned(index) or index in self._written:
            return None
        memory, start = self.place(index)
        end = start + pte.tensor_nbytes(self._records[index])
        last_write = next(
            (write for write in reversed(self._writes) if write.touches(memory, start, end)), None
        )
        return None if last_write is None else Source(last_write.value, last_write.instruction)

    def write(self, index: int, value: object, step: int, instruction: int) -> None:
        """Records a value that an instruction wrote."""
        record = self._records[index]
        if isinstance(value, (list, tuple)):
            for item, each in zip(self.members(index), value, strict=True):
                self.write(item, each, step, instruction)
            return
        if not isinstance(record, pte.Tensor) or not isinstance(value, Tensor):
            self._own[index] = value
            return
        value = value.to(dtype_of(record)).detach()
        self._shapes[index] = tuple(value.shape)
        if record.allocation_info is None:
            self._own[index] = value
            return
        memory, start = self.place(index)
        flat = _raw(value.permute(list(record.dim_order)).contiguous())
        end = start + flat.numel()
        self._arenas[memory][start:end] = flat[: max(0, self._arenas[memory].numel() - start)]
        self._written[index] = (step, value)
        self._writes.append(_Write(step, instruction, index, memory, start, end))

    def has_same_location(self, a: int, b: int) -> bool:
        """Whether two values have the same memory id and offset, like a value that is updated in place."""
        return self.is_planned(a) and self.is_planned(b) and self.place(a) == self.place(b)


def dtype_of(record: Record) -> torch.dtype:
    """Returns torch's dtype of a Tensor record. Raises UnsupportedError if torch has none."""
    dtype = _TORCH.get(record.scalar_type.name)
    if dtype is None:
        raise UnsupportedError(f"torch has no dtype {record.scalar_type.name.lower()}")
    result: torch.dtype = dtype
    return result


def _bytes(data: Buffer, size: int) -> Tensor:
    """Returns a copy of stored bytes, padded with zeros to `size`."""
    padded = torch.zeros(size, dtype=torch.uint8)
    stored = bytes(memoryview(data)[:size])
    if stored:
        padded[: len(stored)] = torch.frombuffer(bytearray(stored), dtype=torch.uint8)
    return padded


def _arranged(flat: Tensor, dtype: torch.dtype, shape: tuple[int, ...], dim_order: Iterable[int]) -> Tensor:
    order = list(dim_order) or list(range(len(shape)))
    stored = flat.view(dtype).reshape([shape[d] for d in order])
    inverse = [order.index(d) for d in range(len(shape))]
    return stored.permute(inverse) if order != sorted(order) else stored


def _raw(tensor: Tensor) -> Tensor:
    """Returns the bytes of a tensor, in row-major order."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
