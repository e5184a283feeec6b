# SPDX-License-Identifier: BSD-3-Clause
# In: values, nodes and constants, one at a time. Out: the bytes that this backend's runtime and ExecuTorch's runtime read.
"""The payload: a header, the graph of `torchette/schema/xnnpack.fbs`, and the names of its constants.

The header contains 4 zero bytes and "XH00". Little-endian fields follow: the length of the header (u16: 30), offset and size of
the graph (u32, u32), offset and size of the constants after it (u32, u64). Constants are stored in the program's named data, under
the SHA-256 of their bytes, so that delegates share them.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchette.exir.delegation.named_data import NamedDataStore, NamedDataStoreOutput
from torchette.format import flatbuffer
from torchette.format.schema import Record, load

SCHEMA = load(Path(__file__).parents[2] / "schema" / "xnnpack.fbs")
T = SCHEMA.types


def __getattr__(name: str) -> Any:
    if name not in T:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return T[name]


NONE = 0xFFFFFFFF  # the id of an absent value
_HEADER = struct.Struct("<4x4sHIIIQ")
_ALIGNMENT = 16
_INPUT, _OUTPUT = 1, 2
_LAYERS = tuple(
    T[name] for name in ("XNNFullyConnected", "XNNConv2d", "XNNDepthwiseConv2d", "XNNConvTranspose2d")
)
_PACKED = ("filter_id", "bias_id")  # of layers
_FLOAT32 = T["XNNDatatype"]["xnn_datatype_fp32"]


@dataclass(frozen=True)
class Element:
    """The type of a value's elements: XNNPACK's name of the type, and the quantization of integers.

    Attributes:
        type: XNNPACK's name of the type, for example "fp32".
        scale: of "qint8" and "qint32": `real = (q - zero_point) * scale`.
        zero_point: of "qint8" and "qint32".
        inner: of "qdint8": the number of last dimensions that share a scale and zero point, which are chosen at run time.
    """

    type: str
    scale: float = 0.0
    zero_point: int = 0
    inner: int = 1

    def quantization(self) -> Any:
        """Returns the payload's record of the quantization, or None for floating point."""
        if self.type == "qdint8":
            return T["PerTokenDynamicQuant"](num_nonbatch_dims=self.inner)
        return T["PerTensorQuant"](self.scale, self.zero_point) if self.scale else None


FP32, FP16 = Element("fp32"), Element("fp16")
# Each row, or each image, has its own scale and zero point.
DYNAMIC, DYNAMIC_IMAGE = Element("qdint8"), Element("qdint8", inner=3)
FLOATS = {torch.float32: FP32, torch.float16: FP16}


