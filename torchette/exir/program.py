# SPDX-License-Identifier: BSD-3-Clause
# ExportedPrograms come in, one per method; a program manager goes out that can be transformed, lowered and written as a
# .pte file. Names, fields and signatures are ExecuTorch's; what is ours beyond them has a default.
"""`to_edge`, `to_edge_transform_and_lower`, and what they return."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
from torch.export import ExportedProgram

from torchette.errors import InputTypeError, UnsupportedError
from torchette.exir import dialects, ops
from torchette.exir.delegation import delegate
from torchette.exir.delegation.explain import Delegation, explain, keep_reasons, warn
from torchette.exir.delegation.share_weights import share_weights
from torchette.exir.dialects._ops import to_edge_operators
from torchette.exir.emit import EmitterOutput, emit_program
from torchette.exir.graph import calls, place, placeholders, shape_text
from torchette.exir.memory.plan_memory import MemoryPlanningPass, assign_specs
from torchette.exir.ops import is_operator, kernel_name
from torchette.exir.pass_manager import adapt, flatten
from torchette.exir.passes.fold_constants import fold_constants
from torchette.exir.passes.split_chains import split_chains
from torchette.exir.passes.split_rows import Split, split_rows
from torchette.exir.pipeline import PIPELINE, Options, PassRecord, Pipeline, Report, Stage
from torchette.format import ptd, pte

__path__: list[str] = []  # in ExecuTorch this is a package; compat.py serves `program._program`


class DynamicMemoryPlanningMode(Enum):
    """Where tensors of dynamic shape lie.

    UPPER_BOUND: in planned memory, at their greatest size. Without a greatest size, as with SYMBOLIC.
    SYMBOLIC: in memory that the caller's `DynamicAllocator` gives while the method runs, at their actual size.
    """

    UPPER_BOUND = 0
    SYMBOLIC = 1


@dataclass
class EdgeCompileConfig:
    """How to reach the Edge dialect.

    Attributes:
        preserve_ops: operators that are not decomposed.
        disable_passes: names of optional passes not to run; `torchette.exir.pipeline.OPTIONAL` lists them.
        check_passes: after every pass, compare the program's results on its example inputs with those before.
        train_mode: compile what layers do in training, too: see `torchette.compile`.
        strict: fail, rather than warn, when partitioners are given and something expensive runs on no backend.
    """

    _check_ir_validity: bool = True
    _skip_dim_order: bool = False
    _core_aten_ops_exception_list: list[torch._ops.OpOverload] = field(default_factory=list)
    preserve_ops: list[torch._ops.OpOverload] = field(default_factory=list)
    disable_passes: Sequence[str] = ()
    check_passes: bool = False
    train_mode: bool = False
    strict: bool = False


@dataclass
class ExecutorchBackendConfig:
    """How to go from the Edge dialect to the bytes of a file.

    Attributes:
        passes: users' passes, run before everything else.
        memory_planning_pass: one for all methods, or method name -> pass.
        to_out_var_pass: takes the place of our own pass to out variants if given.
        emit_stacktrace: store for each instruction the lines of the model that it came from.
        segment_alignment: bytes, a power of two, at which weights and delegate data begin in the file.
        constant_tensor_alignment: bytes, a power of two, at which each weight begins; None: 16.
        remove_view_copy: let copies that move nothing share memory.
        emit_mutable_buffer_names: store the names of the model's state.
        external_constants: the weights go to a data file, which `write_tensor_data_to_file` writes and programs may share:
            True for all of them, or a function of a weight's placeholder that names its file, None for the program itself.
        portable_fallback: store for each method with delegates a second plan that needs no backend; the runtime takes
            it, with a warning, where a backend is missing or refuses.
        row_splits: method name -> image layers to compute a few rows at a time, which takes less planned memory.
        parallel: how many chains of instructions may run at the same time; more than one takes more planned memory.
        disable_passes, check_passes: as in `EdgeCompileConfig`.

    The other fields are ExecuTorch's and must keep their defaults for now; a value that would have to do something
    raises UnsupportedError.
    """

    passes: Any = field(default_factory=list)
    memory_planning_pass: Any = field(default_factory=MemoryPlanningPass)
    propagate_device_config: Any = None
    to_out_var_pass: Any = None
    dynamic_memory_planning_mode: DynamicMemoryPlanningMode = DynamicMemoryPlanningMode.UPPER_BOUND
    emit_stacktrace: bool = False
    extract_delegate_segments: bool = True
    segment_alignment: int = 128
    constant_tensor_alignment: int | None = None
    delegate_alignment: int | None = None
    sym_shape_eval_pass: Any = None
    remove_view_copy: bool = True
    external_constants: bool | Callable[[torch.fx.Node], str | None] = False
    external_mutable_weights: bool = False
    emit_mutable_buffer_names: bool = False
    do_quant_fusion_and_const_prop: bool = False
    run_reinplace_pass: bool = False
    enable_non_cpu_memory_planning: bool = True
    reinplace_extra_ops: frozenset[Any] | None = None
    portable_fallback: bool = False
    row_splits: Mapping[str, Sequence[Split]] = field(default_factory=dict)
    parallel: int = 1
    disable_passes: Sequence[str] = ()
    check_passes: bool = False

    def __post_init__(self) -> None:
        unsupported = {
            "external_mutable_weights": self.external_mutable_weights,
            "do_quant_fusion_and_const_prop": self.do_quant_fusion_and_const_prop,
        }
        asked = [name for name, value in unsupported.items() if value]
        if asked:
            raise UnsupportedError(
                f"ExecutorchBackendConfig: {', '.join(asked)} is not there yet",
                hints=["leave it at its default"],
            )


def to_edge(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    constant_methods: Mapping[str, Any] | None = None,
    compile_config: EdgeCompileConfig | None = None,
    generate_etrecord: bool = False,
) -> EdgeProgramManager:
    """Bring exported programs into the Edge dialect.

    Args:
        programs: what `torch.export.export` returned, or method name -> program. They are left as they are.
        constant_methods: method name -> value that the method returns.
        compile_config: see `EdgeCompileConfig`.
        generate_etrecord: not there yet.

    Raises:
        DialectError: lists every node that has no place in core ATen or Edge, with the line of the model.
    """
    return _to_edge(programs, constant_methods, compile_config, generate_etrecord)


def to_edge_transform_and_lower(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    transform_passes: Any = None,
    partitioner: Any = None,
    constant_methods: Mapping[str, Any] | None = None,
    compile_config: EdgeCompileConfig | None = None,
    generate_etrecord: bool = False,
) -> EdgeProgramManager:
    """Bring exported programs into the Edge dialect, run users' passes on them, and give to backends what they take.

    Args:
        programs: as for `to_edge`.
        transform_passes: passes for all methods, a PassManager, or method name -> passes.
        partitioner: a `Partitioner`, several that are asked in order, or method name -> one or several.
        constant_methods, compile_config, generate_etrecord: as for `to_edge`.

    Raises:
        DelegationError: a backend cannot take what its partitioner has chosen, or, with `strict` in the configuration,
            something expensive runs on no backend.
    """
    return _transform_and_lower(
        programs, transform_passes, partitioner, constant_methods, compile_config, generate_etrecord
    )


def _transform_and_lower(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    transform_passes: Any,
    partitioner: Any,
    constant_methods: Mapping[str, Any] | None,
    compile_config: EdgeCompileConfig | None,
    generate_etrecord: bool,
    **hooks: Any,
) -> EdgeProgramManager:
    named = _named(programs)
    wanted = _by_method(partitioner, named)
    config = compile_config or EdgeCompileConfig()
    if wanted:
        named = {
            name: _before_decomposition(program, wanted.get(name, [])) for name, program in named.items()
        }
        whole = {
            op: None
            for name, partitioners in wanted.items()
            for one in partitioners
            for op in _kept_whole(one, named[name])
        }
        preserved = tuple(op for op in whole if op not in config.preserve_ops)
        if preserved:
            config = replace(config, preserve_ops=[*config.preserve_ops, *preserved])
        if "fold_constants" not in config.disable_passes:
            extra = hooks.get("extra_passes", {})
            hooks["extra_passes"] = {**extra, "edge": (_fold_for_backends, *extra.get("edge", ()))}
    edge = _to_edge(named, constant_methods, config, generate_etrecord, **hooks)
    if transform_passes:
        edge = edge.transform(transform_passes, config)
    if not wanted:
        return edge
    edge = edge.to_backend(wanted)
    if preserved:
        edge = edge._decompose_the_rest(preserved, compile_config or EdgeCompileConfig())
    for name in wanted:
        warn(edge.delegation(name), config.strict)
    return edge


def _by_method(partitioner: Any, methods: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Method name -> partitioners, from whatever form they were given in."""
    if not partitioner:
        return {}
    if not isinstance(partitioner, Mapping):
        partitioner = dict.fromkeys(methods, partitioner)
    unknown = sorted(set(partitioner) - set(methods))
    if unknown:
        raise InputTypeError(
            f"a partitioner is given for {', '.join(unknown)}, which is no method",
            hints=[f"methods: {', '.join(sorted(methods))}"],
        )
    found = {
        name: list(given) if isinstance(given, (list, tuple)) else [given]
        for name, given in partitioner.items()
        if given
    }
    wrong = [one for given in found.values() for one in given if not isinstance(one, delegate.Partitioner)]
    if wrong:
        raise InputTypeError(
            f"partitioner: expected a Partitioner, not {wrong[0]!r}",
            hints=["give an instance, such as XnnpackPartitioner()"],
        )
    return found


