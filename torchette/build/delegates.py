# SPDX-License-Identifier: BSD-3-Clause
# In: the bytes of a delegate. Out: the kernels that its backend calls on the device, for a build that leaves others out.
"""What delegates need of the kernel library: XNNPACK's, where our kernels run them."""

from __future__ import annotations

from torchette.build.sources import PACKAGE
from torchette.errors import FormatError
from torchette.format import flatbuffer
from torchette.format.schema import load
from torchette.schema.xnnpack import INTEGER_KERNELS, KERNELS

DTYPES = {"XnnpackBackend": frozenset({"float32"})}
"""The dtypes with which a backend's kernels compute, besides those of its arguments."""
_LIMITS = "aten::clamp.out"  # of results, as schema/xnnpack.def says
_CONVERSION = "aten::_to_copy.out"  # of float16 to float32 and back
_BETWEEN = [
    "cpu::quantize.out",
    "cpu::dequantize.out",
    "cpu::lookup.out",
]  # floats and whole numbers, likewise


def operators(backend: str, payload: memoryview) -> frozenset[str]:
    """The full names of the kernels that a backend calls for these bytes; none where it has kernels of its own, or
    refuses the bytes."""
    if backend != "XnnpackBackend":
        return frozenset()
    schema = load(PACKAGE / "schema" / "xnnpack.fbs")
    # behind a header, where there is one: torchette/backends/xnnpack/payload.py
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
    """Whether a value of an XNNPACK graph is of float16."""
    types = load(PACKAGE / "schema" / "xnnpack.fbs").types["XNNDatatype"]
    return bool(getattr(value, "datatype", None) == types["xnn_datatype_fp16"])
