# SPDX-License-Identifier: BSD-3-Clause
# In: Edge programs and partitioners. Out: the same programs, with one call in place of each part that a backend runs.
# Also defines the ahead-of-time interface of backends. Names are ExecuTorch's.
"""Delegation: `Partitioner`, `BackendDetails`, `CompileSpec`, `to_backend`.

A partitioner sets a tag on each node that its backend should run (``node.meta["delegation_tag"]``) and declares the
backend of each tag. The nodes of a tag become one program, or several if a node between them must run outside of the
backend (see `torchette.exir.delegation.partition`). The backend's `preprocess` converts the program to bytes, and a
call of the delegate replaces the nodes.
"""

from __future__ import annotations

import copy
import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, PythonKeyTracer, track_tensor_tree

from torchette.errors import DelegationError, InputError, unknown_name
from torchette.exir.arguments import checked
from torchette.exir.delegation.named_data import NamedDataStoreOutput
from torchette.exir.delegation.partition import TAG, Piece, pieces, program_of, replace_by_call
from torchette.exir.graph import (
    calls,
    changing_tensors,
    copy_program,
    drop_unused_constants,
    graph_modules,
    note,
    place,
    placeholders,
    tensor_of,
)
from torchette.units import counted

# ---- the interface of backends ----


@dataclass
class CompileSpec:
    """An option of a backend: a name and bytes. The file stores it, and the backend's runtime receives it."""

    key: str
    value: bytes


@dataclass
class PreprocessResult:
    """The result of compiling a program with a backend.

    Attributes:
        processed_bytes: the bytes that the backend's runtime receives when the method is loaded.
        debug_handle_map: instruction of the backend -> debug handles of the nodes that it was compiled from.
        data_store_output: named blobs for the backend's runtime, shared with the other delegates of the file.
    """

    processed_bytes: bytes = b""
    debug_handle_map: dict[Any, tuple[int, ...]] | None = None
    data_store_output: NamedDataStoreOutput | None = None
    _delegate_info_meta: Any = None