# Bytes by which the file may grow for a value that need not be computed between two delegates.
_STORED = 1 << 20


def _fold_for_backends(program: ExportedProgram) -> ExportedProgram:
    """What follows from stored tensors alone is stored before backends are asked, and no question for them."""
    return fold_constants(program, _STORED)


def _before_decomposition(program: ExportedProgram, partitioners: Sequence[Any]) -> ExportedProgram:
    for partitioner in partitioners:
        program = partitioner.transform_for_pre_decomposition(program)
    return program


def _kept_whole(partitioner: Any, program: ExportedProgram) -> list[Any]:
    """The operators of a program that a partitioner wants not to be decomposed."""
    operators, wanted = partitioner.ops_to_not_decompose(program)
    used: dict[Any, list[Any]] = {}
    for node in calls(program):
        used.setdefault(ops.functional(node.target), []).append(node)  # type: ignore[arg-type]
    return [op for op in operators if op in used and (wanted is None or any(map(wanted, used[op])))]


def _to_edge(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    constant_methods: Mapping[str, Any] | None,
    config: EdgeCompileConfig | None,
    generate_etrecord: bool,
    **hooks: Any,
) -> EdgeProgramManager:
    if generate_etrecord:
        raise UnsupportedError("generate_etrecord=True is not there yet", hints=["leave it out"])
    config = config or EdgeCompileConfig()
    named = _named(programs)
    clash = sorted(set(named) & set(constant_methods or ()))
    if clash:
        raise InputTypeError(
            f"{', '.join(clash)}: both a method and a constant method",
            hints=["give the constant another name"],
        )
    options = _options(config, **hooks)
    lowered, reports = {}, {}
    for name, program in named.items():
        reports[name] = Report()
        lowered[name] = PIPELINE.select("capture", "edge").run(program, options, reports[name])
    return EdgeProgramManager(lowered, constant_methods, config, reports=reports)