class Payload:
    """Collects a graph. The ids that `value` and `constant` return identify its values."""

    def __init__(self, arguments: int, external_tag: str | None = None) -> None:
        self._blobs: list[Any] = [None]  # the bytes of constants, by index
        self._rows: set[int] = set()  # ids of float32 weights of layers with one row of input
        self.external_tag = external_tag  # the data file of the constants that are added next
        self._tags: list[str | None] = [None]  # the data file of each constant, or None
        self._graph = T["XNNGraph"](
            version="0", num_externs=arguments, constant_data=[T["ConstantDataOffset"](0, 0, "")]
        )
        self._constants: dict[tuple[Any, ...], int] = {}

    def value(
        self, dims: Sequence[int], element: Element, *, argument: int | None = None, output: bool = False
    ) -> int:
        """Adds a value with these dimensions and returns its id. `argument`: its index among the delegate's arguments."""
        flags = 0 if argument is None else _OUTPUT if output else _INPUT
        external = NONE if argument is None else argument
        value_id = self._define(dims, element.type, element.quantization(), external=external, flags=flags)
        if argument is not None:
            (self._graph.output_ids if output else self._graph.input_ids).append(value_id)
        return value_id

    def constant(self, tensor: torch.Tensor, element: Element | None = None) -> int:
        """Adds a stored tensor and returns its id; equal tensors share a value. `element`: by default the tensor's dtype, which
        must be float32 or float16."""
        element = element or FLOATS[tensor.dtype]
        dims = list(tensor.shape) or [1]
        return self._stored(tensor, dims, element.type, element, element.quantization)

    def channelwise(self, tensor: torch.Tensor, scales: torch.Tensor, dim: int) -> int:
        """Adds stored integers (int8 or int32) with a scale for each index of dimension `dim`; returns the id."""
        kind = {torch.int8: "qcint8", torch.int32: "qcint32"}[tensor.dtype]

        def quantization() -> Any:
            index = self._scales(scales.to(torch.float32))
            return T["PerChannelQuant"](channel_dim=dim, scale_buffer_idx=index, num_scales=scales.numel())

        return self._stored(tensor, list(tensor.shape), kind, (dim, _digest(scales)), quantization)

    def four_bits(self, tensor: torch.Tensor, scales: torch.Tensor) -> int:
        """Adds stored weights (outputs, inputs) of int8 values between -8 and 7, two in a byte; returns the id.

        Args:
            scales: (outputs,), or (outputs, groups) if the inputs of an output are divided into groups.
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
        return self._blob(_bytes(scales), f"scale_{_digest(scales)}")

    def _stored(
        self,
        tensor: torch.Tensor,
        dims: Sequence[int],
        kind: str,
        detail: object,
        quantization: Callable[[], object],
    ) -> int:
        """Adds a constant and returns its id. `detail` distinguishes constants with the same bytes and dimensions."""
        data = _bytes(tensor)
        key = hashlib.sha256(data).hexdigest()
        existing = self._constants.get((key, tuple(dims), kind, detail))
        if existing is None:
            index = self._blob(data, key)
            existing = self._define(dims, kind, quantization(), buffer=index)
            self._constants[key, tuple(dims), kind, detail] = existing
        return existing

    def _blob(self, data: memoryview, key: str) -> int:
        self._blobs.append(data)
        self._tags.append(self.external_tag)
        self._graph.constant_data.append(T["ConstantDataOffset"](2**64 - 1, data.nbytes, key))
        return len(self._graph.constant_data) - 1

    def _define(
        self,
        dims: Sequence[int],
        kind: str,
        quantization: object,
        *,
        external: int = NONE,
        buffer: int = 0,
        flags: int = 0,
    ) -> int:
        value_id = len(self._graph.xvalues)
        record = T["XNNTensorValue"](
            datatype=T["XNNDatatype"][f"xnn_datatype_{kind}"],
            num_dims=len(dims),
            dims=list(dims),
            constant_buffer_idx=buffer,
            external_id=external,
            flags=flags,
            id_out=value_id,
        )
        if quantization is not None:
            record = T["XNNQuantizedTensorValue"](record, quantization)
        self._graph.xvalues.append(T["XValue"](record))
        return value_id

    def node(self, kind: str, handle: int, limits: tuple[float, float] | None = None, **fields: Any) -> None:
        """Adds a node of a kind. `handle`: the debug handle of its source; `limits`: the range that clamps its results."""
        node = T["XNode"](T[kind](**fields), handle, T["OutputMinMax"](*limits) if limits else None)
        self._graph.xnodes.append(node)
        if kind == "XNNFullyConnected" or (kind == "XNNConv2d" and fields["groups"] == 1):
            window = fields.get("kernel_height", 1) * fields.get("kernel_width", 1)
            source, weights = (
                _tensor(self._graph.xvalues[fields[slot]]) for slot in ("input1_id", "filter_id")
            )
            if window == math.prod(source.dims[:-1]) == 1 and weights.datatype == _FLOAT32:
                self._rows.add(fields["filter_id"])

    def tap(self, handle: int, value_id: int, layout: int, dtype: torch.dtype) -> None:
        """Records that a value is the result of the node with this debug handle. See xnnpack.fbs for `layout`.

        Does nothing if the value has another dtype than the node, for example the quantized rows of a dequantized tensor.
        """
        tensor_value = _tensor(self._graph.xvalues[value_id])
        kinds = {torch.float32: "fp32", torch.float16: "fp16", torch.int8: "qint8"}
        if (
            kinds.get(dtype) == tensor_value.datatype.name.removeprefix("xnn_datatype_")
            and not tensor_value.constant_buffer_idx
        ):
            self._graph.tap_handles.append(handle)
            self._graph.tap_values.append(value_id)
            self._graph.tap_layouts += bytes([layout])

    def finish(self) -> tuple[bytes, NamedDataStoreOutput]:
        """Returns the payload's bytes, and its constants by name in the order in which the runtime requests them.

        Float32 weights of layers with one row of input are last and adjacent, for a runtime that reads them in place. Neither of
        our runtimes does (decision 29).
        """
        self._name_by_use()
        values = self._graph.xvalues
        self._graph.xvalues = [
            *(value for value_id, value in enumerate(values) if value_id not in self._rows),
            *(values[value_id] for value_id in sorted(self._rows)),
        ]
        store = NamedDataStore()
        for value in self._graph.xvalues:
            scales = getattr(getattr(value.xvalue_union, "quant_params", None), "scale_buffer_idx", 0)
            for index in filter(None, (_tensor(value).constant_buffer_idx, scales)):
                key = self._graph.constant_data[index].named_key
                store.add_named_data(key, self._blobs[index], _ALIGNMENT, self._tags[index])
        return self._encoded(), store.get_named_data_store_output()

    def _name_by_use(self) -> None:
        """Names constants that nodes read at run time differently from constants that nodes pack.

        ExecuTorch's runtime unmaps a constant, by name, after any node has packed it. Here nodes may both pack and read a constant.
        """
        values, data = self._graph.xvalues, self._graph.constant_data
        packed: dict[int, list[tuple[Any, str]]] = {}  # constant -> (node, field) pairs
        read = set()
        for node in (entry.xnode_union for entry in self._graph.xnodes):
            named = {
                slot: value_id
                for slot in (entry.name for entry in dataclasses.fields(node))
                if slot.endswith("_id")
                and (value_id := getattr(node, slot)) != NONE
                and _tensor(values[value_id]).constant_buffer_idx
            }
            packs = _PACKED if isinstance(node, _LAYERS) and "filter_id" in named else ()
            for slot, value_id in named.items():
                if slot in packs:
                    packed.setdefault(value_id, []).append((node, slot))
                else:
                    read.add(value_id)
        for value_id in sorted(read):
            record = data[_tensor(values[value_id]).constant_buffer_idx]
            if value_id in packed:
                value = copy.deepcopy(values[value_id])
                tensor = _tensor(value)
                for each in (self._blobs, self._tags):
                    each.append(each[tensor.constant_buffer_idx])
                tensor.constant_buffer_idx, tensor.id_out = len(data), len(values)
                data.append(copy.copy(record))
                values.append(value)
                for node, slot in packed[value_id]:
                    setattr(node, slot, tensor.id_out)
                if value_id in self._rows:
                    self._rows ^= {value_id, tensor.id_out}
            record.named_key = f"read_{record.named_key}"

    def _encoded(self) -> bytes:
        graph = bytes(flatbuffer.encode(SCHEMA, self._graph))
        start = -(-_HEADER.size // _ALIGNMENT) * _ALIGNMENT
        end = start + -(-len(graph) // _ALIGNMENT) * _ALIGNMENT
        header = _HEADER.pack(b"XH00", _HEADER.size, start, len(graph), end, 0)
        return header + bytes(start - len(header)) + graph + bytes(end - start - len(graph))


def _tensor(value: Record) -> Any:
    """Returns the record that contains the dimensions and the data."""
    union = value.xvalue_union
    return union.tensor_value if isinstance(union, T["XNNQuantizedTensorValue"]) else union


def _bytes(tensor: torch.Tensor) -> Any:
    # as_strided: a tensor of one element is contiguous with any stride
    return tensor.detach().cpu().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(_bytes(tensor)).hexdigest()
