# SPDX-License-Identifier: BSD-3-Clause
# In: an ExportedProgram of any dialect. Out: JSON and three blobs of tensors; and the reverse. The JSON is that of
# ExecuTorch 1.5 (schema 5.4): the JSON of torch.export 2.5 with Edge operators and delegates. torch writes and reads
# the graph in its current schema; this file converts between the schemas.
"""`serialize`, `deserialize`, `save` and `load` of programs, as ExecuTorch stores them, in an ETRecord for example."""

from __future__ import annotations

import base64
import io
import json
import math
import operator
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple

import torch
from torch._export.serde import schema as torch_schema
from torch._export.serde import serialize as torch_serde
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

import torchette.exir.program.edge  # noqa: F401  sets LoweredBackendModule.to_executorch
from torchette import compat
from torchette.errors import FormatError, UnsupportedError
from torchette.exir import control_flow
from torchette.exir.arguments import node_arg, overload
from torchette.exir.delegation.delegate import (
    CompileSpec,
    LoweredBackendModule,
    executorch_call_delegate,
    is_delegate_call,
)
from torchette.exir.delegation.named_data import DataEntry, NamedDataStoreOutput
from torchette.exir.dialects._ops import to_edge_operators, to_torch_operators
from torchette.exir.graph import calls, copy_program, recompile
from torchette.exir.ops import FILE_NAMESPACES, is_operator

__getattr__ = compat.attributes(__name__)  # for ExecuTorch's names

VERSION = (5, 4)
_EDGE = "executorch.exir.dialects.edge.ops."
_BACKEND = "executorch.exir.dialects.backend.ops."
_CALL_DELEGATE = "torch.ops.higher_order.executorch_call_delegate"
# Metadata key of a call with several results: index -> debug handle and stack trace.
_ITEMS = "getitem_metadata"
# dtypes with different numbers: ExecuTorch's schema -> torch's schema.
_DTYPES = {14: 28, 15: 30, 16: 29}
# Fields of torch's schema that ExecuTorch's schema lacks.
_NEWER = {"is_hop_single_tensor_return", "kind", "forward_arg_names", "sym_float_values", "treespec_namedtuple_fields", "torch_version", "guards_code"}  # fmt: skip

# Replaces the call of a delegate while torch writes and reads the graph, because torch cannot store the call itself.
_library = torch.library.Library("torchette_serde", "DEF")
_library.define("delegate(str call) -> Tensor[]")
_STANDS_FOR_DELEGATE = "torch.ops.torchette_serde.delegate.default"


class SerializedArtifact(NamedTuple):
    """A program as bytes: JSON, and its tensors in the format of torch.save."""

    exported_program: bytes
    state_dict: bytes
    constants: bytes
    example_inputs: bytes