def lower_to_edge(
    programs: Mapping[str, ExportedProgram],
    constant_methods: Mapping[str, Any] | None,
    compile_config: EdgeCompileConfig,
    partitioner: Any = None,
    **hooks: Any,
) -> EdgeProgramManager:
    """As `torchette.compile` does it; `hooks` are fields of `pipeline.Options`."""
    return _transform_and_lower(programs, None, partitioner, constant_methods, compile_config, False, **hooks)


def _named(programs: Any) -> dict[str, ExportedProgram]:
    named = {"forward": programs} if isinstance(programs, ExportedProgram) else programs
    wrong = (
        named
        if not isinstance(named, Mapping)
        else next((p for p in named.values() if not isinstance(p, ExportedProgram)), None)
    )
    if wrong is not None or not named:
        raise InputTypeError(
            f"expected an ExportedProgram or a dict of them, not {type(wrong).__name__ if wrong is not None else '{}'}",
            hints=[
                "program = torch.export.export(model.eval(), example_inputs)",
                "torchette.compile(model, args)",
            ],
        )
    return dict(named)


def _options(config: EdgeCompileConfig, **hooks: Any) -> Options:
    return Options(
        preserve_ops=tuple(config.preserve_ops),
        allow=tuple(config._core_aten_ops_exception_list),
        verify=config._check_ir_validity,
        disable_passes=frozenset(config.disable_passes),
        check_passes=config.check_passes,
        train_mode=config.train_mode,
        **hooks,
    )


