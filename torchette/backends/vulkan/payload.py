# SPDX-License-Identifier: BSD-3-Clause
# Encodes values, calls and constants to the bytes that the backend's runtime reads, and decodes them.
"""The payload: a header, the graph of `torchette/schema/vulkan.fbs`, and constants.

The header consists of 4 zero bytes, "VH00", and little-endian fields: its length (u16: 30), offset and size of the
graph (u32, u32), and offset and size of the constants after it (u32, u64). Torchette stores constants in the program's
named data under the SHA-256 of their bytes, so that delegates share them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torchette.errors import FormatError
from torchette.exir.delegation.named_data import NamedDataStore, NamedDataStoreOutput, row_major
from torchette.format import flatbuffer
from torchette.format.schema import load

SCHEMA = load(Path(__file__).parents[2] / "schema" / "vulkan.fbs")
T = SCHEMA.types
VkStorageType, VkMemoryLayout = T["VkStorageType"], T["VkMemoryLayout"]
_HEADER = struct.Struct("<4x4sHIIIQ")
_ALIGNMENT = 16
_NAMED = 2**64 - 1  # the offset of constants in named data
_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.int8: "INT8",
    torch.int32: "INT32",
    torch.float16: "FLOAT16",
    torch.float32: "FLOAT32",
    torch.int64: "INT64",
}
DTYPES = frozenset(_DTYPES)


class Payload:
    """Builds a graph. Methods that add a value return its index."""

    def __init__(self, force_fp16: bool = False, **overrides: object) -> None:
        """Creates an empty graph.

        Args:
            force_fp16: whether to store float32 as float16.
            **overrides: fields of the graph.
        """
        self._graph = T["VkGraph"](version="0", **overrides)
        self._half = force_fp16
        self._store = NamedDataStore()
        self._scalars: dict[Any, int] = {}

    def tensor(self, dims: Sequence[int], dtype: torch.dtype, constant: torch.Tensor | None = None) -> int:
        """Adds a tensor with these maximum sizes. The device stores int64 as int32."""
        stored_dtype = {torch.int64: torch.int32}.get(dtype, dtype)
        staged = stored_dtype
        if self._half and dtype is torch.float32:
            stored_dtype = torch.float16
        index = -1
        if constant is not None:
            index, staged = self._constant(constant, stored_dtype), stored_dtype
        return self._value(
            "VkTensor",
            datatype=_of(stored_dtype),
            staging_datatype=_of(staged),
            dims=list(dims),
            constant_id=index,
            mem_obj_id=-1,
        )

    def scalar(self, number: object) -> int:
        """Adds None, a boolean, a number or a string. Equal scalars share one value."""
        key = (type(number), str(number))
        if key not in self._scalars:
            if number is None:
                new = self._value("Null")
            elif isinstance(number, bool):
                new = self._value("Bool", bool_val=number)
            elif isinstance(number, int):
                new = self._value("Int", int_val=number)
            elif isinstance(number, float):
                new = self._value("Double", double_val=number)
            else:
                new = self._value("String", string_val=str(number))
            self._scalars[key] = new
        return self._scalars[key]

    def size(self) -> int:
        """Adds an integer that is known only at run time."""
        return self._value("SymInt", value=0)

    def numbers(self, items: Sequence[int | float]) -> int:
        """Adds a list of constants."""
        real = any(isinstance(item, float) for item in items)
        kind = "DoubleList" if real else "IntList"
        return self._value(kind, items=[float(item) if real else int(item) for item in items])

    def list(self, values: Sequence[int]) -> int:
        """Adds a list of values."""
        return self._value("ValueList", items=list(values))

    def call(self, name: str, arguments: Sequence[int], handle: int) -> None:
        """Adds a call of an operator. The last argument is the result; `handle` is the debug handle of the node."""
        self._graph.chain.append(T["OperatorCall"](node_id=handle, name=name, args=list(arguments)))

    def finish(self, inputs: Sequence[int], outputs: Sequence[int]) -> tuple[bytes, NamedDataStoreOutput]:
        """Returns the payload, and the constants in named data."""
        self._graph.input_ids, self._graph.output_ids = list(inputs), list(outputs)
        graph = bytes(flatbuffer.encode(SCHEMA, self._graph))
        start = _aligned(_HEADER.size)
        end = start + _aligned(len(graph))
        header = _HEADER.pack(b"VH00", _HEADER.size, start, len(graph), end, 0)
        processed = header.ljust(start, b"\0") + graph.ljust(end - start, b"\0")
        return processed, self._store.get_named_data_store_output()

    def _value(self, kind: str, **fields: object) -> int:
        self._graph.values.append(T["VkValue"](T[kind](**fields)))
        return len(self._graph.values) - 1

    def _constant(self, tensor: torch.Tensor, dtype: torch.dtype) -> int:
        if dtype is torch.float16:
            # a finite minimum of a mask must stay finite
            tensor = torch.where(tensor.isinf(), tensor, tensor.clamp(-65504, 65504))
        data = row_major(tensor.to(dtype))
        key = hashlib.sha256(data).hexdigest()
        if key not in self._scalars:
            self._store.add_named_data(key, data, _ALIGNMENT)
            self._graph.constants.append(T["VkBytes"](_NAMED, data.nbytes, key))
            self._scalars[key] = len(self._graph.constants) - 1
        return self._scalars[key]


def read(processed: bytes) -> Any:
    """Decodes the graph of a payload.

    Raises:
        FormatError: if the bytes are not a Vulkan payload, or are damaged.
    """
    if len(processed) < _HEADER.size or processed[4:8] != b"VH00":
        raise FormatError("not a Vulkan payload: the header is missing")
    _, _, start, size, _, _ = _HEADER.unpack_from(processed)
    graph = memoryview(processed)[start : start + size]
    if len(graph) != size or bytes(graph[4:8]) != SCHEMA.identifier:
        raise FormatError("the Vulkan payload is truncated, or has another version")
    return flatbuffer.decode(SCHEMA, graph)


def _of(dtype: torch.dtype) -> Any:
    return T["VkDataType"][_DTYPES[dtype]]


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