class BackendDetails(ABC):
    """The ahead-of-time part of a backend. The class name of a direct subclass is the name of the backend."""

    # The keys of compile specs that the backend accepts; None for any key. Other keys are rejected before `preprocess`.
    option_names: frozenset[str] | None = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        nested = [b for b in cls.__bases__ if issubclass(b, BackendDetails) and b is not BackendDetails]
        if nested:
            raise TypeError(
                f"{cls.__name__}: a backend cannot be derived from another one ({nested[0].__name__})"
            )

    @staticmethod
    @abstractmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Compiles a program in the Edge dialect to bytes. May modify the program. Raises an error if it cannot compile
        it."""

    @classmethod
    def preprocess_multimethod(
        cls,
        edge_programs: dict[str, list[ExportedProgram]],
        compile_specs: dict[str, list[list[CompileSpec]]],
    ) -> dict[str, list[PreprocessResult]]:
        """Compiles all parts of all methods, so that a backend can share data between them. By default calls
        `preprocess`."""
        return {
            method: [
                cls.preprocess(part, specs) for part, specs in zip(parts, compile_specs[method], strict=True)
            ]
            for method, parts in edge_programs.items()
        }


def check_option_names(backend: type[BackendDetails], names: Iterable[str]) -> None:
    """Raises InputError for the first name that is not an option of the backend; the error lists the options."""
    known = backend.option_names
    for name in names:
        if known is not None and name not in known:
            raise InputError(
                unknown_name(f"{backend.__name__} option", name, sorted(known)),
                hints=[f"its options: {', '.join(sorted(known)) or 'none'}"],
                code="bad-backend-option",
            )


class DelegationSpec(NamedTuple):
    """The backend and the options of a tag."""

    backend_id: str
    compile_specs: list[CompileSpec]


@dataclass
class PartitionResult:
    """A program with tagged nodes, and the meaning of each tag."""

    tagged_exported_program: ExportedProgram
    partition_tags: dict[str, DelegationSpec]


class Partitioner(ABC):
    """Selects the nodes that a backend runs."""

    # The passes in `capture_passes` and `target_passes` that users can disable with `disable_passes`.
    optional_passes: frozenset[str] = frozenset()

    def __init__(self, spec: Mapping[Any, object] = MappingProxyType({})) -> None:
        self._spec = spec

    def __call__(self, exported_program: ExportedProgram) -> PartitionResult:
        """Calls `partition`."""
        return self.partition(exported_program)

    @property
    def spec(self) -> Mapping[Any, object]:
        """The configuration of the partitioner."""
        return self._spec

    @abstractmethod
    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags nodes of a program in the Edge dialect. Must not change the program otherwise.

        `reject` records the reason why a node is not tagged.
        """

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Returns operators that must not be decomposed, and a filter or None. Nodes that the filter rejects are
        decomposed."""
        return [], None

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """Transforms the ATen program before decomposition. `to_edge_transform_and_lower` calls this method."""
        return exported_program

    def capture_passes(self) -> tuple[Callable[[ExportedProgram], ExportedProgram], ...]:
        """Returns passes that run on the captured program before decomposition."""
        return ()

    def target_passes(self) -> tuple[Callable[[ExportedProgram], ExportedProgram], ...]:
        """Returns passes that insert operators of a target (`bind_pattern_to_op`). They run after all optimizations,
        before views and memory planning. A partitioner with such passes is not asked for a partition."""
        return ()


def reject(node: Node, reason: str) -> None:
    """Records the reason why the current partitioner or target pass does not accept a node. The delegation report
    prints the reason."""
    # Create a new list, because nodes share the meta of the node that they were created from.
    node.meta["rejections"] = [*node.meta.get("rejections", ()), reason]


def keep_rejections(program: ExportedProgram, name: str) -> ExportedProgram:
    """Stores the recorded reasons under the name of a partitioner."""
    for node in calls(program):
        reasons = node.meta.pop("rejections", None)
        if reasons:
            # Create a new dictionary, because other copies of the program have other partitioners.
            known = node.meta.get("not_delegated", {})
            node.meta["not_delegated"] = {**known, name: tuple(dict.fromkeys(reasons))}
    return program


def _unknown_size_error() -> type[Exception]:
    """Returns the error that torch raises if an answer depends on an unknown size. Imported on demand: it imports
    sympy."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return GuardOnDataDependentSymNode


UNKNOWN_SIZE = "the answer depends on a size that is known only while the model runs"


def rejection_reason(question: Callable[[], str | None]) -> str | None:
    """Returns the reason that `question` returns, or a fixed reason if the question depends on an unknown size."""
    try:
        return question()
    except _unknown_size_error():
        return UNKNOWN_SIZE


def passes_filter(node: Node, filter_op: Callable[[Node], bool] | None) -> bool:
    """Returns whether a filter of `ops_to_not_decompose` accepts a node: false if this depends on an unknown size."""
    if filter_op is None:
        return True
    try:
        return filter_op(node)
    except _unknown_size_error():
        return False


# ---- the call in the graph ----


class _CallDelegate(HigherOrderOperator):
    """Calls a `LoweredBackendModule`: (module, *inputs) -> tuple of tensors."""

    def __init__(self) -> None:
        super().__init__("executorch_call_delegate")  # type: ignore[no-untyped-call]

    def __call__(self, lowered_module: LoweredBackendModule, *args: object) -> Any:
        return super().__call__(lowered_module, *args)  # type: ignore[no-untyped-call]


executorch_call_delegate = _CallDelegate()