def _allowed(config: EdgeCompileConfig) -> tuple[Any, ...]:
    """What a program in the Edge dialect may hold besides its operators."""
    return (*config.preserve_ops, *config._core_aten_ops_exception_list, *ops.EXTRAS)


class EdgeProgramManager:
    """Programs in the Edge dialect, one per method."""

    def __init__(
        self,
        edge_programs: ExportedProgram | Mapping[str, ExportedProgram],
        constant_methods: Mapping[str, Any] | None = None,
        compile_config: EdgeCompileConfig | None = None,
        *,
        reports: Mapping[str, Report] | None = None,
        portable: Mapping[str, ExportedProgram] | None = None,
    ) -> None:
        self._programs = {name: to_edge_operators(p) for name, p in _named(edge_programs).items()}
        self._portable = dict(portable or {})  # methods with delegates -> as they were before
        self._constant_methods = dict(constant_methods or {})
        self.compile_config = compile_config or EdgeCompileConfig()
        self._reports = {name: (reports or {}).get(name) or Report() for name in self._programs}

    @property
    def methods(self) -> set[str]:
        """The names of the methods that compute."""
        return set(self._programs)

    @property
    def config_methods(self) -> set[str]:
        """The names of the methods that return a constant."""
        return set(self._constant_methods)

    def exported_program(self, method_name: str = "forward") -> ExportedProgram:
        """The program of a method; KeyError with the known names for another."""
        return _method(self._programs, method_name)

    def report(self, method_name: str = "forward") -> Report:
        """What each pass did to a method."""
        return _method(self._reports, method_name)

    def transform(self, passes: Any, compile_config: EdgeCompileConfig | None = None) -> EdgeProgramManager:
        """Run users' passes; returns a new manager and leaves this one as it is.

        Args:
            passes: a pass, a sequence of passes or a PassManager for all methods, or method name -> passes. A pass
                takes a graph module and returns a `PassResult` or None, or takes and returns an ExportedProgram.
            compile_config: as for `to_edge`.
        """
        config = compile_config or self.compile_config
        programs, reports, portable = {}, {}, {}
        for name, program in self._programs.items():
            given = passes.get(name) if isinstance(passes, Mapping) else passes
            mine = tuple(adapt(run) for run in flatten(given))
            reports[name] = Report(list(self._reports[name].records))
            # What follows the user's passes makes the graph legal again: new views, numbers and casts are no faults.
            edge = PIPELINE.select("edge", "edge").stages[0]
            stage = Stage("transform", dialects.EDGE, (*mine, *edge.passes)) if mine else edge
            programs[name] = Pipeline((stage,)).run(program, _options(config), reports[name])
            if name in self._portable:
                portable[name] = Pipeline((stage,)).run(self._portable[name], _options(config))
        return EdgeProgramManager(
            programs, self._constant_methods, config, reports=reports, portable=portable
        )

    def to_backend(self, partitioner: Any) -> EdgeProgramManager:
        """Give to backends what their partitioners choose; returns a new manager and leaves this one as it is.

        Args:
            partitioner: a `Partitioner`, several that are asked in order, or method name -> one or several.

        Raises:
            DelegationError: a backend cannot take what its partitioner has chosen.
        """
        wanted = _by_method(partitioner, self._programs)
        programs = dict(self._programs)
        reports = {name: Report(list(report.records)) for name, report in self._reports.items()}
        for turn in range(max(map(len, wanted.values()), default=0)):
            # Methods that have a partitioner at this turn go together: backends may share data between them.
            now = {name: given[turn] for name, given in wanted.items() if turn < len(given)}
            start, before = time.perf_counter(), {name: len(programs[name].graph.nodes) for name in now}
            spec = delegate.MethodProgramsPartitionerSpec({name: programs[name] for name in now}, now)
            programs |= delegate.to_backend(spec)
            seconds = (time.perf_counter() - start) / len(now)
            for name, one in now.items():
                if self.compile_config._check_ir_validity:
                    dialects.verify(programs[name], dialects.EDGE, _allowed(self.compile_config))
                notes = tuple(programs[name].graph_module.meta.pop("notes", ()))
                size = len(programs[name].graph.nodes)
                record = PassRecord("delegate", type(one).__name__, seconds, before[name], size, notes)
                reports[name].records.append(record)
        changed = {name: p for name, p in programs.items() if any(map(delegate.is_delegate_call, calls(p)))}
        portable = {name: self._portable.get(name, self._programs[name]) for name in changed}
        return EdgeProgramManager(
            programs, self._constant_methods, self.compile_config, reports=reports, portable=portable
        )

    def delegation(self, method_name: str = "forward") -> Delegation:
        """Where every call of a method runs, what it costs, and why it is not on a backend."""
        return explain(self.exported_program(method_name))

    def _decompose_the_rest(self, preserved: Sequence[Any], config: EdgeCompileConfig) -> EdgeProgramManager:
        """What was kept whole for backends that then did not take it becomes core operators after all."""
        again = PIPELINE.select("core", "edge")

        def decomposed(programs: Mapping[str, ExportedProgram], reports: Mapping[str, Report]) -> dict:
            return {
                name: keep_reasons(program, again.run(program, _options(config), reports.get(name)))
                if any(True for _ in calls(program, *preserved))
                else program
                for name, program in programs.items()
            }

        return EdgeProgramManager(
            decomposed(self._programs, self._reports),
            self._constant_methods,
            config,
            reports=self._reports,
            portable=decomposed(self._portable, {}),
        )

    def to_executorch(self, config: ExecutorchBackendConfig | None = None) -> ExecutorchProgramManager:
        """Optimise, plan memory and emit; this manager is left as it is."""
        return self._to_executorch(config or ExecutorchBackendConfig())

    def _to_executorch(self, config: ExecutorchBackendConfig, **hooks: Any) -> ExecutorchProgramManager:
        options = _options(self.compile_config, **hooks)
        options.disable_passes |= frozenset(config.disable_passes)
        if not config.remove_view_copy:
            options.disable_passes |= {"eliminate_views"}
        options.check_passes |= config.check_passes
        options.extra_passes = {"user": [adapt(run) for run in flatten(config.passes)]}
        options.__post_init__()
        programs, reports, planners = {}, {}, []
        portable = self._portable if config.portable_fallback else {}
        fallbacks = {name + pte.PORTABLE: program for name, program in portable.items()}
        for name, program in {**self._programs, **fallbacks}.items():
            planner = config.memory_planning_pass
            if isinstance(planner, Mapping):
                planner = planner.get(name.removesuffix(pte.PORTABLE)) or MemoryPlanningPass()
            if planner not in planners:
                planners.append(planner)
            reports[name] = Report(list(self._reports[name].records) if name in self._reports else [])
            splits = config.row_splits.get(name, ())
            options.extra_passes["exec"] = [_splitting(splits)] if splits else []
            programs[name] = _lowering(planner, config).run(program, options, reports[name])
        for planner in planners:
            if hasattr(planner, "run_multimethod"):
                planner.run_multimethod()
        _share_weights(programs, config)
        output = emit_program(
            programs,
            constant_methods=self._constant_methods,
            emit_stacktrace=config.emit_stacktrace,
            emit_mutable_buffer_names=config.emit_mutable_buffer_names,
            data_file_of=_data_file_of(config.external_constants),
        )
        return ExecutorchProgramManager(programs, self._constant_methods, output, config, reports)

    def _optimized(self, name: str, config: ExecutorchBackendConfig) -> ExportedProgram:
        """A method at the end of Edge, where its memory can still be changed by other layers."""
        options = _options(self.compile_config)
        options.disable_passes |= frozenset(config.disable_passes)
        options.extra_passes = {"user": [adapt(run) for run in flatten(config.passes)]}
        program = Pipeline(_lowering(None, config).stages[:-2]).run(self._programs[name], options)
        return split_rows(program, config.row_splits.get(name, ()))

    def __repr__(self) -> str:
        return _describe(
            self, [f"{name}: {_signature_text(p)}" for name, p in sorted(self._programs.items())]
        )


