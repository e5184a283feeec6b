# SPDX-License-Identifier: BSD-3-Clause
# The whole compiler on one screen. An ExportedProgram comes in at the top of `build` and goes out at the bottom with
# planned memory, ready for the emitter. `print(build(...))` shows all that will run.
"""Stages, each a dialect and an ordered tuple of passes: `build` makes them from the user's choices, `Pipeline` runs them."""

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
from torchette.errors import InputTypeError, PassError, TorchetteError, UnsupportedError
from torchette.exir import dialects, ops
from torchette.exir.check import Reference
from torchette.exir.config import DynamicMemoryPlanningMode, EdgeCompileConfig, ExecutorchBackendConfig
from torchette.exir.copy_shape_env import copy_shape_env
from torchette.exir.delegation import delegate
from torchette.exir.delegation.explain import Delegation, explain_target, mark_origins
from torchette.exir.dialects._ops import to_edge_operators, to_torch_operators
from torchette.exir.graph import calls, copy_program, node_text, sync_signature
from torchette.exir.memory.plan_memory import MemoryPlanningPass, assign_specs
from torchette.exir.pass_manager import COPIED_FROM, adapt, flatten
from torchette.exir.passes.bind_branches import bind_branches
from torchette.exir.passes.check_quantization import check_quantization
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
from torchette.exir.passes.normalize_memory_formats import normalize_memory_formats
from torchette.exir.passes.number_calls import number_calls
from torchette.exir.passes.promote_types import promote_types
from torchette.exir.passes.relate_sizes import relate_sizes
from torchette.exir.passes.remove_dead_code import remove_dead_code
from torchette.exir.passes.remove_noops import remove_noops
from torchette.exir.passes.scalars_to_tensors import scalars_to_tensors
from torchette.exir.passes.spell_out_quantization import spell_out_quantization
from torchette.exir.passes.split_chains import split_chains
from torchette.exir.passes.split_rows import Split, split_rows
from torchette.exir.passes.to_out_variants import to_out_variants
from torchette.exir.passes.update_buffers_in_place import update_buffers_in_place

Pass = Callable[[ExportedProgram], ExportedProgram]


@dataclass(frozen=True)
class Stage:
    """Passes that lead into a dialect. After the last one the program is linted and verified against it."""

    name: str
    dialect: dialects.Dialect
    passes: tuple[Any, ...]
    # A pass of this stage takes and returns all methods at once, by name: backends share data between them.
    together: bool = False


# Names of the stages that lead to Edge, and of those from Edge to planned memory.
TO_EDGE = ("capture", "core", "edge")
TO_PLAN = ("user", "optimize", "target", "exec", "plan")

EDGE_PASSES: tuple[Pass, ...] = (
    keep_assertions,
    masks_to_indices,
    copy_views,
    # Before noops, which compares layouts.
    normalize_memory_formats,
    scalars_to_tensors,
    # After the scalars: a number's dtype is chosen so that no cast is needed for it.
    promote_types,
    remove_noops,
    remove_dead_code,
)