def is_delegate_call(node: Node) -> bool:
    """Returns whether a node calls a delegate. The operator of an installed ExecuTorch is also accepted."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "executorch_call_delegate"


@executorch_call_delegate.py_impl(DispatchKey.CompositeExplicitAutograd)
def _run(lowered_module: LoweredBackendModule, *args: object) -> Any:
    return tuple(pytree.tree_leaves(lowered_module.original_module.module()(*args)))


@executorch_call_delegate.py_impl(DispatchKey.Autograd)
def _without_gradients(lowered_module: LoweredBackendModule, *args: object) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return executorch_call_delegate(lowered_module, *args)


@executorch_call_delegate.py_impl(FakeTensorMode)
def _fake(mode: FakeTensorMode, lowered_module: LoweredBackendModule, *args: object) -> Any:
    program = lowered_module.original_module
    arguments = iter(args)
    inputs = []
    for spec in program.graph_signature.input_specs:
        stored = tensor_of(program, spec)
        inputs.append(
            mode.from_tensor(stored.detach(), static_shapes=True) if stored is not None else next(arguments)
        )
    with mode:
        results = torch.fx.Interpreter(program.graph_module).run(*inputs, enable_io_processing=False)
    return tuple(results)[len(program.graph_signature.buffers_to_mutate) :]


@executorch_call_delegate.py_impl(ProxyTorchDispatchMode)
def _trace(mode: ProxyTorchDispatchMode, lowered_module: LoweredBackendModule, *args: object) -> Any:
    results = executorch_call_delegate(lowered_module, *args)
    tracer = checked(mode.tracer, PythonKeyTracer)
    root = tracer.root
    name = next((key for key, value in root.named_children() if value is lowered_module), None) or _free_name(
        root
    )
    setattr(root, name, lowered_module)
    proxies = pytree.tree_map(tracer.unwrap_proxy, args)
    node = mode.tracer.create_proxy(
        "call_function",
        executorch_call_delegate,
        (mode.tracer.create_proxy("get_attr", name, (), {}), *proxies),
        {},
    )
    return track_tensor_tree(results, node, constant=None, tracer=mode.tracer)


@executorch_call_delegate.py_functionalize_impl
def _functionalize(context: Any, lowered_module: LoweredBackendModule, *args: Any) -> Any:
    with context.redispatch_to_next():
        return context.wrap_tensors(executorch_call_delegate(lowered_module, *context.unwrap_tensors(args)))


def _free_name(module: torch.nn.Module, number: int = 0) -> str:
    while hasattr(module, f"lowered_module_{number}"):
        number += 1
    return f"lowered_module_{number}"


class LoweredBackendModule(torch.nn.Module):
    """A program that a backend has compiled. In eager mode, or when exported again, it computes the original
    program."""

    to_executorch: Callable[..., Any]  # set by torchette/exir/program/edge.py, which imports this module

    def __init__(
        self,
        edge_program: ExportedProgram,
        backend_id: str,
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data_store_output: NamedDataStoreOutput | None = None,
        debug_handle_map: dict[Any, tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__()
        self._original_exported_program = edge_program
        self._backend_id = backend_id
        self._processed_bytes = processed_bytes
        self._compile_specs = list(compile_specs)
        self._named_data_store_output = named_data_store_output
        self.meta: dict[str, Any] = {"debug_handle_map": debug_handle_map}
        self._out_spec = edge_program.call_spec.out_spec
        # The callee of the delegate call: the same module with flat arguments and results. It is a separate module
        # because torch's tracer requires that the results of the callee's program have the structure that the call
        # yields.
        self._flat: LoweredBackendModule | None = None
        if self._out_spec is not None and not _is_flat(self._out_spec):
            self._flat = LoweredBackendModule(
                flat_signature(edge_program), backend_id, processed_bytes, compile_specs, named_data_store_output, debug_handle_map
            )  # fmt: skip

    @property
    def backend_id(self) -> str:
        """The registered name of the backend."""
        return self._backend_id

    @property
    def processed_bytes(self) -> bytes:
        """The bytes that the backend compiled."""
        return self._processed_bytes

    @property
    def compile_specs(self) -> list[CompileSpec]:
        """The options that the backend was called with."""
        return self._compile_specs

    @property
    def original_module(self) -> ExportedProgram:
        """The program in the Edge dialect."""
        return self._original_exported_program

    @property
    def named_data_store_output(self) -> NamedDataStoreOutput | None:
        """The named blobs that the backend shares with other delegates."""
        return self._named_data_store_output

    def buffer(self, *, memory_planning: object = None, **options: object) -> bytes:
        """Returns the bytes of a .pte file with a method forward that only calls the backend.

        Args:
            memory_planning: the memory planning pass; by default that of `to_executorch`.
            options: other fields of `ExecutorchBackendConfig`, such as `segment_alignment`.

        Raises:
            DelegationError: the program contains no calls.
        """
        result: bytes = self.to_executorch(memory_planning, options).buffer
        return result

    def program(self, emit_stacktrace: bool = False, memory_planning: object = None) -> Any:
        """Returns the records of the file that `buffer` returns, a `torchette.format.pte.Program`."""
        return self.to_executorch(memory_planning, {"emit_stacktrace": emit_stacktrace}).executorch_program

    def __deepcopy__(self, memo: dict[str, Any]) -> LoweredBackendModule:
        return self  # the module is immutable

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Returns the results of the original program, in its structure."""
        results = executorch_call_delegate(self._flat or self, *pytree.tree_leaves((args, kwargs)))
        return results if self._flat is None else pytree.tree_unflatten(list(results), self._out_spec)