def _data_file_of(choice: bool | Callable[[torch.fx.Node], str | None]) -> Any:
    """For each constant the data file that it goes to, as ExecuTorch chooses and calls it: numbers that stand in the
    code of a model stay in the program."""
    if choice is True:
        choice = lambda node: "_default_external_constant"  # noqa: E731
    if not callable(choice):
        return None
    return lambda node: None if "_lifted_tensor" in node.name else choice(node)


def _share_weights(programs: Mapping[str, ExportedProgram], config: ExecutorchBackendConfig) -> None:
    """Let portable plans have weights as delegates hold them."""
    portable = {name for name in programs if name.endswith(pte.PORTABLE)}
    share_weights(
        (programs[name] for name in sorted(portable)),
        (programs[name] for name in sorted(programs.keys() - portable)),
        _data_file_of(config.external_constants),
    )


def _splitting(splits: Sequence[Split]) -> Any:
    def split(program: ExportedProgram) -> ExportedProgram:
        """Layers are computed strip by strip."""
        return split_rows(program, splits)

    split.__name__ = split_rows.__name__
    return split


def _chaining(most: int) -> Any:
    def chain(program: ExportedProgram) -> ExportedProgram:
        """Independent branches become chains."""
        return split_chains(program, most)

    chain.__name__ = split_chains.__name__
    return chain