def build(
    edge: EdgeCompileConfig | None = None,
    backend: ExecutorchBackendConfig | None = None,
    *,
    method: str = "forward",
    partitioners: Sequence[Any] = (),
    transforms: Any = None,
    preserve: Sequence[Any] = (),
    target: Sequence[Pass] = (),
) -> Pipeline:
    """All that runs on a method, from what torch.export captured to planned memory.

    Args:
        edge, backend: the user's choices.
        method: the one whose share of `backend` counts: its memory planning pass, its layers in strips.
        partitioners: asked in this order.
        transforms: users' passes that run before the partitioners; see `pass_manager.flatten`.
        preserve: operators kept whole for the partitioners; what they leave is decomposed after them.
        target: passes that put operators of a target in the place of patterns, see `Partitioner.target_passes`.

    Raises:
        PassError: an optimisation to switch off is none.
        InputTypeError: an operator to keep is none.
        UnsupportedError: tensors are to have their actual size, and the memory planning pass is not ours.
    """
    edge, backend = edge or EdgeCompileConfig(), backend or ExecutorchBackendConfig()
    disabled = {*edge.disable_passes, *backend.disable_passes}
    _check_choices(edge, disabled)
    if not backend.remove_view_copy:
        disabled.add("eliminate_views")
    kept = (*edge.preserve_ops, *(op for op in preserve if op not in edge.preserve_ops))
    to_edge = Stage("edge", dialects.EDGE, EDGE_PASSES)
    before_backends = [adapt(run) for run in flatten(transforms)]
    before_planning = [adapt(run) for run in flatten(backend.passes)]
    splits = backend.row_splits.get(method, ())
    strips = (_splitting(splits),) if splits else ()
    to_out = to_out_variants if backend.to_out_var_pass is None else adapt(backend.to_out_var_pass)
    stages = [
        # Batch norms are folded before the decomposition, which costs the more the more there is to trace.
        Stage(
            "capture",
            dialects.AUTOGRAD_SAFE,
            (check_quantization, number_calls, drop_unused_tensors, fold_batch_norm),
        ),
        Stage("core", dialects.CORE_ATEN, (_decomposing(kept, edge.train_mode),)),
        replace(to_edge, passes=(*_folding_for_backends(partitioners), *EDGE_PASSES)),
        # What follows users' passes makes the graph legal again: new views, numbers and casts are no faults.
        *([Stage("transform", dialects.EDGE, (*before_backends, *EDGE_PASSES))] if before_backends else ()),
        *([delegation({method: partitioners})] if partitioners else ()),
        *(
            [
                Stage("core again", dialects.CORE_ATEN, (_decomposing(edge.preserve_ops, edge.train_mode),)),
                replace(to_edge, name="edge again"),
            ]
            if len(kept) > len(edge.preserve_ops)
            else ()
        ),
        *([Stage("user", dialects.EDGE, (*before_planning, *EDGE_PASSES))] if before_planning else ()),
        Stage(
            "optimize",
            dialects.EDGE,
            (
                # What backends did not take: they are given it as it was captured. A target has integers of its own.
                *(() if target else (spell_out_quantization,)),
                # Before constants are folded: a transposed weight that is put back needs no folding.
                fuse_linear,
                fold_batch_norm,
                _folding(SMALL, not target, _sentence(fold_constants)),
                merge_common_subexpressions,
                remove_noops,
                remove_dead_code,
            ),
        ),
        # Strips first: what a target takes is a strip's layer.
        *(
            [
                Stage(
                    "target",
                    dialects.EDGE,
                    (*strips, mark_origins, *target, remove_dead_code, explain_target),
                )
            ]
            if target
            else ()
        ),
        Stage(
            "exec",
            dialects.EXEC,
            (
                *(() if target else strips),
                remove_dead_code,
                loops_to_while,
                eliminate_views,
                # After the views: what is an alias has no place of its own.
                bind_branches,
                # After the views: an alias of a buffer that is read late keeps the buffer from being overwritten.
                update_buffers_in_place,
                to_out,
                mark_values,
                relate_sizes,
                *([_chaining(backend.parallel)] if backend.parallel > 1 else ()),
            ),
        ),
        Stage("plan", dialects.EXEC, (_planning(planner_of(backend, method), backend),)),
    ]
    kept_stages = tuple(
        stage if stage.together else replace(stage, passes=tuple(p for p in stage.passes if pass_name(p) not in disabled))
        for stage in stages
    )  # fmt: skip
    return Pipeline(kept_stages, Options.of(edge, allow=kept))


def delegation(partitioners: Mapping[str, Sequence[Any]]) -> Stage:
    """The stage that gives to backends what their partitioners choose; method name -> partitioners, asked in order.
    Methods that have a partitioner at the same turn are lowered together."""
    turns = max(map(len, partitioners.values()), default=0)
    return Stage(
        "delegate",
        dialects.EDGE,
        tuple(
            _delegating({name: given[turn] for name, given in partitioners.items() if turn < len(given)})
            for turn in range(turns)
        ),
        together=True,
    )