def _is_flat(spec: pytree.TreeSpec) -> bool:
    return spec.type is tuple and all(child.is_leaf() for child in spec.children())


def flat_signature(program: ExportedProgram) -> ExportedProgram:
    """Returns a copy of the program with flat arguments and a flat tuple of results."""
    result = copy.copy(program)
    arguments = tuple(range(len(program.graph_signature.user_inputs)))
    results = tuple(range(len(program.graph_signature.user_outputs)))
    signature = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_structure((arguments, {})),
        out_spec=pytree.tree_structure(results),
    )
    result._module_call_graph = [ModuleCallEntry("", signature)]
    return result


# ---- lookup of backends ----

# Folder of torchette/backends -> the backend's public name, if the two differ.
_BACKEND_NAMES = {"engine": "cpu"}


def backend(name: str) -> type[BackendDetails]:
    """Returns the backend of a name: an imported subclass of `BackendDetails`, or one in `torchette.backends`.

    Raises:
        DelegationError: code ``unknown-backend``. The error lists the known names.
    """
    known = {kind.__name__: kind for kind in BackendDetails.__subclasses__()}
    if name not in known:
        _import_backends()
        known = {kind.__name__: kind for kind in BackendDetails.__subclasses__()}
    if name not in known:
        raise DelegationError(
            unknown_name("backend", name, known),
            hints=[
                f"known backends: {', '.join(sorted(known)) or 'none'}",
                "import the module that defines the subclass of BackendDetails",
            ],
            code="unknown-backend",
        )
    return known[name]


@functools.cache
def _import_backends() -> None:
    """Imports the folders of `torchette.backends`. A backend without its library raises an error when it is used."""
    folder = Path(__file__).parents[2] / "backends"
    for module in sorted(folder.glob("*/preprocess.py")):
        importlib.import_module(f"torchette.backends.{module.parent.name}.preprocess")


def partitioner_named(name: str) -> Partitioner:
    """Returns the partitioner that a folder of `torchette.backends` exports as `PARTITIONER`.

    Raises:
        DelegationError: code "unknown-backend". The error lists the known names.
    """
    folder = Path(__file__).parents[2] / "backends"
    folders = {path.parent.name for path in folder.glob("*/partitioner*")}  # a file, or a package
    known = {_BACKEND_NAMES.get(folder, folder): folder for folder in sorted(folders)}
    if name not in known:
        raise DelegationError(
            unknown_name("backend", name, ("auto", "portable", *known)),
            hints=[
                f"known backends: portable, {', '.join(sorted(known))}",
                "pass an instance of a Partitioner",
            ],
            code="unknown-backend",
        )
    result: Partitioner = importlib.import_module(f"torchette.backends.{known[name]}").PARTITIONER()
    return result


