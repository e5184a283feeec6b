# SPDX-License-Identifier: BSD-3-Clause
# The whole compiler. An ExportedProgram enters the first of `STAGES` and leaves the last one with planned memory, ready
# for the emitter. `print(build(...))` lists all passes that will run.
"""Stages with a dialect and a sequence of passes. `build` creates them from the user's options; `run_stages` runs
them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram
from torch.fx import GraphModule

from torchette import notebook
from torchette.errors import InputTypeError, PassError, TorchetteError, UnsupportedError, did_you_mean
from torchette.exir import dialects, ops
from torchette.exir.cached_size_arithmetic import cached_size_arithmetic
from torchette.exir.check import Reference
from torchette.exir.config import (
    MAX_PLANNED_BYTES,
    DynamicMemoryPlanningMode,
    EdgeCompileConfig,
    ExecutorchBackendConfig,
)
from torchette.exir.copy_shape_env import copy_shape_env
from torchette.exir.delegation import delegate
from torchette.exir.delegation.delegate import Partitioner
from torchette.exir.delegation.explain import Delegation, explain_target, keeping_rejections, mark_origins
from torchette.exir.dialects._ops import to_edge_operators, to_torch_operators
from torchette.exir.graph import (
    calls,
    copy_program,
    mark_shared_state,
    mark_written_elsewhere,
    node_text,
    recompile,
    sync_signature,
    written_elsewhere,
)
from torchette.exir.memory.plan_memory import MemoryPlanningPass, assign_specs
from torchette.exir.pass_manager import COPIED_FROM, adapt, flatten
from torchette.exir.passes.bind_branches import bind_branches
from torchette.exir.passes.check_quantization import check_quantization
from torchette.exir.passes.compose_copies import compose_copies
from torchette.exir.passes.copy_views import copy_views
from torchette.exir.passes.decompose_to_core import decompose_to_core
from torchette.exir.passes.drop_unused_tensors import drop_unused_tensors
from torchette.exir.passes.eliminate_views import eliminate_views
from torchette.exir.passes.fold_batch_norm import fold_batch_norm
from torchette.exir.passes.fold_constants import SMALL, fold_constants
from torchette.exir.passes.fuse_linear import fuse_linear
from torchette.exir.passes.keep_assertions import keep_assertions
from torchette.exir.passes.loops_to_while import loops_to_while
from torchette.exir.passes.mark_values import mark_values
from torchette.exir.passes.masks_to_indices import masks_to_indices
from torchette.exir.passes.merge_common_subexpressions import merge_common_subexpressions
from torchette.exir.passes.narrow_fills import narrow_fills
from torchette.exir.passes.normalize_memory_formats import normalize_memory_formats
from torchette.exir.passes.number_calls import number_calls
from torchette.exir.passes.promote_types import promote_types
from torchette.exir.passes.relate_sizes import relate_sizes
from torchette.exir.passes.remove_dead_code import remove_dead_code
from torchette.exir.passes.remove_expands import remove_expands
from torchette.exir.passes.remove_noops import remove_noops
from torchette.exir.passes.reorder_calls import reorder_calls
from torchette.exir.passes.replace_custom_outs import replace_custom_outs
from torchette.exir.passes.scalars_to_tensors import scalars_to_tensors
from torchette.exir.passes.spell_out_quantization import spell_out_quantization
from torchette.exir.passes.split_chains import split_chains
from torchette.exir.passes.split_rows import Split, split_rows
from torchette.exir.passes.to_out_variants import to_out_variants
from torchette.exir.passes.update_buffers_in_place import update_buffers_in_place
from torchette.methods import by_method

Pass = Callable[[ExportedProgram], ExportedProgram]


@dataclass(frozen=True)
class Stage:
    """Passes that produce a dialect. The program is linted and verified against the dialect after the last pass."""

    name: str
    dialect: dialects.Dialect
    passes: tuple[Pass, ...]


@dataclass(frozen=True)
class _Choices:
    """The user's options for one method, and the passes derived from them."""

    edge: EdgeCompileConfig
    backend: ExecutorchBackendConfig
    method: str
    partitioners: Mapping[str, Sequence[Partitioner]]  # of all methods
    transforms: Mapping[str, Any]
    preserve: tuple[Any, ...]

    @property
    def kept(self) -> tuple[Any, ...]:
        """The operators that the first decomposition preserves."""
        return (*self.edge.preserve_ops, *(op for op in self.preserve if op not in self.edge.preserve_ops))

    @property
    def delegating(self) -> list[Partitioner]:
        """The partitioners that lower parts of the method to delegates."""
        return [one for one in self.partitioners.get(self.method, ()) if not one.target_passes()]

    @property
    def captured(self) -> list[Pass]:
        """The passes of partitioners over the captured program."""
        return [run for one in self.partitioners.get(self.method, ()) for run in one.capture_passes()]

    @property
    def target(self) -> list[Pass]:
        """The passes of partitioners that insert operators of a target into the method."""
        passes: list[Pass] = []
        for one in self.partitioners.get(self.method, ()):
            if target_passes := one.target_passes():
                passes += [*target_passes, keeping_rejections(type(one).__name__)]
        return passes

    @property
    def strips(self) -> list[Pass]:
        splits = self.backend.row_splits.get(self.method, ())
        return [_splitting(splits)] if splits else []