# What users may switch off; the other passes are what makes a program legal.
OPTIONAL = frozenset(
    {
        "fuse_linear", "fold_batch_norm", "fold_constants", "merge_common_subexpressions", "remove_noops",
        "remove_dead_code", "eliminate_views",
    }
)  # fmt: skip


def _check_choices(edge: EdgeCompileConfig, disabled: set[str]) -> None:
    for op in (*edge.preserve_ops, *edge._core_aten_ops_exception_list):
        if not ops.is_operator(op):
            raise InputTypeError(
                f"an operator to keep must be one of torch.ops, with its overload, not {op!r}",
                hints=["torch.ops.aten.relu.default, for example; registered ones likewise"],
            )
    unknown = disabled - OPTIONAL
    if unknown:
        raise PassError(
            f"cannot switch off {', '.join(sorted(unknown))}",
            hints=[f"passes that can be switched off: {', '.join(sorted(OPTIONAL))}"],
            code="unknown-pass",
        )


# ---- passes that the user's choices make ----


def _configured(name: str, sentence: str, run: Callable[[Any], Any]) -> Any:
    """A pass that a choice is bound to, under the name and with the sentence that lists show."""
    run.__name__, run.__doc__ = name, sentence
    return run


def _decomposing(preserve: Sequence[Any], train_mode: bool) -> Pass:
    return _configured(
        decompose_to_core.__name__,
        _sentence(decompose_to_core),
        lambda program: decompose_to_core(program, tuple(preserve), train_mode),
    )


# Bytes by which the file may grow for a value that need not be computed between two delegates.
_STORED = 1 << 20


def _folding(small: int, widen: bool, sentence: str) -> Pass:
    return _configured(
        fold_constants.__name__, sentence, lambda program: fold_constants(program, small, widen)
    )


def _folding_for_backends(partitioners: Sequence[Any]) -> tuple[Pass, ...]:
    if not partitioners:
        return ()
    delegates = any(not one.target_passes() for one in partitioners)
    sentence = "What follows from stored tensors alone is stored before backends are asked."
    return (_folding(_STORED, delegates, sentence),)


def _delegating(partitioners: Mapping[str, Any]) -> Any:
    def run(programs: Mapping[str, ExportedProgram]) -> dict[str, ExportedProgram]:
        turn = {name: program for name, program in programs.items() if name in partitioners}
        spec = delegate.MethodProgramsPartitionerSpec(turn, partitioners)
        return {**programs, **delegate.to_backend(spec)}

    run.methods = frozenset(partitioners)  # type: ignore[attr-defined]
    names = dict.fromkeys(type(one).__name__ for one in partitioners.values())
    return _configured(", ".join(names), "A backend takes what its partitioner chooses.", run)


def _splitting(splits: Sequence[Split]) -> Pass:
    return _configured(
        split_rows.__name__,
        "Layers are computed strip by strip.",
        lambda program: split_rows(program, splits),
    )


def _chaining(most: int) -> Pass:
    return _configured(
        split_chains.__name__,
        "Independent branches become chains.",
        lambda program: split_chains(program, most),
    )


def planner_of(backend: ExecutorchBackendConfig, method: str) -> Any:
    """The memory planning pass of a method."""
    planner = backend.memory_planning_pass
    return (planner.get(method) or MemoryPlanningPass()) if isinstance(planner, Mapping) else planner


def _planning(planner: Any, backend: ExecutorchBackendConfig) -> Pass:
    at_actual_size = backend.dynamic_memory_planning_mode is DynamicMemoryPlanningMode.SYMBOLIC
    if at_actual_size and not isinstance(planner, MemoryPlanningPass):
        raise UnsupportedError("DynamicMemoryPlanningMode.SYMBOLIC needs a MemoryPlanningPass")

    def run(program: ExportedProgram) -> ExportedProgram:
        if at_actual_size:
            planner.at_actual_size = True
        result = planner(program) if isinstance(planner, MemoryPlanningPass) else _foreign(planner, program)
        return result if isinstance(result, ExportedProgram) else program

    return _configured("plan_memory", "Give every tensor its place in memory.", run)