def _lowering(planner: Any, config: ExecutorchBackendConfig) -> Pipeline:
    """The stages from Edge to planned memory, with the user's passes and choices in their places."""
    lower = PIPELINE.select("optimize", "exec")
    edge = PIPELINE.select("edge", "edge").stages[0]
    stages = list(lower.stages)
    if flatten(config.passes):
        stages.insert(0, Stage("user", dialects.EDGE, edge.passes))
    if config.to_out_var_pass is not None:
        last = stages[-1]
        stages[-1] = Stage(last.name, last.dialect, (*last.passes[:-1], adapt(config.to_out_var_pass)))

    if config.parallel > 1:
        last = stages[-1]
        stages[-1] = Stage(last.name, last.dialect, (*last.passes, _chaining(config.parallel)))

    def plan_memory(program: ExportedProgram) -> ExportedProgram:
        """Give every tensor its place in memory."""
        if config.dynamic_memory_planning_mode is DynamicMemoryPlanningMode.SYMBOLIC:
            if not isinstance(planner, MemoryPlanningPass):
                raise UnsupportedError("DynamicMemoryPlanningMode.SYMBOLIC needs a MemoryPlanningPass")
            planner.at_actual_size = True
        result = (
            planner(program) if isinstance(planner, MemoryPlanningPass) else _run_planner(planner, program)
        )
        return result if isinstance(result, ExportedProgram) else program

    return Pipeline((*stages, Stage("plan", dialects.EXEC, (plan_memory,))))


def _run_planner(planner: Any, program: ExportedProgram) -> Any:
    assign_specs(program)  # a planner of the user's own finds specs on the nodes, as ExecuTorch's do
    if hasattr(planner, "run"):
        return planner.run(program.graph_module, program.graph_signature)
    return planner(program.graph_module)


