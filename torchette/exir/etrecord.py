# SPDX-License-Identifier: BSD-3-Clause
# In: the programs of all compile stages, and the data of each instruction. Out: one zip file in the format of
# ExecuTorch 1.5. Reading a file needs torch only when a program in it is requested.
"""ETRecord: the data that maps events of a device to the model.

>>> program = to_edge(exported, generate_etrecord=True).to_executorch()
>>> program.get_etrecord().save("net.etrecord")
>>> parse_etrecord("net.etrecord").nodes()[0].stack_trace
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from torchette.devtools.inspect import operator_names
from torchette.errors import FormatError, InputError, InputTypeError
from torchette.files import file_error
from torchette.methods import by_method

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from torchette.devtools.bundle import BundledProgram

# Names of members in the file.
IDENTIFIER = "ETRECORD_V0"
EXPORTED_PROGRAM = "exported_program"
EDGE_PROGRAM = "edge_dialect_exported_program"
EXPORT_GRAPH_ID = "export_graph_id"
REFERENCE_OUTPUTS = "reference_outputs"
REPRESENTATIVE_INPUTS = "representative_inputs"
_MAPS = ("debug_handle_map", "delegate_map", "instruction_id_to_num_outs_map")
_PARTS = ("state_dict", "constants", "example_inputs")  # the members of a program in addition to its JSON
# The operators of each method, which tell whether a record belongs to a program. ExecuTorch ignores a member whose name
# ends like this.
_OPERATORS = "torchette_operators_constants"
_RESERVED = {IDENTIFIER, EXPORTED_PROGRAM, EDGE_PROGRAM, EXPORT_GRAPH_ID, "et_dialect_graph_module", REFERENCE_OUTPUTS, REPRESENTATIVE_INPUTS, *_MAPS}  # fmt: skip
_FORWARD = "forward"
_REMEDY = "generate_etrecord(path, edge_program, executorch_program) writes such a file."


@dataclass(frozen=True)
class GraphNode:
    """A call in a recorded graph."""

    name: str
    op: str  # such as aten.linear.default
    debug_handle: int | None
    stack_trace: str | None
    module_stack: dict[str, tuple[str, str]]  # key -> (path, type), outermost first

    @property
    def module_path(self) -> str:
        """The path of the innermost module, such as ``layers.0.attention``; empty for the model itself."""
        return next(reversed(self.module_stack.values()), ("", ""))[0]


class _Stored(NamedTuple):
    """A program as the bytes of its members in a file."""

    exported_program: bytes
    state_dict: bytes
    constants: bytes
    example_inputs: bytes

    def program(self) -> Any:
        from torchette.exir.serde.serialize import SerializedArtifact, deserialize

        return deserialize(SerializedArtifact(*self))


class _StoredValues(NamedTuple):
    """A member that torch.save wrote."""

    name: str
    data: bytes

    def values(self) -> Any:
        """Returns the content of the member, without executing code in it."""
        import torch

        try:
            return torch.load(io.BytesIO(self.data), weights_only=True)
        except Exception as error:
            reason = str(error).splitlines()
            raise FormatError(
                f"member {self.name} cannot be read: {reason[0] if reason else type(error).__name__}",
                hints=[
                    "older versions of ExecuTorch wrote such members in an unsafe format: generate the record again"
                ],
            ) from None


class ETRecord:
    """The stages of a program, and the origin of each instruction.

    The programs of a file are deserialized when they are first used. `ExecutorchProgramManager.get_etrecord()`,
    `generate_etrecord` and `parse_etrecord` return or write records.

    Args:
        exported_program: the captured program.
        edge_dialect_program: the Edge program, or method -> program.
        graph_map: name and method -> additional program.

    Attributes:
        export_graph_id: identifies the captured graph in the `from_node` metadata of later graphs.
        operators: method -> operators of the instructions of each chain; None for a file of ExecuTorch.

    Example:
        >>> record = parse_etrecord("net.etrecord")
        >>> record.nodes()[0].module_path
    """

    def __init__(
        self,
        exported_program: ExportedProgram | _Stored | None = None,
        export_graph_id: int | None = None,
        edge_dialect_program: object = None,
        graph_map: Mapping[str, Any] | None = None,
        _debug_handle_map: dict[str, Any] | None = None,
        _delegate_map: dict[str, Any] | None = None,
        _instruction_id_to_num_outs_map: dict[str, Any] | None = None,
        _reference_outputs: dict[str, list[Any]] | None = None,
        _representative_inputs: Sequence[Any] | None = None,
        *,
        operators: dict[str, list[list[str]]] | None = None,
    ) -> None:
        self._exported = exported_program
        self.export_graph_id = export_graph_id
        self._edge = None if edge_dialect_program is None else by_method(edge_dialect_program)
        self._graphs = None if graph_map is None else dict(graph_map)
        self._debug_handle_map = _debug_handle_map
        self._delegate_map = _delegate_map
        self._instruction_id_to_num_outs_map = _instruction_id_to_num_outs_map
        self._outputs: Any = _reference_outputs
        self._inputs: Any = _representative_inputs
        self.operators = operators

    # ---- content ----

    @property
    def exported_program(self) -> Any:
        """The ExportedProgram that torch.export captured, or None if it is not recorded."""
        if isinstance(self._exported, _Stored):
            self._exported = self._exported.program()
        return self._exported

    @property
    def edge_dialect_program(self) -> Any:
        """The program in the Edge dialect, method -> program for several methods, or None if it is not recorded."""
        programs = {name: _read(self._edge, name) for name in self._edge or ()}
        return (next(iter(programs.values())) if len(programs) == 1 else programs) if programs else None

    @property
    def graph_map(self) -> dict[str, Any] | None:
        """Additional programs by name and method, such as `before_quantization/forward`."""
        return None if self._graphs is None else {name: _read(self._graphs, name) for name in self._graphs}

    @property
    def _reference_outputs(self) -> dict[str, list[Any]] | None:
        if isinstance(self._outputs, _StoredValues):
            self._outputs = self._outputs.values()
        result: dict[str, list[Any]] | None = self._outputs
        return result

    @_reference_outputs.setter
    def _reference_outputs(self, value: object) -> None:
        self._outputs = value

    @property
    def _representative_inputs(self) -> Sequence[Any] | None:
        if isinstance(self._inputs, _StoredValues):
            self._inputs = self._inputs.values()
        result: Sequence[Any] | None = self._inputs
        return result

    @_representative_inputs.setter
    def _representative_inputs(self, value: object) -> None:
        self._inputs = value

    @property
    def methods(self) -> list[str]:
        """The names of the methods with recorded instructions."""
        return sorted(self._debug_handle_map or self._edge or ())

    def graph_names(self) -> list[str]:
        """Returns the names that `nodes` and `program` accept."""
        exported = [EXPORTED_PROGRAM] if self._exported is not None else []
        return [*exported, *([EDGE_PROGRAM] if self._edge else []), *(self._graphs or ())]

    def nodes(self, graph: str = EDGE_PROGRAM, method: str = _FORWARD) -> list[GraphNode]:
        """Returns the calls of a recorded graph, including those of branches.

        Args:
            graph: a name of `graph_names()`.
            method: the method.

        Raises:
            InputError: the graph is not recorded.
        """
        program = self._find(graph, method)
        return _stored_nodes(program) if isinstance(program, _Stored) else _nodes(program)

    def program(self, graph: str = EDGE_PROGRAM, method: str = _FORWARD) -> Any:
        """Returns a recorded program.

        Args:
            graph: a name of `graph_names()`.
            method: the method.

        Raises:
            InputError: the graph is not recorded.
        """
        program = self._find(graph, method)
        if not isinstance(program, _Stored):
            return program
        if program is self._exported:
            return self.exported_program
        programs = self._edge if self._edge and program is self._edge.get(method) else self._graphs
        return _read(programs, next(name for name, one in (programs or {}).items() if one is program))

    def _find(self, graph: str, method: str) -> Any:
        if graph in (EDGE_PROGRAM, "edge_dialect_graph_module"):
            program = (self._edge or {}).get(method)
        elif graph == EXPORTED_PROGRAM:
            program = self._exported
        else:
            graphs = self._graphs or {}
            program = graphs.get(graph, graphs.get(f"{graph}/{method}"))
        if program is None:
            raise InputError(
                f"the record has no graph {graph!r} of method {method!r}",
                hints=[
                    f"recorded graphs: {', '.join(self.graph_names()) or 'none'}; methods: {', '.join(self.methods)}"
                ],
            )
        return program

    def copy(self) -> ETRecord:
        """Returns a record of the stages before the finished program, without data of the finished program."""
        return ETRecord(self._exported, self.export_graph_id, self._edge, self._graphs)

    def to_dict(self) -> dict[str, Any]:
        """Returns the content as counts, names and booleans."""
        return {
            "methods": self.methods,
            "graphs": {name: len(self.nodes(name, self._method_of(name))) for name in self.graph_names()},
            "instructions": {name: len(handles) for name, handles in (self._debug_handle_map or {}).items()},
            "reference_outputs": self._outputs is not None,
            "representative_inputs": self._inputs is not None,
        }

    def _method_of(self, graph: str) -> str:
        return next(iter(self._edge or {_FORWARD: None})) if graph == EDGE_PROGRAM else _FORWARD

    def __repr__(self) -> str:
        about = self.to_dict()
        return f"ETRecord({', '.join(f'{name}={value}' for name, value in about.items())})"

    # ---- adding ----

    def add_exported_program(
        self, exported_program: ExportedProgram | Mapping[str, ExportedProgram] | None
    ) -> None:
        """Records the captured program.

        Args:
            exported_program: a program, None, or method -> program; only `forward` of a mapping is recorded.

        Raises:
            InputError: the record has an exported program.
        """
        if self._exported is not None or self.export_graph_id is not None:
            raise InputError("the record already has an exported program")
        program = (
            exported_program.get(_FORWARD) if isinstance(exported_program, Mapping) else exported_program
        )
        if program is None:
            return
        _check_program(program, "exported_program")
        from torchette.exir.graph import copy_program
        from torchette.exir.passes.number_calls import number_calls

        self._exported = number_calls(copy_program(program))
        self.export_graph_id = id(program.graph)

    def add_edge_dialect_program(self, edge_dialect_program: object) -> None:
        """Records the Edge program.

        Args:
            edge_dialect_program: a manager, an ExportedProgram, or method -> ExportedProgram.

        Raises:
            InputError: the record has an Edge program.
        """
        if self._edge:
            raise InputError("the record already has an Edge program")
        self._edge = _programs_of(edge_dialect_program, "edge_dialect_program")
        # The graph that the Edge program refers to as its origin is a copy of the captured graph.
        origin = next(
            (graph_id for one in self._edge.values() if (graph_id := _origin(one)) is not None), None
        )
        if self._exported is not None and origin is not None:
            self.export_graph_id = origin

    def add_executorch_program(self, executorch_program: Any) -> None:
        """Records a finished program.

        Args:
            executorch_program: the result of `to_executorch`, or a bundled program with that result. The cases of a
                bundled program provide the representative inputs and reference outputs.

        Raises:
            InputError: the record has a finished program, or a case has no expected outputs.
            InputTypeError: the argument is of another type.
        """
        if self._debug_handle_map is not None or self._inputs is not None:
            raise InputError("the record already has a finished program")
        bundled = hasattr(executorch_program, "method_test_suites")
        program = executorch_program.executorch_program if bundled else executorch_program
        if not hasattr(program, "debug_handle_map"):
            raise InputTypeError(
                f"executorch_program: {type(program).__name__} has no debug handle map",
                hints=["pass the result of to_executorch(), or a BundledProgram of it"],
            )
        self._debug_handle_map = _of_methods(program.debug_handle_map, program)
        self._delegate_map = _of_methods(program.delegate_map, program)
        # A kernel with several results yields one node, its first result. A delegate yields a node for each of its
        # results.
        self._instruction_id_to_num_outs_map = {
            name: {at: count for at, count in counts.items() if at in self._delegate_map.get(name, {})}
            for name, counts in _of_methods(program.instruction_id_to_num_outs_map, program).items()
        }
        records = getattr(program, "executorch_program", None)
        plans = getattr(records, "execution_plan", ())
        self.operators = {plan.name: operator_names(plan) for plan in plans}
        if bundled:
            self.update_representative_inputs(executorch_program)
            self.update_reference_outputs(executorch_program)

    def add_extra_export_modules(self, extra_recorded_export_modules: Mapping[str, Any]) -> None:
        """Records additional programs.

        Args:
            extra_recorded_export_modules: name -> manager or ExportedProgram.

        Raises:
            InputError: a name is empty, or the file format reserves it.
        """
        graphs = dict(self._graphs or {})
        for name, module in extra_recorded_export_modules.items():
            reserved = next((word for word in sorted(_RESERVED) if word in name), None)
            if reserved is not None or not name:
                raise InputError(
                    f"invalid graph name {name!r}", hints=["choose a name without " + (reserved or "…")]
                )
            for method, program in _programs_of(module, name).items():
                graphs[f"{name}/{method}"] = program
        self._graphs = graphs

    def update_representative_inputs(
        self, representative_inputs: BundledProgram | Sequence[Any] | None
    ) -> None:
        """Records the inputs of method forward for runs of the graphs.

        Args:
            representative_inputs: a list, or a bundled program, whose first case is used.

        Raises:
            InputError: the suite of the method in the bundled program has no cases.
        """
        if hasattr(representative_inputs, "method_test_suites"):
            cases = _cases(representative_inputs).get(_FORWARD)
            if cases is not None and not cases:
                raise InputError("the bundled program has no case of method 'forward'")
            representative_inputs = cases[0].inputs if cases else None
        self._representative_inputs = representative_inputs

    def update_reference_outputs(
        self, reference_outputs: BundledProgram | Mapping[str, Any] | Sequence[Any]
    ) -> None:
        """Records the reference outputs.

        Args:
            reference_outputs: one list for each case of method forward, method -> such lists, or a bundled program.

        Raises:
            InputError: a case of the bundled program has no expected outputs.
        """
        if hasattr(reference_outputs, "method_test_suites"):
            outputs: dict[str, list[Any]] = {}
            for method, cases in _cases(reference_outputs).items():
                if not all(case.expected_outputs for case in cases):
                    raise InputError(f"a case of method {method!r} has no expected outputs")
                outputs[method] = [case.expected_outputs for case in cases]
            reference_outputs = outputs
        elif not isinstance(reference_outputs, Mapping):
            reference_outputs = {_FORWARD: list(reference_outputs)}
        self._reference_outputs = dict(reference_outputs)

    # ---- writing ----

    def save(self, path: str | os.PathLike[str] | IO[bytes]) -> None:
        """Writes the file. A failure leaves no partial file.

        Args:
            path: path or open binary file.

        Raises:
            InputError: the record has no Edge program or no finished program.
            UnsupportedError: the format cannot store one of the programs.
        """
        if not self._edge or not self._debug_handle_map:
            missing = "Edge program" if not self._edge else "finished program"
            raise InputError(
                f"the record has no {missing}",
                hints=["add_edge_dialect_program(edge), add_executorch_program(edge.to_executorch())"],
            )
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as archive:
            for name, content in self._members().items():
                archive.writestr(name, content)
        if isinstance(path, (str, os.PathLike)):
            with open(path, "wb") as file:
                file.write(data.getbuffer())
        else:
            path.write(data.getbuffer())

    def _members(self) -> dict[str, bytes]:
        members = {IDENTIFIER: b""}
        if self._exported is not None:
            members |= _program_members(EXPORTED_PROGRAM, self._exported)
        for method, program in (self._edge or {}).items():
            members |= _program_members(f"{EDGE_PROGRAM}/{method}", program)
        for name, program in (self._graphs or {}).items():
            members |= _program_members(name if "/" in name else f"{name}/{_FORWARD}", program)
        for name in _MAPS:
            value = getattr(self, f"_{name}")
            if value is not None:
                members[name] = json.dumps(value).encode()
        for name, value in ((REFERENCE_OUTPUTS, self._outputs), (REPRESENTATIVE_INPUTS, self._inputs)):
            if value is not None:
                members[name] = value.data if isinstance(value, _StoredValues) else _saved(value)
        if self.export_graph_id is not None:
            members[EXPORT_GRAPH_ID] = json.dumps(self.export_graph_id).encode()
        if self.operators is not None:
            members[_OPERATORS] = json.dumps(self.operators).encode()
        return members


def generate_etrecord(
    et_record: str | os.PathLike[str] | IO[bytes],
    edge_dialect_program: object,
    executorch_program: object,
    extra_recorded_export_modules: Mapping[str, Any] | None = None,
    exported_program: ExportedProgram | Mapping[str, ExportedProgram] | None = None,
) -> None:
    """Writes the record of a program to a file.

    Args:
        et_record: path or open binary file.
        edge_dialect_program: the result of `to_edge`.
        executorch_program: the result of `to_executorch`, or a bundled program with that result.
        extra_recorded_export_modules: name -> additional program.
        exported_program: the result of `torch.export.export`, or method -> such a program.

    Raises:
        InputError, InputTypeError: see the methods `ETRecord.add_*`.
        UnsupportedError: see `ETRecord.save`.

    Example:
        >>> generate_etrecord("net.etrecord", to_edge(exported), program)
    """
    record = ETRecord()
    record.add_exported_program(exported_program)
    record.add_edge_dialect_program(edge_dialect_program)
    record.add_executorch_program(executorch_program)
    if extra_recorded_export_modules is not None:
        record.add_extra_export_modules(extra_recorded_export_modules)
    record.save(et_record)


def parse_etrecord(etrecord_path: str | os.PathLike[str] | IO[bytes]) -> ETRecord:
    """Reads the record in a file of Torchette or ExecuTorch.

    Args:
        etrecord_path: path or open binary file.

    Returns:
        The record.

    Raises:
        ModelNotFoundError: the file does not exist.
        FormatError: the file is damaged or not a record. A damaged program in the file is detected when it is used.

    Example:
        >>> record = parse_etrecord("net.etrecord")
    """
    where = str(etrecord_path) if isinstance(etrecord_path, (str, os.PathLike)) else ""
    try:
        with zipfile.ZipFile(etrecord_path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except (FileNotFoundError, IsADirectoryError) as error:
        raise file_error(error, [_REMEDY]) from None
    except (
        zipfile.BadZipFile,
        EOFError,
        ValueError,
        NotImplementedError,
        RuntimeError,
        OSError,
        IndexError,
    ) as error:
        raise FormatError(
            f"not an ETRecord: {error}", where=[where] if where else (), hints=[_REMEDY]
        ) from None
    except Exception as error:  # zlib.error, and other errors that a damaged header causes
        raise FormatError(
            f"not an ETRecord: {error}", where=[where] if where else (), hints=[_REMEDY]
        ) from None
    try:
        return _record(members)
    except FormatError as error:
        error.where = (where, *error.where) if where else error.where
        raise


# ---- reading ----


def _record(members: dict[str, bytes]) -> ETRecord:
    if IDENTIFIER not in members:
        raise FormatError(f"not an ETRecord: the zip file has no member {IDENTIFIER}", hints=[_REMEDY])
    maps = {name: _json(members, name, dict) for name in _MAPS}
    for name, entries in maps.items():
        if not all(isinstance(of_method, dict) for of_method in (entries or {}).values()):
            raise FormatError(f"member {name} is not a mapping method -> instruction -> …", hints=[_REMEDY])
    programs = {
        name: _Stored(content, *(members[f"{name}_{part}"] for part in _PARTS))
        for name, content in members.items()
        if f"{name}_{_PARTS[0]}" in members and all(f"{name}_{part}" in members for part in _PARTS)
    }
    graphs = {
        name: program
        for name, program in programs.items()
        if name not in (EXPORTED_PROGRAM, EDGE_PROGRAM) and not name.startswith(f"{EDGE_PROGRAM}/")
    }
    prefix = f"{EDGE_PROGRAM}/"
    edge = {name[len(prefix) :]: program for name, program in programs.items() if name.startswith(prefix)}
    if EDGE_PROGRAM in programs:  # file of an older version
        edge.setdefault(_FORWARD, programs[EDGE_PROGRAM])
    graph_id = _json(members, EXPORT_GRAPH_ID, int)
    return ETRecord(
        programs.get(EXPORTED_PROGRAM),
        graph_id or 0,
        edge,
        graphs,
        maps["debug_handle_map"],
        maps["delegate_map"],
        maps["instruction_id_to_num_outs_map"],
        _stored_values(members, REFERENCE_OUTPUTS),
        _stored_values(members, REPRESENTATIVE_INPUTS),
        operators=_operators(members),
    )


def _stored_values(members: Mapping[str, bytes], name: str) -> Any:
    return _StoredValues(name, members[name]) if name in members else None


def _json(members: Mapping[str, bytes], name: str, kind: type) -> Any:
    if name not in members:
        return None
    try:
        value = json.loads(members[name])
    except (ValueError, RecursionError) as error:
        raise FormatError(f"member {name} is not valid JSON: {error}", hints=[_REMEDY]) from None
    if value is not None and not isinstance(value, kind):
        raise FormatError(
            f"member {name} has a {type(value).__name__}, not a {kind.__name__}", hints=[_REMEDY]
        )
    return value


def _operators(members: Mapping[str, bytes]) -> dict[str, list[list[str]]] | None:
    operators = _json(members, _OPERATORS, dict)
    chains = [
        chain
        for of_method in (operators or {}).values()
        for chain in (of_method if isinstance(of_method, list) else [0])
    ]
    if not all(isinstance(chain, list) and all(isinstance(op, str) for op in chain) for chain in chains):
        raise FormatError(
            f"member {_OPERATORS} is not a mapping method -> chains of operators", hints=[_REMEDY]
        )
    result: dict[str, list[list[str]]] | None = operators
    return result


def _stored_nodes(stored: _Stored) -> list[GraphNode]:
    """Returns the calls of a stored program from its JSON, without torch and without its operators being registered."""
    try:
        nodes: list[GraphNode] = []
        _collect(json.loads(stored.exported_program)["graph_module"]["graph"], nodes)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"a stored graph cannot be read: {type(error).__name__}: {error}", hints=[_REMEDY]
        ) from None
    return nodes


def _collect(graph: dict[str, Any], nodes: list[GraphNode]) -> None:
    for node in graph["nodes"]:
        for argument in node["inputs"]:
            inner = argument["arg"].get("as_graph")
            if inner is not None:
                _collect(inner["graph"], nodes)
        about = node["metadata"]
        handle = about.get("debug_handle")
        op = node["target"].rpartition(".ops.")[2] or node["target"]
        stack = dict(map(_stack_entry, filter(None, about.get("nn_module_stack", "").split(";"))))
        nodes.append(
            GraphNode(
                str(node["name"]),
                op,
                None if handle is None else int(handle),
                about.get("stack_trace"),
                stack,
            )
        )


def _stack_entry(text: str) -> tuple[str, tuple[str, str]]:
    """Parses `key,path,type`. The key has no comma; the parameters of a type may have commas."""
    key, _, path_and_type = text.partition(",")
    path, _, kind = path_and_type.partition(",")
    return key, (path, kind)


# ---- arguments ----


def _read(programs: dict[str, Any] | None, name: str) -> Any:
    assert programs is not None
    if isinstance(programs[name], _Stored):
        programs[name] = programs[name].program()
    return programs[name]


def _check_program(program: object, label: str) -> None:
    if not hasattr(program, "graph_module") or not hasattr(program, "graph_signature"):
        raise InputTypeError(
            f"{label}: expected an ExportedProgram, got {type(program).__name__}",
            hints=["torch.export.export(model, args) returns one"],
        )


def _programs_of(source: object, label: str) -> dict[str, Any]:
    """Returns method -> copy of a program, from a manager, a program or a mapping. A manager may change its programs
    later."""
    from torchette.exir.graph import copy_program

    if hasattr(source, "methods") and hasattr(source, "exported_program"):
        source = {name: source.exported_program(name) for name in sorted(source.methods)}
    programs = by_method(source)
    for program in programs.values():
        _check_program(program, label)
    return {name: copy_program(program) for name, program in programs.items()}


def _origin(program: ExportedProgram) -> int | None:
    """Returns the id of the graph in which the nodes of a program were created."""
    for node in program.graph.nodes:
        history, graph_id = node.meta.get("from_node"), None
        while node.op == "call_function" and history:
            graph_id, history = history[-1].graph_id, history[-1].from_node
        if graph_id is not None:
            result: int | None = graph_id
            return result
    return None


def _of_methods(values: Mapping[str, Any], program: object) -> dict[str, Any]:
    """Omits the portable fallbacks of delegated methods, because no event refers to them."""
    methods = getattr(program, "methods", None)
    return {name: value for name, value in values.items() if methods is None or name in methods}


def _cases(bundled: Any) -> dict[str, Sequence[Any]]:
    return {suite.method_name: suite.test_cases for suite in bundled.method_test_suites}


def _nodes(program: ExportedProgram) -> list[GraphNode]:
    nodes = []
    modules = [module for module in program.graph_module.modules() if hasattr(module, "graph")]
    for node in (node for module in modules for node in module.graph.nodes):
        if node.op == "call_function" and getattr(node.target, "__name__", "") != "getitem":
            target = (
                str(node.target)
                if hasattr(node.target, "_schema")
                else getattr(node.target, "__name__", str(node.target))
            )
            stack = {
                key: (path, _type_name(kind))
                for key, (path, kind) in (node.meta.get("nn_module_stack") or {}).items()
            }
            nodes.append(
                GraphNode(
                    node.name, target, node.meta.get("debug_handle"), node.meta.get("stack_trace"), stack
                )
            )
    return nodes


def _type_name(kind: str | type) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def _program_members(name: str, program: ExportedProgram | _Stored) -> dict[str, bytes]:
    if not isinstance(program, _Stored):
        from torchette.exir.serde.serialize import serialize

        program = _Stored(*serialize(program))
    parts = {f"{name}_{part}": getattr(program, part) for part in _PARTS}
    return {name: program.exported_program, **parts}


def _saved(value: object) -> bytes:
    import torch

    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()