def _foreign(planner: Any, program: ExportedProgram) -> Any:
    """A planner of the user's own finds specs on the nodes, as in ExecuTorch."""
    assign_specs(program)
    if hasattr(planner, "run"):
        return planner.run(program.graph_module, program.graph_signature)
    return planner(program.graph_module)


@dataclass
class PassRecord:
    """What one pass did to one method."""

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
    """What every pass did, in order, and what the passes of a target made of which patterns; prints as tables.

    Attributes:
        records: of the passes.
        delegation: where the calls run, and why; None where no target has passes.
    """

    records: list[PassRecord] = field(default_factory=list)
    delegation: Delegation | None = None

    def __str__(self) -> str:
        passes = "\n".join(map(str, self.records))
        return f"{passes}\n\n{self.delegation.summary()}" if self.delegation else passes

    def to_dict(self) -> dict[str, Any]:
        """The same as dicts, lists, strings, numbers and None."""
        return {
            "records": [{**dataclasses.asdict(it), "notes": list(it.notes)} for it in self.records],
            "delegation": self.delegation and self.delegation.to_dict(),
        }

    def _repr_html_(self) -> str:
        rows = [
            (
                it.stage,
                it.name,
                f"{it.seconds * 1000:.1f} ms",
                f"{it.nodes_before} → {it.nodes_after}",
                "; ".join(it.notes),
            )
            for it in self.records
        ]
        passes = ("", ("stage", "pass", "time", "nodes", ""), rows)
        placed = self.delegation.tables() if self.delegation else []
        return notebook.tables([passes, *placed], f"{len(rows)} passes")

    def notes(self, name: str) -> list[str]:
        """What the passes of this name recorded."""
        return [note for record in self.records if record.name == name for note in record.notes]


@dataclass(frozen=True)
class Options:
    """How to run the stages.

    Attributes:
        allow: operators that the core and edge dialects accept besides their own.
        verify: check the dialect after each stage.
        check_passes: after every pass compare the program's results with those before it.
        example_inputs: (args, kwargs) for that comparison; by default the program's own example inputs.
        progress: called with (stage, pass) before each pass.
        dump: a folder that receives the program's text after each pass.
    """

    allow: tuple[Any, ...] = ()
    verify: bool = True
    check_passes: bool = False
    example_inputs: tuple[tuple, dict] | None = None
    progress: Callable[[str, str], None] | None = None
    dump: str | Path | None = None

    @classmethod
    def of(cls, edge: EdgeCompileConfig, allow: Sequence[Any] = ()) -> Options:
        """As the user chose."""
        return cls(
            allow=(*allow, *edge._core_aten_ops_exception_list),
            verify=edge._check_ir_validity,
            check_passes=edge.check_passes,
            progress=edge.progress,
            dump=edge.dump,
        )