# ---- lowering ----


@dataclass
class MethodProgramsPartitionerSpec:
    """Method name -> program, and method name -> partitioner; an argument of `to_backend` for several methods."""

    method_to_edge_program: Mapping[str, ExportedProgram]
    method_to_partitioner: Mapping[str, Partitioner]


@dataclass
class _Part:
    method: str
    module: torch.fx.GraphModule
    piece: Piece
    spec: DelegationSpec
    program: ExportedProgram


@functools.singledispatch
def to_backend(*args: object) -> Any:
    """Lowers programs to a backend. The given programs are not modified.

    * ``to_backend(backend_id, edge_program, compile_specs)`` lowers the whole program and returns a
      `LoweredBackendModule`.
    * ``to_backend(edge_program, partitioner)`` lowers the nodes that the partitioner selects and returns the program
      with calls of the delegates.
    * ``to_backend(MethodProgramsPartitionerSpec(...))`` does the same for several methods. It returns name -> program.

    Raises:
        DelegationError: the backend is unknown, the partition is inconsistent, or the backend cannot compile the nodes
            that its partitioner selected. The error lists the source lines.

    Example:
        >>> lowered = to_backend("XnnpackBackend", edge.exported_program(), [])
    """
    raise TypeError(
        "the first argument of to_backend must be a backend's name, an ExportedProgram or a "
        "MethodProgramsPartitionerSpec"
    )


@to_backend.register
def _(
    backend_id: str, edge_program: ExportedProgram, compile_specs: Sequence[CompileSpec] = ()
) -> LoweredBackendModule:
    program = copy_program(edge_program)
    return _preprocess({"forward": [program]}, backend_id, {"forward": [list(compile_specs)]})["forward"][0]


@to_backend.register
def _(edge_program: ExportedProgram, partitioner_instance: Partitioner) -> ExportedProgram:
    spec = MethodProgramsPartitionerSpec({"forward": edge_program}, {"forward": partitioner_instance})
    result: ExportedProgram = to_backend(spec)["forward"]
    return result


@to_backend.register
def _(method_edge_program_partitioners: MethodProgramsPartitionerSpec) -> dict[str, ExportedProgram]:
    programs = {
        name: copy_program(p) for name, p in method_edge_program_partitioners.method_to_edge_program.items()
    }
    parts: list[_Part] = []
    for name, partitioner in method_edge_program_partitioners.method_to_partitioner.items():
        programs[name] = _partition(programs[name], partitioner)
        tags = programs[name].graph_module.meta.pop("partition_tags")
        delegated_modules: set[torch.nn.Module] = set()
        for module in graph_modules(programs[name]):
            main = module is programs[name].graph_module
            # A branch runs in the delegate of its call.
            for piece in (
                pieces(module, programs[name] if main else None) if module not in delegated_modules else ()
            ):
                part = program_of(piece, programs[name])
                delegated_modules.update(part.graph_module.modules())
                parts.append(_Part(name, module, piece, tags[piece.tag], part))
    replaced: dict[Node, Node] = {}
    numbers: dict[torch.nn.Module, int] = {}  # graph module -> number of its delegates so far
    for backend_id in dict.fromkeys(part.spec.backend_id for part in parts):
        parts_of_backend = [part for part in parts if part.spec.backend_id == backend_id]
        by_method: dict[str, list[_Part]] = {}
        for one in parts_of_backend:
            by_method.setdefault(one.method, []).append(one)
        lowered = _preprocess(
            {name: [part.program for part in group] for name, group in by_method.items()},
            backend_id,
            {name: [list(part.spec.compile_specs) for part in group] for name, group in by_method.items()},
        )
        for name, group in by_method.items():
            for one, callee in zip(group, lowered[name], strict=True):
                node = replace_by_call(
                    one.piece, one.module, programs[name], _free_name(one.module, numbers.get(one.module, 0)),
                    callee, executorch_call_delegate, replaced,
                )  # fmt: skip
                numbers[one.module] = numbers.get(one.module, 0) + 1
                _keep_handle(node, one.program)
                note(programs[name], _summary(one))
    for program in programs.values():
        _remove_tags(program)
        drop_unused_constants(program)
    return programs


