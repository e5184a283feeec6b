# SPDX-License-Identifier: BSD-3-Clause
# In: the payload of a delegate. Out: the kernels that its backend calls on the device, for a selective build.
"""Kernels that delegates require: those of XNNPACK delegates, if kernels of the library run them."""

from __future__ import annotations

from torchette.build.sources import PACKAGE
from torchette.errors import FormatError
from torchette.format import flatbuffer
from torchette.format.schema import load
from torchette.schema.xnnpack import INTEGER_KERNELS, KERNELS

DTYPES = {"XnnpackBackend": frozenset({"float32"})}
"""The dtypes with which a backend's kernels compute, in addition to those of its arguments."""
_LIMITS = "aten::clamp.out"  # limits of results, see schema/xnnpack.def
_CONVERSION = "aten::_to_copy.out"  # float16 to float32 and back
# conversions between floats and integers, see schema/xnnpack.def
_BETWEEN = ["cpu::quantize.out", "cpu::dequantize.out", "cpu::lookup.out"]


def operators(backend: str, payload: memoryview) -> frozenset[str]:
    """Returns the full names of the kernels that a backend calls for a payload.

    Empty if the backend has its own kernels, or if the payload is damaged.
    """
    if backend != "XnnpackBackend":
        return frozenset()
    schema = load(PACKAGE / "schema" / "xnnpack.fbs")
    # The graph follows an optional header: torchette/backends/xnnpack/payload.py
    start = int.from_bytes(payload[10:14], "little") if bytes(payload[4:8]) == b"XH00" else 0
    try:
        graph = flatbuffer.decode(schema, payload[start:])
    except FormatError:
        return frozenset()
    kinds = {type(node.xnode_union).__name__ for node in graph.xnodes}
    called, tables = [_LIMITS], [KERNELS]
    if any(_is_half(value.xvalue_union) for value in graph.xvalues):
        called.append(_CONVERSION)
    if any(hasattr(value.xvalue_union, "quant_params") for value in graph.xvalues):
        called += _BETWEEN
        tables.append(INTEGER_KERNELS)
    for kind in kinds:
        for table in tables:
            called += table.get(kind, ())
    return frozenset(called)


def _is_half(value: object) -> bool:
    """Whether a value of an XNNPACK graph has dtype float16."""
    types = load(PACKAGE / "schema" / "xnnpack.fbs").types["XNNDatatype"]
    return bool(getattr(value, "datatype", None) == types["xnn_datatype_fp16"])