# ---- the passes of each stage; a stage without passes is omitted ----


def _capture(choices: _Choices) -> Sequence[Pass]:
    # Batch norms are folded before the decomposition, because its cost grows with the number of traced calls.
    passes = (check_quantization, replace_custom_outs, number_calls, drop_unused_tensors, fold_batch_norm)
    return (*passes, *choices.captured)


def _core(choices: _Choices) -> Sequence[Pass]:
    return (_decomposing(choices.kept, choices.edge.train_mode),)


EDGE_PASSES: tuple[Pass, ...] = (
    keep_assertions,
    masks_to_indices,
    copy_views,
    # Before remove_noops, which compares layouts.
    normalize_memory_formats,
    scalars_to_tensors,
    # After scalars_to_tensors, which selects the dtype of a scalar such that it needs no cast.
    promote_types,
    remove_noops,
    remove_dead_code,
)


def _edge(choices: _Choices) -> Sequence[Pass]:
    # Use the partitioners of all methods: a constant that two methods share is folded in both or in neither.
    every = [one for partitioners in choices.partitioners.values() for one in partitioners]
    return (*_folding_for_backends(every), *EDGE_PASSES)


def _transform(choices: _Choices) -> Sequence[Pass]:
    passes = flatten(choices.transforms.get(choices.method))
    # EDGE_PASSES legalize the graph again, because users' passes may add views, scalars and casts.
    return (*map(adapt, passes), *EDGE_PASSES) if passes else ()


def _delegate(choices: _Choices) -> Sequence[Pass]:
    return [DelegatePass(one) for one in choices.delegating]


def _core_again(choices: _Choices) -> Sequence[Pass]:
    if len(choices.kept) == len(choices.edge.preserve_ops):
        return ()
    remaining = [op for op in choices.kept if op not in choices.edge.preserve_ops]
    return (_decomposing(choices.edge.preserve_ops, choices.edge.train_mode, remaining),)


def _edge_again(choices: _Choices) -> Sequence[Pass]:
    return EDGE_PASSES if _core_again(choices) else ()


def _user(choices: _Choices) -> Sequence[Pass]:
    passes = flatten(choices.backend.passes)
    return (*map(adapt, passes), *EDGE_PASSES) if passes else ()


def _optimize(choices: _Choices) -> Sequence[Pass]:
    portable = not choices.target
    return (
        # Backends receive quantized operators in their captured form. This pass decomposes the remaining ones. A target
        # has its own pass.
        *((spell_out_quantization,) if portable else ()),
        # Before constant folding, because a transposed weight that becomes the weight of a linear needs no folding.
        fuse_linear,
        fold_batch_norm,
        # Before constant folding, which computes reductions of tensors of equal elements.
        narrow_fills,
        _folding(SMALL, portable, _sentence(fold_constants)),
        merge_common_subexpressions,
        remove_noops,
        compose_copies,
        remove_expands,
        remove_dead_code,
    )


