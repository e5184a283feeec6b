# SPDX-License-Identifier: BSD-3-Clause
# Values, nodes and constants come in one by one; the bytes that the backend's runtime (and ExecuTorch's) reads go out.
"""The payload: a header, the graph of `torchette/schema/xnnpack.fbs`, and the names of its constants.

The header: 4 zero bytes, "XH00", then little-endian its own length (u16: 30), offset and size of the graph (u32, u32),
offset and size of constants behind it (u32, u64). Constants stand in the program's named data, under the SHA-256 of
their bytes, so that delegates share them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torchette.exir.delegate import NamedDataStore
from torchette.format import flatbuffer
from torchette.format.schema import load

SCHEMA = load(Path(__file__).parents[2] / "schema" / "xnnpack.fbs")
T = SCHEMA.types
NONE = 0xFFFFFFFF  # an id that names nothing
_HEADER = struct.Struct("<4x4sHIIIQ")
_ALIGNMENT = 16
_INPUT, _OUTPUT = 1, 2


class Payload:
    """Collects a graph. Values are named by the numbers that `value` and `constant` return."""

    def __init__(self, arguments: int) -> None:
        self.store = NamedDataStore()
        self._graph = T["XNNGraph"](
            version="0", num_externs=arguments, constant_data=[T["ConstantDataOffset"](0, 0, "")]
        )
        self._constants: dict[tuple, int] = {}

    def value(self, dims: Sequence[int], *, argument: int | None = None, output: bool = False) -> int:
        """A float32 value of these dimensions; `argument`: its place among the delegate's arguments."""
        flags = 0 if argument is None else _OUTPUT if output else _INPUT
        number = self._define(dims, NONE if argument is None else argument, 0, flags)
        if argument is not None:
            (self._graph.output_ids if output else self._graph.input_ids).append(number)
        return number

    def constant(self, tensor: torch.Tensor) -> int:
        """A stored float32 tensor; equal ones are one value."""
        tensor = tensor.detach().to(torch.float32).contiguous()
        data = tensor.reshape(-1).view(torch.uint8).numpy()
        key = hashlib.sha256(data).hexdigest()
        known = self._constants.get((key, tuple(tensor.shape)))
        if known is not None:
            return known
        self.store.add_named_data(key, data, _ALIGNMENT)
        index = len(self._graph.constant_data)
        self._graph.constant_data.append(T["ConstantDataOffset"](2**64 - 1, data.nbytes, key))
        number = self._define(list(tensor.shape) or [1], NONE, index, 0)
        self._constants[key, tuple(tensor.shape)] = number
        return number

    def _define(self, dims: Sequence[int], external: int, buffer: int, flags: int) -> int:
        number = len(self._graph.xvalues)
        record = T["XNNTensorValue"](
            datatype=T["XNNDatatype"].xnn_datatype_fp32,
            num_dims=len(dims),
            dims=list(dims),
            constant_buffer_idx=buffer,
            external_id=external,
            flags=flags,
            id_out=number,
        )
        self._graph.xvalues.append(T["XValue"](record))
        return number

    def node(self, kind: str, handle: int, limits: tuple[float, float] | None = None, **fields: Any) -> None:
        """A node of that kind; `handle`: the debug handle of what it comes from; `limits`: what results are clamped to."""
        node = T["XNode"](T[kind](**fields), handle, T["OutputMinMax"](*limits) if limits else None)
        self._graph.xnodes.append(node)

    def __bytes__(self) -> bytes:
        graph = bytes(flatbuffer.encode(SCHEMA, self._graph))
        start = -(-_HEADER.size // _ALIGNMENT) * _ALIGNMENT
        end = start + -(-len(graph) // _ALIGNMENT) * _ALIGNMENT
        header = _HEADER.pack(b"XH00", _HEADER.size, start, len(graph), end, 0)
        return header + bytes(start - len(header)) + graph + bytes(end - start - len(graph))