class ExecutorchProgramManager:
    """A finished program: its bytes, and how it came about."""

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram],
        constant_methods: Mapping[str, Any],
        output: EmitterOutput,
        config: ExecutorchBackendConfig,
        reports: Mapping[str, Report],
    ) -> None:
        self._programs = dict(programs)
        self._constant_methods = dict(constant_methods)
        self._output = output
        self._reports = dict(reports)
        self._config = config
        self._pte = pte.write(
            output.program,
            output.constants,
            output.mutable_data,
            output.delegate_data,
            output.named_data,
            named_alignment=output.named_alignment,
            segment_alignment=config.segment_alignment,
            constant_tensor_alignment=config.constant_tensor_alignment or 16,
            extract_delegate_segments=config.extract_delegate_segments,
        )
        self._buffer: bytes | None = None

    @property
    def buffer(self) -> bytes:
        """The whole file. To store it, `save` and `write_to_file` are cheaper: they do not copy the weights."""
        if self._buffer is None:
            self._buffer = bytes(self._pte)
        return self._buffer

    def write_to_file(self, open_file: BinaryIO) -> None:
        """Write the file to an open binary file."""
        self._pte.write_to(open_file)

    def save(self, path: str | Path) -> None:
        """Write the file; `.pte` is the usual suffix, and a path without one gets it."""
        path = Path(path)
        self._pte.write_to(path if path.suffix else path.with_suffix(".pte"))

    def write_tensor_data_to_file(self, outdir: str | Path) -> None:
        """Write the weights that are stored apart from the program, each file as `<name>.ptd` into the folder."""
        for name, named in self._output.data_files.items():
            path = Path(outdir) / (name if name.endswith(".ptd") else f"{name}.ptd")
            path.write_bytes(ptd.write(named, segment_alignment=self._config.segment_alignment))

    @property
    def methods(self) -> set[str]:
        """The names of the methods that compute."""
        return {name for name in self._programs if not name.endswith(pte.PORTABLE)}

    @property
    def config_methods(self) -> set[str]:
        """The names of the methods that return a constant."""
        return set(self._constant_methods)

    @property
    def executorch_program(self) -> Any:
        """The program as records of the file's schema, without the weights."""
        return self._output.program

    def exported_program(self, method_name: str = "forward") -> ExportedProgram:
        """The planned graph of a method, in the EXEC dialect."""
        return _method(self._programs, method_name)

    def report(self, method_name: str = "forward") -> Report:
        """What each pass did to a method."""
        return _method(self._reports, method_name)

    def planned_bytes(self, method_name: str = "forward") -> tuple[int, int]:
        """(bytes of planned memory of a method, the least that any plan would need)."""
        meta = self.exported_program(method_name).graph_module.meta
        return sum(meta["non_const_buffer_sizes"]), sum(meta["memory_bounds"])

    def dump_executorch_program(self, verbose: bool = False, out: IO[str] | None = None) -> None:
        """Print the program: its graphs with planned memory, or with `verbose` all records of the file."""
        out = out or sys.stdout
        if verbose:
            print(self.executorch_program, file=out)
            return
        for name, program in sorted(self._programs.items()):
            print(f"{name}: {_signature_text(program)}", file=out)
            for node in calls(program):
                mark = (
                    "  (alias)" if "alias" in node.meta else "  (in place)" if "in_place" in node.meta else ""
                )
                print(f"  {node.name} = {node.target}{node.args}{mark}", file=out)

    @property
    def debug_handle_map(self) -> dict[str, dict[int, Any]]:
        """Method -> instruction -> debug handle of its node."""
        return self._output.debug_handle_map

    @property
    def delegate_map(self) -> dict[str, dict[int, Any]]:
        """Method -> instruction -> {"name": backend, "delegate_map": its own debug handles}."""
        return self._output.delegate_map

    @property
    def instruction_id_to_num_outs_map(self) -> dict[str, dict[int, int]]:
        """Method -> instruction -> number of tensors that it writes."""
        return self._output.instruction_id_to_num_outs_map

    def get_etrecord(self) -> Any:
        """Not there yet."""
        raise UnsupportedError("ETRecord is not there yet")

    def operators(self) -> dict[str, str]:
        """Name of every operator that the program calls, as in the file -> the line of the model that first needs it."""
        found: dict[str, str] = {}
        called = {
            ".".join(part for part in (op.name, op.overload) if part)
            for plan in self._output.program.execution_plan
            for op in plan.operators
        }
        for program in self._programs.values():
            for node in calls(program):
                if "alias" in node.meta:
                    found.setdefault("executorch_prim::et_view.default", place(node))
                elif is_operator(node.target):
                    found.setdefault(".".join(part for part in kernel_name(node.target) if part), place(node))
        return {name: found.get(name, "") for name in sorted(called)}

    def __repr__(self) -> str:
        lines = []
        for name, program in sorted(self._programs.items()):
            planned, bound = self.planned_bytes(name)
            lines.append(
                f"{name}: {_signature_text(program)}, {planned} bytes planned (at least {bound} needed)"
            )
        return _describe(self, [f"{len(self._pte)} bytes", *lines])


def _method(items: Mapping[str, Any], name: str) -> Any:
    if name not in items:
        raise KeyError(f"no method {name!r}; there are {', '.join(sorted(items))}")
    return items[name]


def _describe(manager: Any, lines: list[str]) -> str:
    constants = [f"{name}: constant" for name in sorted(manager.config_methods)]
    return "\n  ".join([f"{type(manager).__name__}", *lines, *constants])


def _signature_text(program: ExportedProgram) -> str:
    signature = program.graph_signature
    values = {node.name: node.meta.get("val") for node in placeholders(program)}
    inputs = [shape_text(values.get(str(name), name)) for name in signature.user_inputs]
    by_name = {node.name: node.meta.get("val") for node in program.graph.nodes}
    results = [shape_text(by_name.get(str(name), name)) for name in signature.user_outputs]
    calls = sum(node.op == "call_function" and "alias" not in node.meta for node in program.graph.nodes)
    return f"({', '.join(inputs)}) -> ({', '.join(results)}), {calls} calls"