def _target(choices: _Choices) -> Sequence[Pass]:
    passes = choices.target
    # Strips first, because a target replaces the layers of the strips.
    return (*choices.strips, mark_origins, *passes, remove_dead_code, explain_target) if passes else ()


def _exec(choices: _Choices) -> Sequence[Pass]:
    to_out = choices.backend.to_out_var_pass
    parallel = choices.backend.parallel
    return (
        *(() if choices.target else choices.strips),
        remove_dead_code,
        loops_to_while,
        eliminate_views,
        # After eliminate_views, because an alias has no memory.
        reorder_calls,
        bind_branches,
        # After eliminate_views, because a late read of an alias of a buffer prevents the buffer from being overwritten.
        update_buffers_in_place,
        to_out_variants if to_out is None else adapt(to_out),
        mark_values,
        relate_sizes,
        *((_chaining(parallel),) if parallel > 1 else ()),
    )


def _plan(choices: _Choices) -> Sequence[Pass]:
    return (_planning(planner_of(choices.backend, choices.method), choices.backend),)


# The whole compiler: every stage in order, with its resulting dialect and its passes.
STAGES: Mapping[str, tuple[dialects.Dialect, Callable[[_Choices], Sequence[Pass]]]] = {
    "capture": (dialects.AUTOGRAD_SAFE, _capture),
    "core": (dialects.CORE_ATEN, _core),
    "edge": (dialects.EDGE, _edge),
    "transform": (dialects.EDGE, _transform),
    "delegate": (dialects.EDGE, _delegate),
    "core again": (dialects.CORE_ATEN, _core_again),
    "edge again": (dialects.EDGE, _edge_again),
    "user": (dialects.EDGE, _user),
    "optimize": (dialects.EDGE, _optimize),
    "target": (dialects.EDGE, _target),
    "exec": (dialects.EXEC, _exec),
    "plan": (dialects.EXEC, _plan),
}

# The stages from the captured program to Edge, and those from Edge to planned memory.
TO_EDGE = ("capture", "core", "edge")
TO_PLAN = ("user", "optimize", "target", "exec", "plan")


def build(
    edge: EdgeCompileConfig | None = None,
    backend: ExecutorchBackendConfig | None = None,
    *,
    method: str = "forward",
    partitioners: object = None,
    transforms: object = None,
    preserve: Sequence[Any] = (),
) -> Pipeline:
    """Returns all passes of a method, from the captured program to planned memory.

    Args:
        edge, backend: the user's options.
        method: the name of the method.
        partitioners: partitioners of this method, or method name -> partitioners; they are called in order.
            Partitioners with `target_passes` run in the stage "target", the others in the stage "delegate".
        transforms: users' passes of this method, or method name -> passes; see `pass_manager.flatten`. They run before
            the partitioners.
        preserve: operators that are preserved for the partitioners. Calls that no partitioner lowers are decomposed.

    Raises:
        PassError: a pass to disable is not optional.
        InputTypeError: a preserved operator is not an operator.
        UnsupportedError: `DynamicMemoryPlanningMode.SYMBOLIC` is combined with a foreign memory planning pass.
    """
    choices = _Choices(
        edge or EdgeCompileConfig(),
        backend or ExecutorchBackendConfig(),
        method,
        by_method(partitioners, (method,)),
        by_method(transforms, (method,)),
        tuple(preserve),
    )
    disabled = _disabled(choices)
    stages = [
        Stage(name, dialect, tuple(run for run in passes if pass_name(run) not in disabled))
        for name, (dialect, passes_of) in STAGES.items()
        if (passes := passes_of(choices))
    ]
    return Pipeline(tuple(stages), Options.of(choices.edge, choices.backend, choices.kept))


# The compiler passes that users can disable; all others make a program legal. `optional_passes` adds those of
# partitioners.
OPTIONAL = frozenset(
    {
        "fuse_linear", "fold_batch_norm", "fold_constants", "merge_common_subexpressions", "remove_noops",
        "compose_copies", "narrow_fills", "remove_expands", "remove_dead_code", "eliminate_views", "reorder_calls",
    }
)  # fmt: skip


