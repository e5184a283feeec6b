# SPDX-License-Identifier: BSD-3-Clause
# Edge programs and partitioners come in; the same programs with one call in the place of each part that a backend
# takes go out. What a backend is ahead of time, and how it is asked. Names are ExecuTorch's.
"""Delegation: `Partitioner`, `BackendDetails`, `CompileSpec`, `to_backend`.

A partitioner writes a tag on each node that its backend shall run (``node.meta["delegation_tag"]``) and says which
backend each tag means. Every tag becomes one program (or several, where a node between two tagged ones must run outside,
see `torchette.exir.delegation.partition`), the backend's `preprocess` turns that into bytes, and the graph keeps a call of them.
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
    copy_program,
    drop_unused_constants,
    graph_modules,
    note,
    place,
    placeholders,
    state,
    tensor_of,
)
from torchette.units import counted

# ---- what a backend says ----


@dataclass
class CompileSpec:
    """An option for a backend: a name and bytes, which also stand in the file and are given to its runtime."""

    key: str
    value: bytes


@dataclass
class PreprocessResult:
    """What a backend makes of a program.

    Attributes:
        processed_bytes: what its runtime is given when the method is loaded.
        debug_handle_map: instruction of the backend -> debug handles of the nodes that it came from.
        data_store_output: blobs that the runtime finds by name, shared with other delegates of the file.
    """

    processed_bytes: bytes = b""
    debug_handle_map: dict[Any, tuple[int, ...]] | None = None
    data_store_output: NamedDataStoreOutput | None = None
    _delegate_info_meta: Any = None


class BackendDetails(ABC):
    """The half of a backend that works ahead of time. A direct subclass is known by its class's name."""

    # The keys of compile specs that the backend accepts; None for any. Other keys are refused before `preprocess`.
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
        """Turn a program in the Edge dialect, which may be changed, into bytes; raise for what cannot be."""

    @classmethod
    def preprocess_multimethod(
        cls,
        edge_programs: dict[str, list[ExportedProgram]],
        compile_specs: dict[str, list[list[CompileSpec]]],
    ) -> dict[str, list[PreprocessResult]]:
        """All parts of all methods at once, for backends that share data between them. By default one by one."""
        return {
            method: [
                cls.preprocess(part, specs) for part, specs in zip(parts, compile_specs[method], strict=True)
            ]
            for method, parts in edge_programs.items()
        }


def check_option_names(backend: type[BackendDetails], given: Iterable[str]) -> None:
    """Raises InputError for the first name that is not an option of the backend; the error lists the options."""
    known = backend.option_names
    for name in given:
        if known is not None and name not in known:
            raise InputError(
                unknown_name(f"{backend.__name__} option", name, sorted(known)),
                hints=[f"its options: {', '.join(sorted(known)) or 'none'}"],
                code="bad-backend-option",
            )


class DelegationSpec(NamedTuple):
    """What a tag means."""

    backend_id: str
    compile_specs: list[CompileSpec]


@dataclass
class PartitionResult:
    """A program with tags on its nodes, and what each tag means."""

    tagged_exported_program: ExportedProgram
    partition_tags: dict[str, DelegationSpec]


class Partitioner(ABC):
    """Chooses the nodes that a backend shall run."""

    # Names of passes of `capture_passes` and `target_passes` that users can disable with `disable_passes`.
    optional_passes: frozenset[str] = frozenset()

    def __init__(self, spec: Mapping[Any, object] = MappingProxyType({})) -> None:
        self._spec = spec

    def __call__(self, exported_program: ExportedProgram) -> PartitionResult:
        """The same as `partition`."""
        return self.partition(exported_program)

    @property
    def spec(self) -> Mapping[Any, object]:
        """Whatever the partitioner was configured with."""
        return self._spec

    @abstractmethod
    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag nodes of a program in the Edge dialect, and change nothing else of it.

        `reject` records why a node is left out.
        """

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Operators that the backend wants whole, and a filter: nodes for which it is false are decomposed all the same."""
        return [], None

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """A change of the ATen program before it is decomposed; `to_edge_transform_and_lower` runs it."""
        return exported_program

    def capture_passes(self) -> tuple[Callable[[ExportedProgram], ExportedProgram], ...]:
        """Passes over the captured program, which run before it is decomposed."""
        return ()

    def target_passes(self) -> tuple[Callable[[ExportedProgram], ExportedProgram], ...]:
        """Passes that put operators of a target (`bind_pattern_to_op`) into a program when nothing else changes it any more:
        after all optimisation, before views and memory. Who has some is not asked for a partition."""
        return ()