def _partition(program: ExportedProgram, partitioner: Partitioner) -> ExportedProgram:
    """Returns the program with tags. The meta of its graph module contains the meaning of the tags."""
    _number(program)
    before = len(program.graph.nodes)
    name = type(partitioner).__name__
    try:
        result = partitioner(program)
    except _unknown_size_error():
        result = _empty_partition(program)
    if not isinstance(result, PartitionResult):
        raise DelegationError(
            f"{name} returned a {type(result).__name__}",
            hints=["return PartitionResult(tagged_exported_program, partition_tags)"],
            code="bad-partition",
        )
    program = result.tagged_exported_program
    if len(program.graph.nodes) < before:
        raise DelegationError(
            f"{name} removed nodes: a partitioner may only tag them",
            hints=["remove nodes in a pass"],
            code="bad-partition",
        )
    operators, filter_op = partitioner.ops_to_not_decompose(program)
    for node in calls(program):
        # A filter may reject an operator that has no decomposition, such as a linear layer, which is then still
        # present.
        if TAG in node.meta and node.target in operators and not passes_filter(node, filter_op):
            del node.meta[TAG]
            reject(node, "its ops_to_not_decompose rejects this call")
    tagged = [node for node in calls(program) if TAG in node.meta]
    unknown = {node.meta[TAG]: node for node in tagged if node.meta[TAG] not in result.partition_tags}
    if unknown:
        raise DelegationError(
            f"{name} tagged nodes with {', '.join(map(repr, unknown))}, but partition_tags does not define these tags",
            where=[place(node) for node in unknown.values()],
            hints=["partition_tags[tag] = DelegationSpec(backend_id, compile_specs)"],
            code="bad-partition",
        )
    for spec in result.partition_tags.values():
        backend(spec.backend_id)
    program.graph_module.meta["partition_tags"] = result.partition_tags
    return keep_rejections(program, name)


def _empty_partition(program: ExportedProgram) -> PartitionResult:
    """Returns an empty partition, for a partitioner that depends on an unknown size without naming the node."""
    for node in program.graph.nodes:
        node.meta.pop(TAG, None)
        node.meta.pop("rejections", None)
    for node in calls(program):
        node.meta.pop(TAG, None)
        node.meta.pop("rejections", None)
        reject(node, f"its partitioner stopped: {UNKNOWN_SIZE}")
    return PartitionResult(program, {})


def _number(program: ExportedProgram) -> None:
    """Assigns debug handles. Backends use them to refer to the nodes that they compiled."""
    number = 1 + max((node.meta.get("debug_handle", 0) for node in calls(program)), default=0)
    for node in calls(program):
        if "debug_handle" not in node.meta:
            node.meta["debug_handle"] = number
            number += 1


