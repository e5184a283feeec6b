# SPDX-License-Identifier: BSD-3-Clause
"""The .etdp file: a profile of a method's runs, in the format of ExecuTorch's ETDump.

`load` reads a file or its bytes; `dumps` returns the bytes of a record. The record classes are those of
`torchette/schema/etdump.fbs`: `etdump.ETDump`, `etdump.RunData`, `etdump.ProfileEvent`, ...
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchette.errors import FormatError
from torchette.files import file_error
from torchette.format import flatbuffer, schema
from torchette.format.schema import Record

if TYPE_CHECKING:
    from typing_extensions import Buffer

SCHEMA = schema.load(Path(__file__).parent.parent / "schema" / "etdump.fbs")

_OTHER_FILES = {b"ET": "a program (.pte)", b"BP": "a bundled program (.bpte)", b"FT": "a data file (.ptd)"}


def __getattr__(name: str) -> Any:
    try:
        return SCHEMA.types[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def dumps(record: Record, *, size_prefixed: bool = True) -> bytes:
    """Returns the bytes of a file with this ETDump record, preceded by their count as in files of all runtimes. The
    count is omitted if `size_prefixed` is false. Raises FormatError if the schema cannot represent the record."""
    return bytes(flatbuffer.encode(SCHEMA, record, size_prefixed=size_prefixed))


def load(source: str | Path | Buffer) -> Any:
    """Returns the ETDump record of a file (path or bytes-like object), with or without a size prefix.

    Equal parts may share one object, so do not modify the record. Bytes after the dump, such as the unused end of a
    buffer, are ignored.

    Raises:
        ModelNotFoundError: the file does not exist.
        FormatError: the file is damaged or has another format.
    """
    if not isinstance(source, (str, Path)):
        return _read(memoryview(source).cast("B"))
    try:
        return _read(memoryview(Path(source).read_bytes()))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise file_error(error, ["executor_runner --etdump_path writes such a file"]) from None
    except FormatError as error:
        error.where = (str(source), *error.where)
        raise


def _read(view: memoryview) -> Any:
    if bytes(view[8:12]) == SCHEMA.identifier:
        size = 4 + int.from_bytes(view[:4], "little")
        if size > len(view):
            raise FormatError(
                f"the dump is truncated: the file has {len(view)} bytes, but its size prefix requires {size}",
                hints=["copy the whole buffer from the device: ETDumpResult has its size"],
            )
        return _checked(flatbuffer.decode(SCHEMA, view[:size], start=4))
    if bytes(view[4:8]) == SCHEMA.identifier:
        return _checked(flatbuffer.decode(SCHEMA, view))
    kind = _OTHER_FILES.get(bytes(view[4:6]))
    actual = f"they are {bytes(view[8:12])!r}" if len(view) >= 12 else f"the file has {len(view)} bytes"
    raise FormatError(
        f"not an .etdp file: bytes 8 to 11 should be {SCHEMA.identifier.decode()}, {actual}",
        hints=[
            f"this looks like {kind}" if kind else "ETDumpGen, executor_runner and Python write such files"
        ],
    )


# ValueType -> the member of a Value record that contains the value
_MEMBERS = {
    "Int": "int_value",
    "Bool": "bool_value",
    "Float": "float_value",
    "Double": "double_value",
    "Tensor": "tensor",
    "TensorList": "tensor_list",
}


def _checked(dump: Record) -> Any:
    """Checks that each event is of one kind and that values match their types. Returns the record."""
    for run_index, run in enumerate(dump.run_data):
        for event_index, event in enumerate(run.events):
            parts = (event.profile_event, event.allocation_event, event.debug_event)
            problem = ""
            if sum(part is not None for part in parts) != 1:
                problem = "is not one of a profile, an allocation and a debug event"
            elif event.debug_event is not None:
                problem = _value_problem(event.debug_event.debug_entry)
            if problem:
                raise FormatError(
                    f"run {run_index}, event {event_index} {problem}", hints=["write or copy the dump again"]
                )
    return dump


def _value_problem(value: Record | None) -> str:
    if value is None:
        return "has no value"
    member = _MEMBERS.get(value.val.name)
    if member is not None and getattr(value, member) is None:
        return f"has a value of type {value.val.name} without {member}"
    tensors = [value.tensor] if value.tensor is not None else []
    tensors += value.tensor_list.tensors if value.tensor_list is not None else []
    for tensor in tensors:
        if any(size < 0 for size in tensor.sizes):
            return f"has a tensor of sizes {tensor.sizes}"
        if len(tensor.strides) not in (0, len(tensor.sizes)):
            return f"has a tensor of {len(tensor.sizes)} dimensions with {len(tensor.strides)} strides"
    return ""
