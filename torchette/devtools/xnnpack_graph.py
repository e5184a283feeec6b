# SPDX-License-Identifier: BSD-3-Clause
# In: the payload of an XNNPACK delegate. Out: the nodes and values of its graph.
"""Reads the graph in an XNNPACK delegate of Torchette or ExecuTorch; the format is `torchette/schema/xnnpack.fbs`."""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchette.errors import FormatError
from torchette.format import flatbuffer
from torchette.format.schema import Record, Schema, load

BACKEND = "XnnpackBackend"
_NONE = 0xFFFFFFFF  # the id of no value
_HEADER = struct.Struct("<4x4sHII")  # magic, length of the header, offset and size of the graph

# XNNPACK datatype -> dtype and bits of an element.
_TYPES = {
    "fp32": ("float32", 32),
    "fp16": ("float16", 16),
    "bf16": ("bfloat16", 16),
    "qint8": ("int8", 8),
    "quint8": ("uint8", 8),
    "qint32": ("int32", 32),
    "qcint8": ("int8", 8),
    "qcint32": ("int32", 32),
    "qcint4": ("int4", 4),
    "qbint4": ("int4", 4),
    "qdint8": ("int8", 8),
    "qpint8": ("int8", 8),
    "int32": ("int32", 32),
    "pfp32": ("float32", 32),
}


@dataclass
class Quantization:
    """Affine quantization: real = (q - zero_point) * scale."""

    scheme: str  # per tensor, per channel, per group, or per row when it runs (dynamic)
    scales: list[float]  # empty if the file contains none
    zero_points: list[int]
    axis: int | None = None
    group: int | None = None  # elements per group


@dataclass
class DelegateValue:
    """A tensor inside a delegate."""

    number: int
    dtype: str
    sizes: list[int]
    nbytes: int
    constant: str | None  # the name of its stored bytes, or "inline"
    argument: int | None  # index among the delegate's arguments
    quantization: Quantization | None


@dataclass
class DelegateNode:
    """An operator inside a delegate; `inputs` and `outputs` are numbers of values."""

    op: str
    handle: int  # debug handle of the source node
    inputs: list[int]
    outputs: list[int]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class DelegateGraph:
    """The nodes in execution order, and the values by number."""

    nodes: list[DelegateNode]
    values: dict[int, DelegateValue]


@functools.cache
def _schema() -> Schema:
    return load(Path(__file__).parents[1] / "schema" / "xnnpack.fbs")


def read(payload: memoryview, named: Mapping[str, memoryview]) -> DelegateGraph:
    """Decodes the graph in a delegate's payload.

    Args:
        payload: the delegate's bytes.
        named: the program's named data, which contains the constants.

    Raises:
        FormatError: the payload is not an XNNPACK graph, or it is damaged.
    """
    view = memoryview(payload)
    constants = view[len(view) :]
    if bytes(view[4:8]) == b"XH00" and len(view) >= 30:
        _, _, start, size = _HEADER.unpack_from(view)
        behind, more = struct.unpack_from("<IQ", view, _HEADER.size)
        if start + size > len(view) or behind + more > len(view):
            raise FormatError(
                "the header of the XNNPACK delegate refers to bytes after the end of the payload"
            )
        constants, view = view[behind : behind + more], view[start : start + size]
    if bytes(view[4:6]) != b"XN":
        raise FormatError("the delegate's payload is not an XNNPACK graph")
    graph = flatbuffer.decode(_schema(), view)

    def scales(parameters: Record) -> list[float]:
        """Returns the scales, which are stored in the record, in the constant data, or in the program's named data."""
        if parameters.scale:
            return list(parameters.scale)
        index = parameters.scale_buffer_idx
        if not 0 < index < len(graph.constant_data):
            return []
        place = graph.constant_data[index]
        inside = constants[place.offset : place.offset + place.size]
        data = named.get(place.named_key or "", inside)
        count = parameters.num_scales
        if not count:
            return []
        if len(data) >= 4 * count:
            return list(struct.unpack_from(f"<{count}f", data))
        if len(data) >= 2 * count:  # bfloat16: the upper half of a float32
            halves = struct.unpack_from(f"<{count}H", data)
            return [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves]
        return []

    values = {}
    for record in graph.xvalues:
        union = record.xvalue_union
        if union is None:
            raise FormatError("a value of the XNNPACK delegate is empty")
        tensor = getattr(union, "tensor_value", union)
        if tensor is None:
            raise FormatError("a value of the XNNPACK delegate has no tensor")
        values[tensor.id_out] = _value(tensor, getattr(union, "quant_params", None), graph, scales)
    return DelegateGraph([_node(record, values) for record in graph.xnodes], values)


def _value(
    tensor: Record, parameters: Any, graph: Record, scales: Callable[[Record], list[float]]
) -> DelegateValue:
    name = tensor.datatype.name.removeprefix("xnn_datatype_")
    dtype, bits = _TYPES.get(name, (name, 0))
    constant = None
    if tensor.constant_buffer_idx:
        listed = graph.constant_data
        index = tensor.constant_buffer_idx
        constant = (listed[index].named_key if index < len(listed) else "") or "inline"
    quantization = None
    kind = type(parameters).__name__
    if kind == "PerTensorQuant":
        quantization = Quantization("per tensor", [parameters.scale], [parameters.zero_point])
    elif kind == "PerChannelQuant":
        quantization = Quantization("per channel", scales(parameters), [], parameters.channel_dim)
    elif kind == "PerChannelGroupQuant":
        group = parameters.group_size
        quantization = Quantization("per group", scales(parameters), [], parameters.channel_dim, group)
    elif kind == "PerTokenDynamicQuant":
        quantization = Quantization("per row when it runs", [], [])
    return DelegateValue(
        number=tensor.id_out,
        dtype=dtype,
        sizes=list(tensor.dims),
        nbytes=-(-math.prod(tensor.dims) * bits // 8),
        constant=constant,
        argument=None if tensor.external_id == _NONE else tensor.external_id,
        quantization=quantization,
    )


def _node(record: Record, values: Mapping[int, DelegateValue]) -> DelegateNode:
    call = record.xnode_union
    if call is None:
        raise FormatError("a node of the XNNPACK delegate is empty")
    node = DelegateNode(type(call).__name__.removeprefix("XNN").lstrip("_"), record.debug_handle, [], [])
    for item in dataclasses.fields(call):
        field_value = getattr(call, item.name)
        if not item.name.endswith("_id"):
            if field_value not in (0, [], None) and item.name != "num_dims":
                node.settings[item.name] = field_value
        elif field_value != _NONE and field_value in values:
            (node.outputs if item.name.startswith("output") else node.inputs).append(field_value)
    if node.op.startswith("Concatenate"):  # the record always has five input fields
        del node.inputs[int(node.op[len("Concatenate") :]) :]
    limits = record.output_min_max
    if limits is not None and (math.isfinite(limits.output_min) or math.isfinite(limits.output_max)):
        node.settings["clamp"] = [str(limits.output_min), str(limits.output_max)]
    return node