def _disabled(choices: _Choices) -> set[str]:
    """Returns the names of the passes that the user has disabled."""
    edge, backend = choices.edge, choices.backend
    for op in (*edge.preserve_ops, *edge._core_aten_ops_exception_list):
        if not ops.is_operator(op):
            raise InputTypeError(
                f"a preserved operator must be an operator overload of torch.ops, not {op!r}",
                hints=["for example torch.ops.aten.relu.default; registered operators are also accepted"],
            )
    disabled = {*edge.disable_passes, *backend.disable_passes}
    if disabled - OPTIONAL:
        _refuse_required(disabled, optional_passes(choices.partitioners))
    return disabled if backend.remove_view_copy else disabled | {"eliminate_views"}


def optional_passes(partitioners: Mapping[str, Sequence[Partitioner]] | None = None) -> frozenset[str]:
    """Returns the names that `disable_passes` accepts: passes of the compiler, of the CPU engine and of these
    partitioners.

    The engine's names are always accepted, because a program reaches Edge before `to_backend` selects a partitioner.
    """
    instances = [one for each in (partitioners or {}).values() for one in each]
    return OPTIONAL.union(*(one.optional_passes for one in (*instances, delegate.partitioner_named("cpu"))))


def _refuse_required(disabled: set[str], optional: frozenset[str]) -> None:
    """Raises PassError if a name is not the name of an optional pass."""
    unknown = sorted(disabled - optional)
    if unknown:
        raise PassError(
            f"cannot disable {', '.join(unknown)}{did_you_mean(unknown[0], optional)}",
            hints=[f"passes that can be disabled: {', '.join(sorted(optional))}"],
            code="unknown-pass",
        )


# ---- passes that the user's options configure ----


class DelegatePass:
    """Lowers the nodes that a partitioner chooses to a backend."""

    def __init__(self, partitioner: Partitioner) -> None:
        self.partitioner = partitioner
        self.__name__ = type(partitioner).__name__

    def __call__(self, program: ExportedProgram) -> ExportedProgram:
        """Lowers one method. `run_stages` lowers several methods together."""
        result: ExportedProgram = delegate.to_backend(program, self.partitioner)
        return result


def _configured(name: str, sentence: str, run: Pass) -> Pass:
    """Sets the name and the summary that lists of passes print for a configured pass."""
    run.__name__, run.__doc__ = name, sentence
    return run


def _decomposing(preserve: Sequence[Any], train_mode: bool, remaining: Sequence[Any] = ()) -> Pass:
    return _configured(
        decompose_to_core.__name__,
        _sentence(decompose_to_core),
        lambda program: decompose_to_core(program, tuple(preserve), train_mode, remaining),
    )


# Maximum file growth in bytes for a folded constant that is otherwise computed between two delegates.
_STORED = 1 << 20


def _folding(small: int, widen: bool, sentence: str) -> Pass:
    return _configured(
        fold_constants.__name__, sentence, lambda program: fold_constants(program, small, widen)
    )


def _folding_for_backends(partitioners: Sequence[Any]) -> tuple[Pass, ...]:
    if not partitioners:
        return ()
    delegates = any(not one.target_passes() for one in partitioners)
    sentence = "Fold calls whose operands are constants, before partitioning."
    return (_folding(_STORED, delegates, sentence),)


def _splitting(splits: Sequence[Split]) -> Pass:
    return _configured(
        split_rows.__name__,
        "Compute image layers in strips of rows.",
        lambda program: split_rows(program, splits),
    )


def _chaining(most: int) -> Pass:
    return _configured(
        split_chains.__name__,
        "Split independent branches into chains.",
        lambda program: split_chains(program, most),
    )


def planner_of(backend: ExecutorchBackendConfig, method: str) -> Any:
    """Returns the memory planning pass of a method."""
    planner = backend.memory_planning_pass
    return (planner.get(method) or MemoryPlanningPass()) if isinstance(planner, Mapping) else planner


