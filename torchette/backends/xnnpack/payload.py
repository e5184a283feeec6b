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
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Element:
    """What the elements of a value are: the library's name of the type, and for integers what they stand for.

    Attributes:
        scale, zero_point: of "qint8" and "qint32": element `q` stands for `(q - zero_point) * scale`.
    """

    type: str
    scale: float = 0.0
    zero_point: int = 0

    def quantization(self) -> Any:
        """The record of the payload, None for floating point."""
        if self.type == "qdint8":  # a row is quantized on its own, when the graph runs
            return T["PerTokenDynamicQuant"](num_nonbatch_dims=1)
        return T["PerTensorQuant"](self.scale, self.zero_point) if self.scale else None


FP32, FP16, DYNAMIC = Element("fp32"), Element("fp16"), Element("qdint8")
FLOATS = {torch.float32: FP32, torch.float16: FP16}


class Payload:
    """Collects a graph. Values are named by the numbers that `value` and `constant` return."""

    def __init__(self, arguments: int, external_tag: str | None = None) -> None:
        self.store = NamedDataStore()
        self._external_tag = external_tag  # the data file that constants go to
        self._graph = T["XNNGraph"](
            version="0", num_externs=arguments, constant_data=[T["ConstantDataOffset"](0, 0, "")]
        )
        self._constants: dict[tuple, int] = {}

    def value(
        self, dims: Sequence[int], element: Element, *, argument: int | None = None, output: bool = False
    ) -> int:
        """A value of these dimensions; `argument`: its place among the delegate's arguments."""
        flags = 0 if argument is None else _OUTPUT if output else _INPUT
        external = NONE if argument is None else argument
        number = self._define(dims, element.type, element.quantization(), external=external, flags=flags)
        if argument is not None:
            (self._graph.output_ids if output else self._graph.input_ids).append(number)
        return number

    def constant(self, tensor: torch.Tensor, element: Element | None = None) -> int:
        """A stored tensor; equal ones are one value. Without `element` what it holds: float32 or float16."""
        element = element or FLOATS[tensor.dtype]
        dims = list(tensor.shape) or [1]
        return self._stored(tensor, dims, element.type, element, element.quantization)

    def channelwise(self, tensor: torch.Tensor, scales: torch.Tensor, dim: int) -> int:
        """Stored whole numbers (int8 or int32) with a scale for each index of a dimension."""
        kind = {torch.int8: "qcint8", torch.int32: "qcint32"}[tensor.dtype]

        def quantization() -> Any:
            index = self._scales(scales.to(torch.float32))
            return T["PerChannelQuant"](channel_dim=dim, scale_buffer_idx=index, num_scales=scales.numel())

        return self._stored(tensor, list(tensor.shape), kind, (dim, _digest(scales)), quantization)

    def four_bits(self, tensor: torch.Tensor, scales: torch.Tensor) -> int:
        """Stored weights (outputs, inputs), int8 between -8 and 7, two to a byte.

        Args:
            scales: (outputs,), or (outputs, groups) where the inputs of an output are in groups.
        """
        rows, columns = tensor.shape
        grouped = scales.dim() == 2

        def quantization() -> Any:
            if not grouped:
                index = self._scales(scales.to(torch.float32))
                return T["PerChannelQuant"](channel_dim=0, scale_buffer_idx=index, num_scales=rows)
            return T["PerChannelGroupQuant"](
                channel_dim=0,
                group_size=columns // scales.shape[1],
                scale_buffer_idx=self._scales(scales.to(torch.bfloat16)),
                num_scales=scales.numel(),
            )

        biased = torch.nn.functional.pad(tensor, (0, columns % 2)).to(torch.uint8) + 8
        packed = (biased[:, ::2] & 15) | (biased[:, 1::2] << 4)
        kind = "qbint4" if grouped else "qcint4"
        return self._stored(packed, [rows, columns], kind, _digest(scales), quantization)

    def _scales(self, scales: torch.Tensor) -> int:
        return self._data(_bytes(scales), f"scale_{_digest(scales)}")

    def _stored(
        self, tensor: torch.Tensor, dims: Sequence[int], kind: str, detail: Any, quantization: Any
    ) -> int:
        """A constant; `detail` is what tells it from others of the same bytes and dimensions."""
        data = _bytes(tensor)
        key = hashlib.sha256(data).hexdigest()
        known = self._constants.get((key, tuple(dims), kind, detail))
        if known is None:
            index = self._data(data, key)
            known = self._define(dims, kind, quantization(), buffer=index)
            self._constants[key, tuple(dims), kind, detail] = known
        return known

    def _data(self, data: Any, key: str) -> int:
        self.store.add_named_data(key, data, _ALIGNMENT, self._external_tag)
        self._graph.constant_data.append(T["ConstantDataOffset"](2**64 - 1, data.nbytes, key))
        return len(self._graph.constant_data) - 1

    def _define(
        self,
        dims: Sequence[int],
        kind: str,
        quantization: Any,
        *,
        external: int = NONE,
        buffer: int = 0,
        flags: int = 0,
    ) -> int:
        number = len(self._graph.xvalues)
        record = T["XNNTensorValue"](
            datatype=T["XNNDatatype"][f"xnn_datatype_{kind}"],
            num_dims=len(dims),
            dims=list(dims),
            constant_buffer_idx=buffer,
            external_id=external,
            flags=flags,
            id_out=number,
        )
        if quantization is not None:
            record = T["XNNQuantizedTensorValue"](record, quantization)
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


def _bytes(tensor: torch.Tensor) -> Any:
    # as_strided: one element is side by side whatever its stride
    return tensor.detach().cpu().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(_bytes(tensor)).hexdigest()