def reject(node: Node, reason: str) -> None:
    """Record why the partitioner, or the pass of a target, that is at work does not take a node; the delegation report prints
    it."""
    # A new list: nodes that are made like another one have its meta.
    node.meta["rejections"] = [*node.meta.get("rejections", ()), reason]


def keep_rejections(program: ExportedProgram, name: str) -> ExportedProgram:
    """Store what was rejected as the reasons of a partitioner, by its name."""
    for node in calls(program):
        reasons = node.meta.pop("rejections", None)
        if reasons:
            # A new dictionary: other copies of the program have their own partitioners.
            known = node.meta.get("not_delegated", {})
            node.meta["not_delegated"] = {**known, name: tuple(dict.fromkeys(reasons))}
    return program


def _undecided() -> type[Exception]:
    """What torch raises where an answer depends on an unknown size. It stands on sympy, and is only asked for then."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return GuardOnDataDependentSymNode


UNDECIDED = "the answer depends on a size that is known only while the model runs"


def why_not_taken(question: Callable[[], str | None]) -> str | None:
    """What a question says that asks why a node is not taken; a reason, too, where it depends on an unknown size."""
    try:
        return question()
    except _undecided():
        return UNDECIDED


def is_wanted(node: Node, wanted: Callable[[Node], bool] | None) -> bool:
    """Whether a filter of `ops_to_not_decompose` wants a node whole: not where it depends on an unknown size."""
    if wanted is None:
        return True
    try:
        return wanted(node)
    except _undecided():
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
    """Whether a node runs on a backend (the peer's operator of that name counts as well)."""
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
    given = iter(args)
    inputs = []
    for spec in program.graph_signature.input_specs:
        stored = tensor_of(program, spec)
        inputs.append(
            mode.from_tensor(stored.detach(), static_shapes=True) if stored is not None else next(given)
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
    """A program that a backend has taken. Called in eager mode, or when exported again, it computes what the original does."""

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
        # What is called: the same with arguments and results in a row. A module of its own, because torch's tracer asks
        # the callee's program for results of the structure that the call yields.
        self._flat: LoweredBackendModule | None = None
        if self._out_spec is not None and not _is_flat(self._out_spec):
            self._flat = LoweredBackendModule(
                flat_signature(edge_program), backend_id, processed_bytes, compile_specs, named_data_store_output, debug_handle_map
            )  # fmt: skip

    @property
    def backend_id(self) -> str:
        """The backend's registered name."""
        return self._backend_id

    @property
    def processed_bytes(self) -> bytes:
        """What the backend made of the program."""
        return self._processed_bytes

    @property
    def compile_specs(self) -> list[CompileSpec]:
        """The options that the backend was given."""
        return self._compile_specs

    @property
    def original_module(self) -> ExportedProgram:
        """The program in the Edge dialect."""
        return self._original_exported_program

    @property
    def named_data_store_output(self) -> NamedDataStoreOutput | None:
        """The blobs that the backend shares by name."""
        return self._named_data_store_output

    def buffer(self, *, memory_planning: object = None, **options: object) -> bytes:
        """Returns the bytes of a .pte file; its method forward only calls the backend. Raises DelegationError if the
        program calls nothing.

        Args:
            memory_planning: the memory planning pass; by default that of `to_executorch`.
            options: further fields of `ExecutorchBackendConfig`, such as `segment_alignment`.
        """
        result: bytes = self.to_executorch(memory_planning, options).buffer
        return result

    def program(self, emit_stacktrace: bool = False, memory_planning: object = None) -> Any:
        """Returns the records of the file of `buffer`, a `torchette.format.pte.Program`."""
        return self.to_executorch(memory_planning, {"emit_stacktrace": emit_stacktrace}).executorch_program

    def __deepcopy__(self, memo: dict[str, Any]) -> LoweredBackendModule:
        return self  # nothing in it changes

    def forward(self, *args: object, **kwargs: object) -> Any:
        """The results of the original program, in its structure."""
        results = executorch_call_delegate(self._flat or self, *pytree.tree_leaves((args, kwargs)))
        return results if self._flat is None else pytree.tree_unflatten(list(results), self._out_spec)


def _is_flat(spec: pytree.TreeSpec) -> bool:
    return spec.type is tuple and all(child.is_leaf() for child in spec.children())


def flat_signature(program: ExportedProgram) -> ExportedProgram:
    """The program with its arguments in a row, and its results in a tuple."""
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


# ---- finding backends ----

# Folder of torchette/backends -> the backend's public name, if the two differ.
_BACKEND_NAMES = {"engine": "cpu"}


def backend(name: str) -> type[BackendDetails]:
    """The backend of that name: a subclass of `BackendDetails` that is imported, or one in `torchette.backends`.

    Raises:
        DelegationError: code ``unknown-backend``; names those that there are.
    """
    known = {kind.__name__: kind for kind in BackendDetails.__subclasses__()}
    if name not in known:
        _import_backends()
        known = {kind.__name__: kind for kind in BackendDetails.__subclasses__()}
    if name not in known:
        raise DelegationError(
            unknown_name("backend", name, known),
            hints=[
                f"backends that there are: {', '.join(sorted(known)) or 'none'}",
                "import the module with the class that is derived from BackendDetails",
            ],
            code="unknown-backend",
        )
    return known[name]


@functools.cache
def _import_backends() -> None:
    """The folders of `torchette.backends`; one whose library is absent says so when it is used."""
    folder = Path(__file__).parents[2] / "backends"
    for module in sorted(folder.glob("*/preprocess.py")):
        importlib.import_module(f"torchette.backends.{module.parent.name}.preprocess")


def partitioner_named(name: str) -> Partitioner:
    """The partitioner that a folder of `torchette.backends` offers under its own name, as its `PARTITIONER`.

    Raises:
        DelegationError: code "unknown-backend"; names those that there are.
    """
    folder = Path(__file__).parents[2] / "backends"
    folders = {path.parent.name for path in folder.glob("*/partitioner*")}  # a file, or a package
    known = {_BACKEND_NAMES.get(folder, folder): folder for folder in sorted(folders)}
    if name not in known:
        raise DelegationError(
            unknown_name("backend", name, ("auto", "portable", *known)),
            hints=[
                f"backends that there are: portable, {', '.join(sorted(known))}",
                "give an instance of a Partitioner",
            ],
            code="unknown-backend",
        )
    result: Partitioner = importlib.import_module(f"torchette.backends.{known[name]}").PARTITIONER()
    return result


# ---- lowering ----


@dataclass
class MethodProgramsPartitionerSpec:
    """Method name -> program, and method name -> partitioner, for `to_backend` of several methods at once."""

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
    """Lower to a backend; the given programs are left as they are.

    * ``to_backend(backend_id, edge_program, compile_specs)`` gives the whole program to a backend and returns a
      `LoweredBackendModule`.
    * ``to_backend(edge_program, partitioner)`` returns the program with calls of what the partitioner has chosen.
    * ``to_backend(MethodProgramsPartitionerSpec(...))`` does the latter for several methods; returns name -> program.

    Raises:
        DelegationError: an unknown backend, a partition that contradicts itself, or a backend that cannot take what its
            partitioner has chosen; with the lines of the model.
    """
    raise TypeError(
        "to_backend takes a backend's name, an ExportedProgram or a MethodProgramsPartitionerSpec"
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
        taken: set[torch.nn.Module] = set()
        for module in graph_modules(programs[name]):
            main = module is programs[name].graph_module
            # A branch goes where the call goes that runs it.
            for piece in pieces(module, programs[name] if main else None) if module not in taken else ():
                part = program_of(piece, programs[name])
                taken.update(part.graph_module.modules())
                parts.append(_Part(name, module, piece, tags[piece.tag], part))
    replaced: dict[Node, Node] = {}
    numbers: dict[torch.nn.Module, int] = {}  # of the delegates of a graph so far
    for backend_id in dict.fromkeys(part.spec.backend_id for part in parts):
        mine = [part for part in parts if part.spec.backend_id == backend_id]
        by_method: dict[str, list[_Part]] = {}
        for one in mine:
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
        _forget(program)
        drop_unused_constants(program)
    return programs


def _partition(program: ExportedProgram, partitioner: Partitioner) -> ExportedProgram:
    """The program with tags, and what they mean in its graph module's meta."""
    _number(program)
    before = len(program.graph.nodes)
    name = type(partitioner).__name__
    try:
        result = partitioner(program)
    except _undecided():
        result = _nothing_taken(program)
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
            hints=["do it in a pass"],
            code="bad-partition",
        )
    operators, wanted = partitioner.ops_to_not_decompose(program)
    for node in calls(program):
        # Not all operators that a filter refuses fall apart: a linear layer stays one.
        if TAG in node.meta and node.target in operators and not is_wanted(node, wanted):
            del node.meta[TAG]
            reject(node, "its ops_to_not_decompose does not want this one whole")
    tagged = [node for node in calls(program) if TAG in node.meta]
    unknown = {node.meta[TAG]: node for node in tagged if node.meta[TAG] not in result.partition_tags}
    if unknown:
        raise DelegationError(
            f"{name} tagged nodes with {', '.join(map(repr, unknown))}, but partition_tags does not say what that means",
            where=[place(node) for node in unknown.values()],
            hints=["partition_tags[tag] = DelegationSpec(backend_id, compile_specs)"],
            code="bad-partition",
        )
    for spec in result.partition_tags.values():
        backend(spec.backend_id)
    program.graph_module.meta["partition_tags"] = result.partition_tags
    return keep_rejections(program, name)


def _nothing_taken(program: ExportedProgram) -> PartitionResult:
    """For a partitioner that asks about a size that nobody knows, and does not say of which node."""
    for node in program.graph.nodes:
        node.meta.pop(TAG, None)
        node.meta.pop("rejections", None)
    for node in calls(program):
        node.meta.pop(TAG, None)
        node.meta.pop("rejections", None)
        reject(node, f"its partitioner stopped: {UNDECIDED}")
    return PartitionResult(program, {})


def _number(program: ExportedProgram) -> None:
    """Backends name the nodes that they came from by these numbers."""
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
        # The backend may change what it is given; what eager mode and a fallback run must stay.
        copies = {name: [copy_program(part) for part in parts] for name, parts in programs.items()}
        results = kind.preprocess_multimethod(copies, specs)
    except DelegationError:
        raise
    except Exception as error:
        places = {place(node): None for parts in programs.values() for part in parts for node in calls(part)}
        raise DelegationError(
            f"the backend {backend_id} cannot compile what it was given: {type(error).__name__}: {error}",
            where=list(places)[:8],
            hints=["let its partitioner leave out what the backend cannot do"],
            code="preprocess-failed",
        ) from error
    lowered: dict[str, list[LoweredBackendModule]] = {}
    for name, parts in programs.items():
        lowered[name] = []
        for part, given, result in zip(parts, specs[name], results[name], strict=True):
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
                given,
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


def _forget(program: ExportedProgram) -> None:
    for module in graph_modules(program):
        for node in module.graph.nodes:
            node.meta.pop(TAG, None)


def as_one_call(lowered: LoweredBackendModule) -> ExportedProgram:
    """Returns a program that only calls the backend. Raises DelegationError if the lowered program calls nothing."""
    program = copy_program(lowered.original_module)
    for node in program.graph.nodes:
        if node.op in ("placeholder", "call_function"):
            node.meta[TAG] = "all"
    found = pieces(program.graph_module, program)
    if len(found) != 1:
        raise DelegationError(
            f"the program of {lowered.backend_id} calls nothing, so there is nothing to delegate",
            code="bad-partition",
        )
    outputs = zip(program.graph.output_node().args[0], program.graph_signature.output_specs, strict=True)
    replace_by_call(
        found[0],
        program.graph_module,
        program,
        "lowered_module_0",
        lowered,
        executorch_call_delegate,
        {},
        results=[value for value, spec in outputs if spec.kind is OutputKind.USER_OUTPUT],
    )
    _forget(program)
    drop_unused_constants(program)
    return program


# ---- what partitioners need ----


def tag_constant_data(edge_program: ExportedProgram) -> None:
    """Give stored tensors that only tagged nodes read to those nodes: they then stand in the backend's bytes.

    A tensor that nodes of several tags read goes to each of them.
    """
    changing = state(edge_program.graph_signature)
    _tag_stored(edge_program, lambda target: target not in changing)


def tag_mutated_buffer(edge_program: ExportedProgram) -> None:
    """Give state that only nodes of one tag read and write to them; the backend then keeps it from call to call."""
    mutated = set(edge_program.graph_signature.buffers_to_mutate.values())
    _tag_stored(edge_program, lambda target: target in mutated)


def _tag_stored(program: ExportedProgram, wanted: Callable[[str], bool]) -> None:
    for node, spec in zip(placeholders(program), program.graph_signature.input_specs, strict=True):
        if spec.target is None or not wanted(spec.target) or tensor_of(program, spec) is None:
            continue
        tags = [user.meta.get(TAG) for user in node.users if user.op != "output"]
        if tags and all(tag is not None for tag in tags):
            node.meta[TAG] = tags[0]