def _planning(planner: Callable[..., Any], backend: ExecutorchBackendConfig) -> Pass:
    mode = backend.dynamic_memory_planning_mode
    if mode is DynamicMemoryPlanningMode.SYMBOLIC and not isinstance(planner, MemoryPlanningPass):
        raise UnsupportedError("DynamicMemoryPlanningMode.SYMBOLIC needs a MemoryPlanningPass")

    def run(program: ExportedProgram) -> ExportedProgram:
        if not isinstance(planner, MemoryPlanningPass):
            result = _foreign(planner, program)
            return result if isinstance(result, ExportedProgram) else program
        if mode is DynamicMemoryPlanningMode.SYMBOLIC:
            planner.at_actual_size = True
        result = planner(program)
        planned = sum(program.graph_module.meta.get("non_const_buffer_sizes", ()))
        fixed = planner.arenas or planner.share_mutable_buffers
        if mode is None and planned > MAX_PLANNED_BYTES and not fixed:
            chosen = (
                planner.at_actual_size,
                planner.alloc_graph_input,
            )  # the planner may serve further methods
            planner.at_actual_size, planner.alloc_graph_input = True, False
            result = planner(program)
            planner.at_actual_size, planner.alloc_graph_input = chosen
        return result if isinstance(result, ExportedProgram) else program

    return _configured("plan_memory", "Assign each tensor a memory location.", run)


def _foreign(planner: Callable[..., Any], program: ExportedProgram) -> Any:
    """Runs a planner that the user defined. It reads the specs of the nodes, as in ExecuTorch."""
    assign_specs(program)
    if hasattr(planner, "run"):
        return planner.run(program.graph_module, program.graph_signature)
    return planner(program.graph_module)


@dataclass
class PassRecord:
    """The effect of one pass on one method."""

    stage: str
    name: str
    seconds: float
    nodes_before: int
    nodes_after: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.stage:9} {self.name:28} {self.seconds * 1000:7.1f} ms  {self.nodes_before:5} -> {self.nodes_after:5} nodes"
        return f"{text}  {'; '.join(self.notes)}" if self.notes else text


@dataclass
class Report:
    """The effect of every pass, in order, and the patterns that a target replaced. `str()` returns tables.

    Attributes:
        records: one record for each pass.
        delegation: the backend of each call, with reasons; None if no target has passes.
        calibration: the observed inputs that the method is quantized with; None without a quantizer.
    """

    records: list[PassRecord] = field(default_factory=list)
    delegation: Delegation | None = None
    calibration: str | None = None

    def __str__(self) -> str:
        parts = [
            "\n".join(map(str, self.records)),
            self.delegation.summary() if self.delegation else "",
            f"calibration: {self.calibration}" if self.calibration else "",
        ]
        return "\n\n".join(filter(None, parts))

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as dicts, lists, strings, integers, floats and None."""
        return {
            "records": [
                {**dataclasses.asdict(record), "notes": list(record.notes)} for record in self.records
            ],
            "delegation": self.delegation and self.delegation.to_dict(),
            "calibration": self.calibration,
        }

    def _repr_html_(self) -> str:
        rows = [
            (
                record.stage,
                record.name,
                f"{record.seconds * 1000:.1f} ms",
                f"{record.nodes_before} → {record.nodes_after}",
                "; ".join(record.notes),
            )
            for record in self.records
        ]
        passes = ("", ("stage", "pass", "time", "nodes", ""), rows)
        placed = self.delegation.tables() if self.delegation else []
        return notebook.tables([passes, *placed], f"{len(rows)} passes")

    def notes(self, name: str) -> list[str]:
        """Returns the notes that the passes of this name recorded."""
        return [note for record in self.records if record.name == name for note in record.notes]


@dataclass(frozen=True)
class Options:
    """Options for running the stages.

    Attributes:
        allow: additional operators that the core and edge dialects accept.
        verify: check the dialect after each stage.
        check_passes: compare the program's results before and after every pass.
        example_inputs: (args, kwargs) for this comparison; by default the program's own example inputs.
        progress: called with (stage, pass) before each pass.
        dump: a folder. The program's text is written to it after each pass.
    """

    allow: tuple[Any, ...] = ()
    verify: bool = True
    check_passes: bool = False
    example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    progress: Callable[[str, str], None] | None = None
    dump: str | Path | None = None

    @classmethod
    def of(cls, edge: EdgeCompileConfig, backend: ExecutorchBackendConfig, allow: Sequence[Any]) -> Options:
        """Returns the options that the user's configurations select."""
        return cls(
            allow=(*allow, *edge._core_aten_ops_exception_list),
            verify=edge._check_ir_validity,
            check_passes=edge.check_passes or backend.check_passes,
            progress=edge.progress,
            dump=edge.dump,
        )