@dataclass(frozen=True)
class Pipeline:
    """An ordered set of stages and how to run them; a value that prints."""

    stages: tuple[Stage, ...]
    options: Options = Options()

    def __str__(self) -> str:
        lines = []
        for stage in self.stages:
            lines.append(f"{stage.name} -> {stage.dialect.name}")
            lines += [f"    {pass_name(p):30} {_sentence(p)}" for p in stage.passes]
        return "\n".join(lines)

    def only(self, *names: str) -> Pipeline:
        """The stages of these names; a name without a stage selects nothing."""
        return replace(self, stages=tuple(stage for stage in self.stages if stage.name in names))

    def until(self, name: str) -> Pipeline:
        """The stages up to the one of this name, which is included."""
        names = [stage.name for stage in self.stages]
        return replace(self, stages=self.stages[: names.index(name) + 1])

    def insert(self, stage_name: str, *passes: Any) -> Pipeline:
        """With passes at the start of a stage."""
        return replace(
            self,
            stages=tuple(
                replace(stage, passes=(*passes, *stage.passes)) if stage.name == stage_name else stage
                for stage in self.stages
            ),
        )

    def run(self, program: ExportedProgram, report: Report | None = None) -> ExportedProgram:
        """Run the stages on a copy of a program.

        Args:
            program: is left as it is; its tensors are shared, not copied.
            report: receives a record per pass.

        Raises:
            DialectError: a program does not fit the dialect of a stage, with all violations.
            PassError: a pass raised, or changed what the program computes; names the pass.
        """
        report = report if report is not None else Report()
        return self.run_methods({"forward": program}, {"forward": report})["forward"]

    def run_methods(
        self, programs: Mapping[str, ExportedProgram], reports: Mapping[str, Report]
    ) -> dict[str, ExportedProgram]:
        """As `run`, for several methods by name; `reports` has one for each."""
        runs = {name: _Run(program, self.options, reports[name]) for name, program in programs.items()}
        for stage in self.stages:
            for one in stage.passes if stage.together else ():
                self._run_together(stage, one, runs)
            for run in runs.values():
                run.stage(stage)
        for run in runs.values():
            run.program.__dict__.pop(COPIED_FROM, None)
        return {name: run.program for name, run in runs.items()}

    @staticmethod
    def _run_together(stage: Stage, one: Any, runs: Mapping[str, _Run]) -> None:
        name, start = pass_name(one), time.perf_counter()
        before = {method: to_edge_operators(run.program) for method, run in runs.items()}
        sizes = {method: len(program.graph.nodes) for method, program in before.items()}
        after = one(before)
        seconds = (time.perf_counter() - start) / len(runs)
        for method, run in runs.items():
            run.program = to_torch_operators(after[method])
            if method in one.methods:
                run.record(stage, name, seconds, sizes[method])


class _Run:
    """A method on its way through the stages."""

    def __init__(self, program: ExportedProgram, options: Options, report: Report) -> None:
        self.program = to_torch_operators(copy_shape_env(copy_program(program)))
        self.program.__dict__[COPIED_FROM] = program
        self._options, self._report = options, report
        # A program that is at Edge already may be compiled again: its copies are accepted as they come.
        targets = (node.target for node in calls(self.program))
        self._given = tuple(
            {target: None for target in targets if ops.is_operator(target) and ops.is_copying(target)}
        )
        inputs = options.example_inputs or self.program.example_inputs
        compare = options.check_passes and inputs is not None
        self._reference = Reference(self.program, inputs) if compare else None

    def stage(self, stage: Stage) -> None:
        """Run the passes of a stage and hold the program against its dialect."""
        options = self._options
        for run in () if stage.together else stage.passes:
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
            self.program = run(self.program)
            sync_signature(self.program)
        except TorchetteError:
            raise
        except Exception as error:
            failure = PassError(
                f"pass {name} of stage {stage.name} failed: {type(error).__name__}: {error}",
                hints=[
                    f"disable_passes=[{name!r}]"
                    if name in OPTIONAL
                    else "report it with the model; see the cause above"
                ],
            )
            failure.pass_name = name
            raise failure from error
        self.record(stage, name, time.perf_counter() - start, before)

    def record(self, stage: Stage, name: str, seconds: float, before: int) -> None:
        """Note what a pass did."""
        notes = tuple(self.program.graph_module.meta.pop("notes", ()))
        size = len(self.program.graph.nodes)
        self._report.records.append(PassRecord(stage.name, name, seconds, before, size, notes))
        self._report.delegation = self.program.graph_module.meta.pop("delegation", self._report.delegation)


def pass_name(run: Pass) -> str:
    """The name of a pass in reports and messages."""
    return getattr(run, "__name__", None) or type(run).__name__


def _lint(program: ExportedProgram, stage: str, name: str) -> None:
    broken = [text for check in dialects.WHOLE for _, text in check.run(program)]
    if broken:
        failure = PassError(
            f"pass {name} of stage {stage} left a broken program: {broken[0]}",
            where=broken[1:],
            hints=["graph, signature and stored tensors must agree; edit through torchette.exir.graph"],
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
    """A program as lines, one per node, with what each yields; branches stand below the main graph."""
    lines = []
    for path, module in program.graph_module.named_modules():
        if isinstance(module, GraphModule):
            lines += [f"{path}:"] if path else []
            lines += [node_text(node) for node in module.graph.nodes]
    return "\n".join(lines) + "\n"
