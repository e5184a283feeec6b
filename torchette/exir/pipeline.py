# SPDX-License-Identifier: BSD-3-Clause
# The whole compiler on one screen. An ExportedProgram comes in at the top of STAGES and goes out at the bottom with
# planned memory, ready for the emitter. `print(PIPELINE)` shows it.
"""Stages, each a dialect and an ordered tuple of passes; running, checking, dumping and switching them off."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram
from torch.fx import GraphModule

from torchette.errors import InputTypeError, PassError, TorchetteError
from torchette.exir import dialects, ops
from torchette.exir.check import Reference
from torchette.exir.dialects._ops import to_torch_operators
from torchette.exir.graph import calls, copy_program, node_text, sync_signature
from torchette.exir.own_sizes import own_sizes
from torchette.exir.passes.bind_branches import bind_branches
from torchette.exir.passes.copy_views import copy_views
from torchette.exir.passes.decompose_to_core import decompose_to_core
from torchette.exir.passes.drop_unused_tensors import drop_unused_tensors
from torchette.exir.passes.eliminate_views import eliminate_views
from torchette.exir.passes.fold_batch_norm import fold_batch_norm
from torchette.exir.passes.fold_constants import fold_constants
from torchette.exir.passes.fuse_linear import fuse_linear
from torchette.exir.passes.keep_assertions import keep_assertions
from torchette.exir.passes.loops_to_while import loops_to_while
from torchette.exir.passes.masks_to_indices import masks_to_indices
from torchette.exir.passes.merge_common_subexpressions import merge_common_subexpressions
from torchette.exir.passes.normalize_memory_formats import normalize_memory_formats
from torchette.exir.passes.promote_types import promote_types
from torchette.exir.passes.remove_dead_code import remove_dead_code
from torchette.exir.passes.remove_noops import remove_noops
from torchette.exir.passes.scalars_to_tensors import scalars_to_tensors
from torchette.exir.passes.spell_out_quantization import spell_out_quantization
from torchette.exir.passes.to_out_variants import to_out_variants
from torchette.exir.passes.update_buffers_in_place import update_buffers_in_place

Pass = Callable[[ExportedProgram], ExportedProgram]


@dataclass(frozen=True)
class Stage:
    """Passes that lead into a dialect. After the last one the program is linted and verified against it."""

    name: str
    dialect: dialects.Dialect
    passes: tuple[Pass, ...]


STAGES = (
    # Batch norms are folded before the decomposition, which costs the more the more there is to trace.
    Stage("capture", dialects.AUTOGRAD_SAFE, (drop_unused_tensors, fold_batch_norm)),
    Stage("core", dialects.CORE_ATEN, (decompose_to_core,)),
    Stage(
        "edge",
        dialects.EDGE,
        (
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
        ),
    ),
    Stage(
        "optimize",
        dialects.EDGE,
        (
            # What backends did not take: they are given it as it was captured.
            spell_out_quantization,
            # Before constants are folded: a transposed weight that is put back needs no folding.
            fuse_linear,
            fold_batch_norm,
            fold_constants,
            merge_common_subexpressions,
            remove_noops,
            remove_dead_code,
        ),
    ),
    Stage(
        "exec",
        dialects.EXEC,
        (
            remove_dead_code,
            loops_to_while,
            eliminate_views,
            # After the views: what is an alias has no place of its own.
            bind_branches,
            # After the views: an alias of a buffer that is read late keeps the buffer from being overwritten.
            update_buffers_in_place,
            to_out_variants,
        ),
    ),
)

# What users may switch off; the other passes are what makes a program legal.
OPTIONAL = frozenset(
    {
        "fuse_linear", "fold_batch_norm", "fold_constants", "merge_common_subexpressions", "remove_noops",
        "remove_dead_code", "eliminate_views",
    }
)  # fmt: skip


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
    """What every pass did, in order; prints as a table."""

    records: list[PassRecord] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(map(str, self.records))

    def notes(self, name: str) -> list[str]:
        """What the passes of this name recorded."""
        return [note for record in self.records if record.name == name for note in record.notes]


@dataclass
class Options:
    """How to run the stages.

    Attributes:
        preserve_ops: operators to keep whole when decomposing.
        allow: operators that the core and edge dialects accept besides their own.
        verify: check the dialect after each stage.
        train_mode: decompose what layers do in training, which is else refused.
        disable_passes: names of optional passes not to run.
        extra_passes: passes to run at the start of a stage, by the stage's name.
        check_passes: after every pass compare the program's results with those before it.
        example_inputs: (args, kwargs) for that comparison; by default the program's own example inputs.
        progress: called with (stage, pass) before each pass.
        dump: a folder that receives the program's text after each pass.
        until: the last stage to run.
    """

    preserve_ops: tuple[Any, ...] = ()
    allow: tuple[Any, ...] = ()
    verify: bool = True
    train_mode: bool = False
    disable_passes: frozenset[str] = frozenset()
    extra_passes: dict[str, Sequence[Pass]] = field(default_factory=dict)
    check_passes: bool = False
    example_inputs: tuple[tuple, dict] | None = None
    progress: Callable[[str, str], None] | None = None
    dump: Path | None = None
    until: str | None = None

    def __post_init__(self) -> None:
        self.disable_passes = frozenset(self.disable_passes)
        for op in (*self.preserve_ops, *self.allow):
            if not ops.is_operator(op):
                raise InputTypeError(
                    f"an operator to keep must be one of torch.ops, with its overload, not {op!r}",
                    hints=["torch.ops.aten.relu.default, for example; registered ones likewise"],
                )
        unknown = self.disable_passes - OPTIONAL
        if unknown:
            raise PassError(
                f"cannot switch off {', '.join(sorted(unknown))}",
                hints=[f"passes that can be switched off: {', '.join(sorted(OPTIONAL))}"],
                code="unknown-pass",
            )


@dataclass(frozen=True)
class Pipeline:
    """An ordered set of stages; a value that prints."""

    stages: tuple[Stage, ...] = STAGES

    def __str__(self) -> str:
        lines = []
        for stage in self.stages:
            lines.append(f"{stage.name} -> {stage.dialect.name}")
            lines += [f"    {pass_name(p):30} {_sentence(p)}" for p in stage.passes]
        return "\n".join(lines)

    def select(self, first: str, last: str) -> Pipeline:
        """The stages from one to another, both included."""
        names = [stage.name for stage in self.stages]
        return Pipeline(self.stages[names.index(first) : names.index(last) + 1])

    def run(
        self, program: ExportedProgram, options: Options | None = None, report: Report | None = None
    ) -> ExportedProgram:
        """Run the stages on a copy of a program.

        Args:
            program: is left as it is; its tensors are shared, not copied.
            options: see `Options`.
            report: receives a record per pass.

        Raises:
            DialectError: a program does not fit the dialect of a stage, with all violations.
            PassError: a pass raised, or changed what the program computes; names the pass.
        """
        options, report = options or Options(), report if report is not None else Report()
        program = to_torch_operators(own_sizes(copy_program(program)))
        # A program that is at Edge already may be compiled again: its copies are accepted as they come.
        targets = (node.target for node in calls(program))
        given = tuple(
            {target: None for target in targets if ops.is_operator(target) and ops.is_copying(target)}
        )
        inputs = options.example_inputs or program.example_inputs
        reference = Reference(program, inputs) if options.check_passes and inputs is not None else None
        for stage in self.stages:
            for run in (*options.extra_passes.get(stage.name, ()), *stage.passes):
                name = pass_name(run)
                if name in options.disable_passes:
                    continue
                if options.progress is not None:
                    options.progress(stage.name, name)
                program = self._run_pass(program, stage, run, name, options, report)
                if options.dump is not None:
                    _dump(options.dump, len(report.records), stage.name, name, program)
                if options.check_passes:
                    _lint(program, stage.name, name)
                if reference is not None:
                    reference = reference.compare(program, stage.name, name)
            if options.verify:
                allow = (*options.preserve_ops, *options.allow, *ops.EXTRAS, *given)
                dialects.verify(program, stage.dialect, allow if stage.name != "exec" else ())
            if stage.name == options.until:
                break
        return program

    def _run_pass(
        self,
        program: ExportedProgram,
        stage: Stage,
        run: Pass,
        name: str,
        options: Options,
        report: Report,
    ) -> ExportedProgram:
        before = len(program.graph.nodes)
        program.graph_module.meta["notes"] = []
        start = time.perf_counter()
        try:
            if run is decompose_to_core:
                program = decompose_to_core(program, options.preserve_ops, options.train_mode)
            else:
                program = run(program)
                sync_signature(program)
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
        seconds = time.perf_counter() - start
        notes = tuple(program.graph_module.meta.pop("notes", ()))
        report.records.append(PassRecord(stage.name, name, seconds, before, len(program.graph.nodes), notes))
        return program


PIPELINE = Pipeline()


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