@dataclass(frozen=True)
class Pipeline:
    """An ordered sequence of stages and the options for running them. `str()` lists the passes."""

    stages: tuple[Stage, ...]
    options: Options = Options()

    def __str__(self) -> str:
        lines = []
        for stage in self.stages:
            lines.append(f"{stage.name} -> {stage.dialect.name}")
            lines += [f"    {pass_name(p):30} {_sentence(p)}" for p in stage.passes]
        return "\n".join(lines)

    def until(self, name: str) -> Pipeline:
        """Returns the stages up to and including the stage of this name."""
        names = [stage.name for stage in self.stages]
        return replace(self, stages=self.stages[: names.index(name) + 1])

    def insert(self, stage_name: str, *passes: Callable[..., Any]) -> Pipeline:
        """Returns the pipeline with additional passes at the start of a stage."""
        return replace(
            self,
            stages=tuple(
                replace(stage, passes=(*passes, *stage.passes)) if stage.name == stage_name else stage
                for stage in self.stages
            ),
        )

    def run(self, program: ExportedProgram, report: Report | None = None) -> ExportedProgram:
        """Runs all stages on a copy of a program.

        Args:
            program: is not modified; its tensors are shared, not copied.
            report: receives a record for each pass.

        Raises:
            DialectError: the program violates the dialect of a stage. The error lists all violations.
            PassError: a pass raised an error or changed the results of the program. The error names the pass.
        """
        reports = {} if report is None else {"forward": report}
        return run_stages({"forward": self}, {"forward": program}, reports)["forward"]


@cached_size_arithmetic()
def run_stages(
    pipelines: Mapping[str, Pipeline],
    programs: Mapping[str, ExportedProgram],
    reports: Mapping[str, Report],
    names: Sequence[str] = tuple(STAGES),
) -> dict[str, ExportedProgram]:
    """Runs the named stages on copies of several methods, stage by stage.

    Args:
        pipelines: method name -> its pipeline, which may lack a stage.
        programs: method name -> program.
        reports: method name -> report that receives a record for each pass; may lack methods.
        names: names of the stages to run. They run in the order of `STAGES`.

    Raises:
        DialectError, PassError: see `Pipeline.run`.
    """
    runs = {
        name: _Run(program, pipelines[name].options, reports.get(name, Report()))
        for name, program in programs.items()
    }
    for name in (name for name in STAGES if name in names):
        if name in ("capture", "edge"):  # "core" adds written buffers to the signatures
            mark_shared_state({method: run.program for method, run in runs.items()})
        stages = {
            method: stage for method in runs for stage in pipelines[method].stages if stage.name == name
        }
        if name == "delegate":
            _delegate_methods(stages, runs)
        for method, stage in stages.items():
            runs[method].stage(stage)
    for run in runs.values():
        run.program.__dict__.pop(COPIED_FROM, None)
        recompile(run.program.graph_module)
    return {name: run.program for name, run in runs.items()}


def _delegate_methods(stages: Mapping[str, Stage], runs: Mapping[str, _Run]) -> None:
    """Lowers all methods with the partitioners of the same index together, because backends share data between
    methods."""
    for index in range(max((len(stage.passes) for stage in stages.values()), default=0)):
        start = time.perf_counter()
        passes: dict[str, Any] = {
            method: stage.passes[index] for method, stage in stages.items() if index < len(stage.passes)
        }
        before = {method: to_edge_operators(runs[method].program) for method in passes}
        sizes = {method: len(program.graph.nodes) for method, program in before.items()}
        partitioners = {method: one.partitioner for method, one in passes.items()}
        after = delegate.to_backend(delegate.MethodProgramsPartitionerSpec(before, partitioners))
        seconds = (time.perf_counter() - start) / len(passes)
        for method, one in passes.items():
            runs[method].program = to_torch_operators(after[method])
            runs[method].record(stages[method], pass_name(one), seconds, sizes[method])