def _preprocess(
    programs: dict[str, list[ExportedProgram]], backend_id: str, specs: dict[str, list[list[CompileSpec]]]
) -> dict[str, list[LoweredBackendModule]]:
    kind = backend(backend_id)
    for spec in specs.values():
        check_option_names(kind, (one.key for part in spec for one in part))
    for parts in programs.values():
        for part in parts:
            _number(part)
    try:
        # Pass copies, because the backend may modify its programs; eager mode and the fallback use the originals.
        copies = {name: [copy_program(part) for part in parts] for name, parts in programs.items()}
        results = kind.preprocess_multimethod(copies, specs)
    except DelegationError:
        raise
    except Exception as error:
        places = {place(node): None for parts in programs.values() for part in parts for node in calls(part)}
        raise DelegationError(
            f"the backend {backend_id} cannot compile the program: {type(error).__name__}: {error}",
            where=list(places)[:8],
            hints=["change its partitioner to reject the nodes that the backend does not support"],
            code="preprocess-failed",
        ) from error
    lowered: dict[str, list[LoweredBackendModule]] = {}
    for name, parts in programs.items():
        lowered[name] = []
        for part, compile_specs, result in zip(parts, specs[name], results[name], strict=True):
            if not isinstance(result, PreprocessResult):
                raise DelegationError(
                    f"preprocess of the backend {backend_id} returned a {type(result).__name__}",
                    hints=["return PreprocessResult(processed_bytes=...)"],
                    code="preprocess-failed",
                )
            module = LoweredBackendModule(
                part,
                backend_id,
                result.processed_bytes,
                compile_specs,
                result.data_store_output,
                result.debug_handle_map,
            )
            lowered[name].append(module)
    return lowered


def _keep_handle(node: Node, program: ExportedProgram) -> None:
    handles = [n.meta["debug_handle"] for n in calls(program) if "debug_handle" in n.meta]
    if handles:
        node.meta["debug_handle"] = max(handles)


def _summary(part: _Part) -> str:
    text = f"{part.spec.backend_id}: {counted(len(part.piece.nodes), 'node')}, tag {part.piece.tag}"
    return text if part.piece.of == 1 else f"{text}, piece {part.piece.number + 1} of {part.piece.of}"


def _remove_tags(program: ExportedProgram) -> None:
    for module in graph_modules(program):
        for node in module.graph.nodes:
            node.meta.pop(TAG, None)


def as_one_call(lowered: LoweredBackendModule) -> ExportedProgram:
    """Returns a program that only calls the backend. Raises DelegationError if the lowered program contains no
    calls."""
    program = copy_program(lowered.original_module)
    for node in program.graph.nodes:
        if node.op in ("placeholder", "call_function"):
            node.meta[TAG] = "all"
    parts = pieces(program.graph_module, program)
    if len(parts) != 1:
        raise DelegationError(
            f"the program of {lowered.backend_id} contains no calls to delegate",
            code="bad-partition",
        )
    outputs = zip(program.graph.output_node().args[0], program.graph_signature.output_specs, strict=True)
    replace_by_call(
        parts[0],
        program.graph_module,
        program,
        "lowered_module_0",
        lowered,
        executorch_call_delegate,
        {},
        results=[value for value, spec in outputs if spec.kind is OutputKind.USER_OUTPUT],
    )
    _remove_tags(program)
    drop_unused_constants(program)
    return program


# ---- functions for partitioners ----


def tag_constant_data(edge_program: ExportedProgram) -> None:
    """Tags stored tensors that only tagged nodes read. The backend's bytes then contain them.

    A tensor that nodes of several tags read is copied to each of these tags.
    """
    changing = changing_tensors(edge_program)
    _tag_stored(edge_program, lambda target: target not in changing)


def tag_mutated_buffer(edge_program: ExportedProgram) -> None:
    """Tags state that only nodes of one tag read and write. The backend then keeps the state between calls."""
    mutated = set(edge_program.graph_signature.buffers_to_mutate.values())
    _tag_stored(edge_program, lambda target: target in mutated)


def _tag_stored(program: ExportedProgram, is_selected: Callable[[str], bool]) -> None:
    for node, spec in zip(placeholders(program), program.graph_signature.input_specs, strict=True):
        if spec.target is None or not is_selected(spec.target) or tensor_of(program, spec) is None:
            continue
        tags = [user.meta.get(TAG) for user in node.users if user.op != "output"]
        if tags and all(tag is not None for tag in tags):
            node.meta[TAG] = tags[0]