def serialize(exported_program: ExportedProgram) -> SerializedArtifact:
    """Returns a program as bytes. A delegate includes its original program.

    Raises:
        UnsupportedError: the format cannot store a node. The cause is the error of torch.
    """
    try:
        record, constants = _record(exported_program)
        inputs = exported_program.example_inputs
        return SerializedArtifact(
            json.dumps(record, cls=torch_serde.EnumEncoder).encode(),
            torch_serde.serialize_torch_artifact(dict(exported_program.state_dict)),
            torch_serde.serialize_torch_artifact(constants),
            b"" if inputs is None else torch_serde.serialize_torch_artifact(inputs),
        )
    except (UnsupportedError, KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        raise UnsupportedError(
            f"the program cannot be stored: {type(error).__name__}: {error}",
            hints=["omit the record of this program; the .pte file does not need it"],
        ) from error


def deserialize(artifact: SerializedArtifact) -> ExportedProgram:
    """Returns the program in these bytes. No code in the file is executed.

    Raises:
        FormatError: the bytes are damaged, an operator is not registered in this process, or the version is not
            supported.
    """
    try:
        return _program(
            json.loads(artifact.exported_program),
            _tensors(artifact.state_dict),
            _tensors(artifact.constants),
            _tensors(artifact.example_inputs) or None,
        )
    except (FormatError, KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        # torch's message contains the whole node; the last line describes the error.
        reason = str(error).strip().splitlines() or [""]
        raise FormatError(
            f"the stored program cannot be read: {type(error).__name__}: {reason[-1][:300]}",
            hints=[
                "write the file again; load the library of its custom operators first",
            ],
        ) from error


_MEMBERS = {
    "exported_program": "serialized_exported_program.json",
    "state_dict": "serialized_state_dict.pt",
    "constants": "serialized_constants.pt",
    "example_inputs": "serialized_example_inputs.pt",
}


def save(
    ep_save: ExportedProgram,
    f: str | os.PathLike[str] | IO[bytes],
    *,
    extra_files: dict[str, str] | None = None,
) -> None:
    """Writes a program, and additional texts, to a file."""
    artifact = serialize(ep_save)
    with zipfile.ZipFile(f, "w") as archive:
        for name, member in _MEMBERS.items():
            archive.writestr(member, getattr(artifact, name))
        archive.writestr("version", ".".join(map(str, VERSION)))
        for name, text in (extra_files or {}).items():
            archive.writestr(f"extra_files/{name}", text.encode())


def load(
    f: str | os.PathLike[str] | IO[bytes], *, extra_files: dict[str, str] | None = None
) -> ExportedProgram:
    """Returns the program of a file. Stores its additional texts in `extra_files`. Raises FormatError if it is
    damaged."""
    try:
        with zipfile.ZipFile(f) as archive:
            for name in archive.namelist():
                if extra_files is not None and name.startswith("extra_files/"):
                    extra_files[name.removeprefix("extra_files/")] = archive.read(name).decode()
            artifact = SerializedArtifact(*(archive.read(member) for member in _MEMBERS.values()))
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, NotImplementedError) as error:
        raise FormatError(
            f"not a stored program: {error}", hints=["save(program, path) writes such a file"]
        ) from error
    return deserialize(artifact)


# ---- writing ----


def _record(program: ExportedProgram) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the program as plain JSON data, and its constants."""
    edge = any(
        is_operator(node.target) and type(node.target).__module__ != "torch._ops" for node in calls(program)
    )
    copied = to_torch_operators(copy_program(program))
    for module in _modules(copied.graph_module):
        for node in module.graph.nodes:
            if is_delegate_call(node):
                _hide_delegate(node)
    writer = torch_serde.GraphModuleSerializer(copied.graph_signature, copied.module_call_graph)
    graph_module = torch_serde._dataclass_to_dict(writer.serialize(copied.graph_module))
    _walk(graph_module["graph"], copied.graph_module, lambda record, node: _write_node(record, node, edge))
    record = {
        "graph_module": _older(graph_module),
        "opset_version": {"aten": torch._C._get_max_operator_version()},
        "range_constraints": {
            name: {
                "min_val": -math.inf if limits.min_val is None else limits.min_val,
                "max_val": math.inf if limits.max_val is None else limits.max_val,
            }
            for name, limits in torch_serde.serialize_range_constraints(program.range_constraints).items()
        },
        "schema_version": dict(zip(("major", "minor"), VERSION, strict=True)),
        "verifiers": ["EDGE"] if edge else [verifier.dialect for verifier in program.verifiers],
        "dialect": "",
    }
    return record, {**program.constants, **writer.custom_objs}


def _modules(module: GraphModule) -> Iterator[GraphModule]:
    return (each for each in module.modules() if isinstance(each, GraphModule))


def _hide_delegate(node: Node) -> None:
    """Replaces the call of a delegate by a call that torch can write. The argument of the new call describes the
    delegate."""
    name, arguments = str(node_arg(node).target), node.args[1:]
    module = getattr(node.graph.owning_module, name)
    callee = node.args[0]
    call = {
        "name": name,
        "arguments": [_argument(argument) for argument in arguments],
        "module": json.dumps(_lowered(module), cls=torch_serde.EnumEncoder),
    }
    node.target, node.args = torch.ops.torchette_serde.delegate.default, (json.dumps(call),)
    node.meta["val"] = list(node.meta["val"])
    if isinstance(callee, Node) and not callee.users:
        node.graph.erase_node(callee)


def _argument(value: object) -> dict[str, Any]:
    """Returns the record of a delegate's argument."""
    if not isinstance(value, Node):
        kinds = {bool: "as_bool", int: "as_int", float: "as_float", str: "as_string"}
        return {kinds[type(value)]: value} if value is not None else {"as_none": []}
    stands_for = value.meta.get("val")
    if isinstance(stands_for, torch.SymInt):
        return {"as_sym_int": {"as_name": value.name}}
    if isinstance(stands_for, torch.SymBool):
        return {"as_sym_bool": {"as_name": value.name}}
    return {"as_tensor": {"name": value.name}}


def _lowered(module: LoweredBackendModule) -> dict[str, Any]:
    original = serialize(module.original_module)
    named = module.named_data_store_output
    return {
        "backend_id": module.backend_id,
        "processed_bytes": _text(module.processed_bytes),
        "compile_specs": [{"key": spec.key, "value": _text(spec.value)} for spec in module.compile_specs],
        "original_module": json.loads(original.exported_program),
        "original_state_dict": _text(original.state_dict),
        "original_constants": _text(original.constants),
        "named_data_store": None if named is None else json.dumps(_named(named)),
    }


def _named(store: NamedDataStoreOutput) -> dict[str, Any]:
    def entries(blobs: Mapping[str, DataEntry]) -> dict[str, Any]:
        return {key: {**entry._asdict(), "tensor_layout": None} for key, entry in blobs.items()}

    return {
        "buffers": [_text(buffer) for buffer in store.buffers],
        "pte_data": entries(store.pte_data),
        "external_data": {file: entries(blobs) for file, blobs in store.external_data.items()},
    }


def _text(data: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(bytes(data)).decode("ascii")


def _write_node(record: dict[str, Any], node: Node, edge: bool) -> None:
    """Adds the fields that torch's record of a node lacks."""
    handle = node.meta.get("debug_handle")
    if handle:
        record["metadata"]["debug_handle"] = str(handle)
    # The format has no records of getitem nodes.
    items = {
        user.args[1]: {key: user.meta[key] for key in ("debug_handle", "stack_trace") if user.meta.get(key)}
        for user in node.users
        if user.target is operator.getitem
    }
    if any(items.values()):
        record["metadata"][_ITEMS] = json.dumps(items)
    target = record["target"]
    if target == _STANDS_FOR_DELEGATE:
        call = json.loads(record["inputs"][0]["arg"]["as_string"])
        inputs = [{"name": call["name"], "arg": {"as_string": call["module"]}}]
        inputs += [
            {"name": f"delegate_arg_{index}", "arg": argument}
            for index, argument in enumerate(call["arguments"])
        ]
        results = record["outputs"][0]["as_tensors"]
        several = [{"as_tensor": result} for result in results]
        record.update(
            target=_CALL_DELEGATE,
            inputs=inputs,
            outputs=several if len(results) > 1 else [{"as_tensors": results}],
        )
    elif edge and target.startswith("torch.ops.") and is_operator(node.target):
        namespace, _, qualified = target.removeprefix("torch.ops.").partition(".")
        record["target"] = f"{_EDGE}{FILE_NAMESPACES.get(namespace, namespace)}.{qualified}"


def _walk(graph: dict[str, Any], module: GraphModule, visit: Callable[[dict[str, Any], Node], None]) -> None:
    """Calls `visit` with each record of a call and its node, including branches. Records of getitem do not exist."""
    nodes = [n for n in module.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
    for record, node in zip(graph["nodes"], nodes, strict=True):
        for argument in record["inputs"]:
            inner = argument["arg"].get("as_graph")
            if inner is not None:
                _walk(inner["graph"], getattr(module, inner["name"]), visit)
        visit(record, node)


def _older(value: object) -> Any:
    """Converts torch's data to ExecuTorch's schema."""
    if isinstance(value, list):
        return [_older(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"as_none"}:
        return {"as_none": []}
    if value.keys() == {"as_optional_tensor"}:
        return _older(value["as_optional_tensor"])
    if value.keys() in ({"as_float"}, {"as_floats"}):
        # JSON has no infinity. torch writes a word, ExecuTorch the literal that Python's JSON module reads as a float.
        return {
            key: [*map(float, content)] if isinstance(content, list) else float(content)
            for key, content in value.items()
        }
    if value.keys() == {"as_scalar_type"}:
        return {"as_scalar_type": _older_dtype(value["as_scalar_type"])}
    result = {key: _older(item) for key, item in value.items() if key not in _NEWER}
    if "dtype" in result and "layout" in result:
        result["dtype"] = _older_dtype(result["dtype"])
    if "module_call_graph" in result:
        result.pop("metadata", None)
    return result


def _older_dtype(number: int) -> int:
    return {newer: older for older, newer in _DTYPES.items()}.get(int(number), int(number))


# ---- reading ----


def _tensors(data: bytes) -> Any:
    """Returns the tensors that torch.save stored, without executing code."""
    return torch.load(io.BytesIO(data), weights_only=True) if data else {}


def _program(
    record: dict[str, Any], state: dict[str, torch.Tensor], constants: dict[str, torch.Tensor], inputs: Any
) -> ExportedProgram:
    version = record["schema_version"]
    if version["major"] != VERSION[0]:
        raise FormatError(
            f"the stored program has version {version['major']}.{version['minor']}, not {VERSION[0]}.x",
            hints=["write it with ExecuTorch 1.5 or Torchette"],
        )
    edge = record["verifiers"] == ["EDGE"]
    delegates: list[dict[str, Any]] = []
    torchs = _newer(record, delegates)
    torchs["schema_version"] = dict(zip(("major", "minor"), torch_schema.SCHEMA_VERSION, strict=True))
    torchs["verifiers"] = ["ATEN"] if edge else record["verifiers"]
    read = torch_serde._dict_to_dataclass(torch_schema.ExportedProgram, torchs)
    program = torch_serde.ExportedProgramDeserializer().deserialize(read, state, constants, inputs or b"")
    _walk(record["graph_module"]["graph"], program.graph_module, _read_metadata)
    for module in _modules(program.graph_module):
        for node in list(module.graph.nodes):
            if node.op == "call_function" and str(node.target) == "torchette_serde.delegate.default":
                _show_delegate(module, node, delegates[int(node.args[0])])
        _normalize_calls(module)
    program = to_edge_operators(program) if edge else program
    recompile(program.graph_module)
    return program


def _normalize_calls(module: GraphModule) -> None:
    """Converts calls to the form of torch.export, which passes expect. torch reads arguments with a default as keyword
    arguments, the operands of a branch as a list, and a getitem for every result of a call, used or not."""
    for node in list(module.graph.nodes):
        if node.target is operator.getitem and not node.users:
            module.graph.erase_node(node)
        elif is_operator(node.target):
            _positional(node)
        elif control_flow.name(node.target):
            node.args = tuple(tuple(arg) if isinstance(arg, list) else arg for arg in node.args)


def _positional(node: Node) -> None:
    """Makes arguments positional, except those that the schema declares as keyword-only."""
    kwargs, schema = dict(node.kwargs), overload(node)._schema.arguments
    last = max(
        (i for i, argument in enumerate(schema) if argument.name in kwargs and not argument.kwarg_only),
        default=-1,
    )
    positional = [
        kwargs.pop(argument.name, argument.default_value) for argument in schema[len(node.args) : last + 1]
    ]
    node.args, node.kwargs = (*node.args, *positional), kwargs


def _newer(value: object, delegates: list[dict[str, Any]]) -> Any:
    """Converts ExecuTorch's data to torch's schema. Moves calls of delegates to the list."""
    if isinstance(value, list):
        return [_newer(item, delegates) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"as_none"}:
        return {"as_none": True}
    if value.keys() == {"as_scalar_type"}:
        return {"as_scalar_type": _DTYPES.get(value["as_scalar_type"], value["as_scalar_type"])}
    target = value.get("target")
    if target == _CALL_DELEGATE:
        delegates.append(value)
        tensors = [out["as_tensor"] for out in value["outputs"] if "as_tensor" in out]
        return {
            "name": value["name"],
            "target": _STANDS_FOR_DELEGATE,
            "inputs": [{"name": "call", "arg": {"as_string": str(len(delegates) - 1)}}],
            "outputs": [{"as_tensors": tensors}] if tensors else value["outputs"],
            "metadata": value["metadata"],
        }
    result = {key: _newer(item, delegates) for key, item in value.items()}
    if isinstance(target, str) and target.startswith((_EDGE, _BACKEND)):
        namespace, _, qualified = target.removeprefix(_EDGE).removeprefix(_BACKEND).partition(".")
        ours = {theirs: name for name, theirs in FILE_NAMESPACES.items()}
        result["target"] = f"torch.ops.{ours.get(namespace, namespace)}.{qualified}"
    if "dtype" in result and "layout" in result:
        result["dtype"] = _DTYPES.get(result["dtype"], result["dtype"])
    return result


def _read_metadata(record: dict[str, Any], node: Node) -> None:
    handle = record["metadata"].get("debug_handle")
    if handle:
        node.meta["debug_handle"] = int(handle)
    items = json.loads(record["metadata"].get(_ITEMS, "{}"))
    for user in node.users:
        if user.target is operator.getitem:
            user.meta.update(items.get(str(user.args[1]), {}))


def _show_delegate(module: GraphModule, node: Node, record: dict[str, Any]) -> None:
    """Replaces the placeholder operator of a delegate by the call of the delegate."""
    called, *operands = record["inputs"]
    stored = json.loads(called["arg"]["as_string"])
    original = _program(
        stored["original_module"],
        _tensors(base64.b64decode(stored["original_state_dict"])),
        _tensors(base64.b64decode(stored["original_constants"])),
        None,
    )
    specs = [CompileSpec(spec["key"], base64.b64decode(spec["value"])) for spec in stored["compile_specs"]]
    named = stored.get("named_data_store")
    lowered = LoweredBackendModule(
        original,
        stored["backend_id"],
        base64.b64decode(stored["processed_bytes"]),
        specs,
        None if named is None else _named_data(json.loads(named)),
    )
    setattr(module, called["name"], lowered)
    nodes = {each.name: each for each in module.graph.nodes}
    arguments = []
    for one in operands:
        ((kind, value),) = one["arg"].items()
        if kind in ("as_tensor", "as_sym_int", "as_sym_bool"):
            value = nodes[value.get("name") or value["as_name"]]
        arguments.append(None if kind == "as_none" else value)
    with module.graph.inserting_before(node):
        callee = module.graph.get_attr(called["name"])
    node.target, node.args = executorch_call_delegate, (callee, *arguments)
    node.meta["val"] = tuple(node.meta["val"])


def _named_data(record: dict[str, Any]) -> NamedDataStoreOutput:
    def entries(blobs: Mapping[str, Any]) -> dict[str, DataEntry]:
        return {key: DataEntry(entry["buffer_index"], entry["alignment"]) for key, entry in blobs.items()}

    return NamedDataStoreOutput(
        [base64.b64decode(buffer) for buffer in record["buffers"]],
        entries(record["pte_data"]),
        {file: entries(blobs) for file, blobs in record["external_data"].items()},
    )