class _Run:
    """A method that passes through the stages."""

    def __init__(self, program: ExportedProgram, options: Options, report: Report) -> None:
        self.program = to_torch_operators(copy_shape_env(copy_program(program)))
        self.program.__dict__[COPIED_FROM] = program
        self._options, self._report = options, report
        # The copying operators of a program that is already in the Edge dialect are accepted.
        targets = (node.target for node in calls(self.program))
        self._given = tuple(
            {target: None for target in targets if ops.is_operator(target) and ops.is_copying(target)}
        )
        inputs = options.example_inputs or self.program.example_inputs
        compare = options.check_passes and inputs is not None
        self._reference = Reference(self.program, inputs) if compare else None

    def stage(self, stage: Stage) -> None:
        """Runs the passes of a stage and checks the program against its dialect."""
        options = self._options
        for run in () if stage.name == "delegate" else stage.passes:
            name = pass_name(run)
            if options.progress is not None:
                options.progress(stage.name, name)
            self._pass(stage, run, name)
            if options.dump is not None:
                _dump(Path(options.dump), len(self._report.records), stage.name, name, self.program)
            if options.check_passes:
                _lint(self.program, stage.name, name)
            if self._reference is not None:
                self._reference = self._reference.compare(self.program, stage.name, name)
        if options.verify:
            allow = (*options.allow, *ops.EXTRAS, *self._given)
            dialects.verify(self.program, stage.dialect, allow if stage.name != "exec" else ())

    def _pass(self, stage: Stage, run: Pass, name: str) -> None:
        before = len(self.program.graph.nodes)
        self.program.graph_module.meta["notes"] = []
        start = time.perf_counter()
        try:
            elsewhere = written_elsewhere(self.program)
            self.program = run(self.program)
            mark_written_elsewhere(self.program, elsewhere)  # the pass may return a new program
            sync_signature(self.program)
        except TorchetteError:
            raise
        except Exception as error:
            failure = PassError(
                f"pass {name} of stage {stage.name} failed: {type(error).__name__}: {error}",
                hints=[
                    f"disable_passes=[{name!r}]"
                    if name in optional_passes()
                    else "report this error together with the model; the cause is printed above"
                ],
            )
            failure.pass_name = name
            raise failure from error
        self.record(stage, name, time.perf_counter() - start, before)

    def record(self, stage: Stage, name: str, seconds: float, before: int) -> None:
        """Adds a record of a pass to the report."""
        notes = tuple(self.program.graph_module.meta.pop("notes", ()))
        size = len(self.program.graph.nodes)
        self._report.records.append(PassRecord(stage.name, name, seconds, before, size, notes))
        self._report.delegation = self.program.graph_module.meta.pop("delegation", self._report.delegation)


def pass_name(run: Pass) -> str:
    """Returns the name of a pass in reports and messages."""
    return getattr(run, "__name__", None) or type(run).__name__


def _lint(program: ExportedProgram, stage: str, name: str) -> None:
    broken = [text for check in dialects.PROGRAM_CHECKS for _, text in check.run(program)]
    if broken:
        failure = PassError(
            f"pass {name} of stage {stage} produced an invalid program: {broken[0]}",
            where=broken[1:],
            hints=["graph, signature and stored tensors must agree; edit them with torchette.exir.graph"],
            code="pass-broke-program",
        )
        failure.pass_name = name
        raise failure


def _sentence(run: Pass) -> str:
    return (run.__doc__ or "").strip().split("\n")[0]


def _dump(folder: Path, index: int, stage: str, name: str, program: ExportedProgram) -> None:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{index:02}_{stage}_{name}.txt").write_text(text(program))


def text(program: ExportedProgram) -> str:
    """Returns a program as text, one line per node, with the value of each node. Branches follow the main graph."""
    lines = []
    for path, module in program.graph_module.named_modules():
        if isinstance(module, GraphModule):
            lines += [f"{path}:"] if path else []
            lines += [node_text(node) for node in module.graph.nodes]
    return "\n".join(lines) + "\n"
