# SPDX-License-Identifier: BSD-3-Clause
# ExportedPrograms come in, one per method; a program manager goes out that can be transformed, lowered and written as a
# .pte file. Names, fields and signatures are ExecuTorch's; what is ours beyond them has a default.
"""`to_edge`, `to_edge_transform_and_lower`, and what they return."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
from torch.export import ExportedProgram

from torchette import notebook, runtime
from torchette.errors import InputError, InputTypeError, MissingKernelWarning, kernel_hints
from torchette.exir import ops
from torchette.exir.config import DynamicMemoryPlanningMode as DynamicMemoryPlanningMode
from torchette.exir.config import EdgeCompileConfig, ExecutorchBackendConfig
from torchette.exir.delegation import delegate
from torchette.exir.delegation.explain import Delegation, explain, keep_reasons, keeping_rejections, warn
from torchette.exir.delegation.share_weights import share_weights
from torchette.exir.dialects._ops import to_edge_operators
from torchette.exir.emit import EmitterOutput, emit_program
from torchette.exir.graph import calls, place, placeholders, shape_text
from torchette.exir.ops import is_operator, kernel_name
from torchette.exir.pass_manager import flatten
from torchette.exir.passes.split_rows import split_rows
from torchette.exir.pipeline import TO_EDGE, TO_PLAN, Options, Pipeline, Report, build, delegation, planner_of
from torchette.format import ptd, pte
from torchette.methods import by_method

__path__: list[str] = []  # in ExecuTorch this is a package; torchette.compat serves `program._program`


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
        generate_etrecord: keep the stages for `ExecutorchProgramManager.get_etrecord()`.

    Raises:
        DialectError: lists every node that has no place in core ATen or Edge, with the line of the model.
    """
    return _to_edge(programs, constant_methods, compile_config, generate_etrecord, {}, (), True)


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
            `CpuPartitioner()` is the CPU engine: it takes what the others leave, when `to_executorch` has optimised it.
        constant_methods, compile_config, generate_etrecord: as for `to_edge`.

    Raises:
        DelegationError: a backend cannot take what its partitioner has chosen, or, with `strict` in the configuration,
            something expensive runs on no backend.
    """
    return transform_and_lower(
        programs, transform_passes, partitioner, constant_methods, compile_config, generate_etrecord, True
    )


def transform_and_lower(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    transform_passes: Any,
    partitioner: Any,
    constant_methods: Mapping[str, Any] | None,
    compile_config: EdgeCompileConfig | None,
    generate_etrecord: bool,
    theirs: bool,
) -> EdgeProgramManager:
    """As `to_edge_transform_and_lower`; calls keep the names that torch gave them unless `theirs`."""
    named = _named(programs)
    wanted = _partitioners(partitioner, named)
    config = compile_config or EdgeCompileConfig()
    named = {name: _before_decomposition(program, wanted.get(name, ())) for name, program in named.items()}
    preserve = tuple(
        {
            op: None
            for name, partitioners in wanted.items()
            for one in partitioners
            for op in _kept_whole(one, named[name])
            if op not in config.preserve_ops
        }
    )
    edge = _to_edge(named, constant_methods, config, generate_etrecord, wanted, preserve, theirs)
    if transform_passes:
        edge = edge.transform(transform_passes)
        if edge._etrecord is not None:
            edge._etrecord.add_extra_export_modules({"edge_after_transform": edge})
    if not wanted:
        return edge
    edge = edge.to_backend(wanted)
    if preserve:
        edge = edge._decompose_the_rest(preserve, config)
    for name in wanted:
        if not edge._target.get(name):  # whose operators are chosen later
            warn(edge.delegation(name), config.strict)
    return edge


def _partitioners(given: Any, methods: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Method name -> partitioners, from any form in which a caller gives them."""
    found = {
        name: list(each) if isinstance(each, (list, tuple)) else [each]
        for name, each in by_method(given, methods, "partitioner").items()
        if each
    }
    wrong = [one for each in found.values() for one in each if not isinstance(one, delegate.Partitioner)]
    if wrong:
        raise InputTypeError(
            f"partitioner: expected a Partitioner, not {wrong[0]!r}",
            hints=["give an instance, such as XnnpackPartitioner()"],
        )
    return found


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
    return [op for op in operators if any(delegate.is_wanted(node, wanted) for node in used.get(op, ()))]


def _to_edge(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    constant_methods: Mapping[str, Any] | None,
    config: EdgeCompileConfig | None,
    generate_etrecord: bool,
    partitioners: Mapping[str, Sequence[Any]],
    preserve: Sequence[Any],
    theirs: bool,
) -> EdgeProgramManager:
    config = config or EdgeCompileConfig()
    named = _named(programs)
    clash = sorted(set(named) & set(constant_methods or ()))
    if clash:
        raise InputTypeError(
            f"{', '.join(clash)}: both a method and a constant method",
            hints=["give the constant another name"],
        )
    # The partitioners of any method count for all: a constant that two methods use is folded in both or in neither.
    every = [one for given in partitioners.values() for one in given]
    pipeline = build(config, partitioners=every, preserve=preserve).only(*TO_EDGE)
    reports = {name: Report() for name in named}
    lowered = {name: pipeline.run(program, reports[name]) for name, program in named.items()}
    kept = replace(config, preserve_ops=[*config.preserve_ops, *preserve])
    if theirs:
        lowered = {name: to_edge_operators(program, named=True) for name, program in lowered.items()}
    edge = EdgeProgramManager(lowered, constant_methods, kept, reports=reports)
    if generate_etrecord:
        edge._etrecord = _new_etrecord()
        edge._etrecord.add_exported_program(named)
        edge._etrecord.add_edge_dialect_program(edge)
    return edge


def _new_etrecord() -> Any:
    """Imported only where one is asked for: tools stand above the compiler."""
    return importlib.import_module("torchette.exir.etrecord").ETRecord()


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
        target: Mapping[str, Sequence[Any]] | None = None,
        etrecord: Any = None,
    ) -> None:
        self._target = dict(target or {})  # method -> what `Partitioner.target_passes` gave
        self._programs = {name: to_edge_operators(p) for name, p in _named(edge_programs).items()}
        self._portable = dict(portable or {})  # methods with delegates -> as they were before
        self._constant_methods = dict(constant_methods or {})
        self.compile_config = compile_config or EdgeCompileConfig()
        self._reports = {name: (reports or {}).get(name) or Report() for name in self._programs}
        self._etrecord = etrecord

    @property
    def _edge_programs(
        self,
    ) -> dict[str, ExportedProgram]:  # by ExecuTorch's name, which its users' code knows
        return self._programs

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
        program = _method(self._programs, method_name)
        program.graph_module.recompile()  # passes edit the graph alone
        return program

    def report(self, method_name: str = "forward") -> Report:
        """What each pass did to a method."""
        return _method(self._reports, method_name)

    def transform(self, passes: Any, compile_config: EdgeCompileConfig | None = None) -> EdgeProgramManager:
        """Run users' passes; returns a new manager and leaves this one as it is.

        Args:
            passes: a pass, a sequence of passes or a PassManager for all methods, or method name -> passes. A pass
                takes a graph module and returns a `PassResult` or None, or takes and returns an ExportedProgram. What a
                pass has in `constant_methods` afterwards, name -> value, the new manager has, too.
            compile_config: as for `to_edge`.
        """
        config = compile_config or self.compile_config
        programs, reports, portable, constants = {}, {}, {}, dict(self._constant_methods)
        for name, program in self._programs.items():
            given = passes.get(name) if isinstance(passes, Mapping) else passes
            pipeline = build(config, transforms=given)
            pipeline = pipeline.only("transform" if flatten(given) else "edge")
            reports[name] = Report(list(self._reports[name].records))
            programs[name] = pipeline.run(program, reports[name])
            if name in self._portable:
                portable[name] = pipeline.run(self._portable[name])
            for one in flatten(given):
                constants |= getattr(one, "constant_methods", {})
        return EdgeProgramManager(
            programs,
            constants,
            config,
            reports=reports,
            portable=portable,
            target=self._target,
            etrecord=self._etrecord,
        )

    def to_backend(self, partitioner: Any) -> EdgeProgramManager:
        """Give to backends what their partitioners choose; returns a new manager and leaves this one as it is.

        Args:
            partitioner: a `Partitioner`, several that are asked in order, or method name -> one or several.

        Raises:
            DelegationError: a backend cannot take what its partitioner has chosen.
        """
        wanted = _partitioners(partitioner, self._programs)
        reports = {name: Report(list(report.records)) for name, report in self._reports.items()}
        target = dict(self._target)
        for name, given in wanted.items():
            for one in given:
                if passes := one.target_passes():
                    kept = keeping_rejections(type(one).__name__)
                    target[name] = [*target.get(name, ()), *passes, kept]
            wanted[name] = [one for one in given if not one.target_passes()]
        wanted = {name: given for name, given in wanted.items() if given}
        pipeline = Pipeline(
            (delegation(wanted),), Options.of(self.compile_config, self.compile_config.preserve_ops)
        )
        programs = {
            **self._programs,
            **pipeline.run_methods({name: self._programs[name] for name in wanted}, reports),
        }
        changed = {name: p for name, p in programs.items() if any(map(delegate.is_delegate_call, calls(p)))}
        portable = {name: self._portable.get(name, self._programs[name]) for name in changed}
        return EdgeProgramManager(
            programs,
            self._constant_methods,
            self.compile_config,
            reports=reports,
            portable=portable,
            target=target,
            etrecord=self._etrecord,
        )

    def delegation(self, method_name: str = "forward") -> Delegation:
        """Where every call of a method runs, what it costs, and why it is not on a backend."""
        return explain(self.exported_program(method_name))

    def _decompose_the_rest(self, preserved: Sequence[Any], config: EdgeCompileConfig) -> EdgeProgramManager:
        """What was kept whole for backends that then did not take it becomes core operators after all."""
        again = build(config, preserve=preserved).only("core again", "edge again")

        def decomposed(programs: Mapping[str, ExportedProgram], reports: Mapping[str, Report]) -> dict:
            return {
                name: keep_reasons(program, again.run(program, reports.get(name)))
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
            target=self._target,
            etrecord=self._etrecord,
        )

    def to_executorch(self, config: ExecutorchBackendConfig | None = None) -> ExecutorchProgramManager:
        """Optimise, plan memory and emit; this manager is left as it is.

        Raises:
            DelegationError: with `strict` in the configuration of Edge, something expensive for which a target has an operator
                stays on the portable kernels. Without `strict` that is a DelegationWarning.
        """
        config = config or ExecutorchBackendConfig()
        programs, reports, planners = {}, {}, []
        portable = self._portable if config.portable_fallback else {}
        fallbacks = {name + pte.PORTABLE: program for name, program in portable.items()}
        for name, program in {**self._programs, **fallbacks}.items():
            method = name.removesuffix(pte.PORTABLE)
            planner = planner_of(config, method)
            if planner not in planners:
                planners.append(planner)
            reports[name] = Report(list(self._reports[name].records) if name in self._reports else [])
            programs[name] = self._pipeline(config, method).only(*TO_PLAN).run(program, reports[name])
        for name in self._programs:
            if placed := reports[name].delegation:
                warn(placed, self.compile_config.strict, rejected=True)
        for planner in planners:
            if hasattr(planner, "run_multimethod"):
                planner.run_multimethod()
        _share_weights(programs, config)
        output = emit_program(
            programs,
            constant_methods=self._constant_methods,
            emit_stacktrace=config.emit_stacktrace,
            source_lines=config.source_lines,
            emit_mutable_buffer_names=config.emit_mutable_buffer_names,
            data_file_of=_data_file_of(config.external_constants),
            file_of_trained=_DATA_FILE if config.external_mutable_weights else None,
        )
        output.named_data = {**output.named_data, **config.named_data}
        program = ExecutorchProgramManager(programs, self._constant_methods, output, config, reports)
        if self._etrecord is not None:
            program._etrecord = self._etrecord.copy()
            program._etrecord.add_executorch_program(program)
        _warn_of_missing_kernels(program)
        return program

    def _pipeline(self, config: ExecutorchBackendConfig, method: str) -> Pipeline:
        checked = self.compile_config.check_passes or config.check_passes
        target = self._target.get(method, ())
        return build(replace(self.compile_config, check_passes=checked), config, method=method, target=target)

    def _optimized(self, name: str, config: ExecutorchBackendConfig) -> ExportedProgram:
        """A method at the end of Edge, where its memory can still be changed by other layers."""
        program = self._pipeline(config, name).only("user", "optimize").run(self._programs[name])
        return split_rows(program, config.row_splits.get(name, ()))

    def __repr__(self) -> str:
        return _describe(
            self, [f"{name}: {_signature_text(p)}" for name, p in sorted(self._programs.items())]
        )

    def _repr_html_(self) -> str:
        return _html(self)


def _warn_of_missing_kernels(program: ExecutorchProgramManager) -> None:
    """The device may have kernels that this machine has not, so that nothing is refused here."""
    missing = program.missing_kernels()
    if missing:
        lines = [
            f"this runtime has no kernel for {', '.join(missing)}; the file loads only where there is one",
            *(f"at {line}, for {name}" for name, line in missing.items()),
            "Try:",
            *(f"- {hint}" for hint in kernel_hints(missing)),
        ]
        warnings.warn("\n  ".join(lines), MissingKernelWarning, stacklevel=3)


_DATA_FILE = "_default_external_constant"


def _data_file_of(choice: bool | Callable[[torch.fx.Node], str | None]) -> Any:
    """For each constant the data file that it goes to, as ExecuTorch chooses and calls it, or as passes have marked its
    placeholder: numbers that stand in the code of a model stay in the program."""
    if choice is True:
        choice = lambda node: _DATA_FILE  # noqa: E731
    if not callable(choice):
        choice = lambda node: node.meta.get("constant_tag")  # noqa: E731
    return lambda node: None if "_lifted_tensor" in node.name else choice(node)


def _share_weights(programs: Mapping[str, ExportedProgram], config: ExecutorchBackendConfig) -> None:
    """Let portable plans have weights as delegates hold them."""
    portable = {name for name in programs if name.endswith(pte.PORTABLE)}
    share_weights(
        (programs[name] for name in sorted(portable)),
        (programs[name] for name in sorted(programs.keys() - portable)),
        _data_file_of(config.external_constants),
    )


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
        self._etrecord: Any = None
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
        for name, data in self._tensor_data.items():
            (Path(outdir) / (name if name.endswith(".ptd") else f"{name}.ptd")).write_bytes(data)

    @property
    def _emitter_output(self) -> Any:
        """What was emitted, by the name that programs of ExecuTorch's users ask for."""
        return self._output

    @property
    def _tensor_data(self) -> dict[str, Any]:
        """The bytes of each of these files, by the name that they were given; programs of ExecuTorch's users ask for it."""
        alignment = self._config.segment_alignment
        return {
            name: ptd.write(named, segment_alignment=alignment)
            for name, named in self._output.data_files.items()
        }

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
    def named_data(self) -> dict[str, Any]:
        """The bytes that the file holds by name."""
        return dict(self._output.named_data)

    @property
    def debug_handle_map(self) -> dict[str, dict[int, Any]]:
        """Method -> instruction -> debug handle of its node."""
        return self._output.debug_handle_map

    def nodes(self, method_name: str = "forward") -> list[torch.fx.Node]:
        """The node of `exported_program(method_name)`, or of a branch of it, that each instruction of the file came from."""
        return _method(self._output.nodes, method_name)

    def values(self, method_name: str = "forward") -> dict[torch.fx.Node, int | tuple[int, ...]]:
        """Node -> the value of the file's method, or the values, that it yields."""
        return _method(self._output.values, method_name)

    @property
    def delegate_map(self) -> dict[str, dict[int, Any]]:
        """Method -> instruction -> {"name": backend, "delegate_map": its own debug handles}."""
        return self._output.delegate_map

    @property
    def instruction_id_to_num_outs_map(self) -> dict[str, dict[int, int]]:
        """Method -> instruction -> number of tensors that it writes."""
        return self._output.instruction_id_to_num_outs_map

    def get_etrecord(self) -> Any:
        """What leads from instructions back to the model, a `torchette.devtools.ETRecord`.

        Raises:
            InputError: the program was made without `generate_etrecord=True`.
        """
        if self._etrecord is None:
            raise InputError(
                "this program has no ETRecord",
                hints=[
                    "to_edge(..., generate_etrecord=True)",
                    "to_edge_transform_and_lower(..., generate_etrecord=True)",
                ],
            )
        return self._etrecord

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

    def missing_kernels(self) -> dict[str, str]:
        """Those of `operators()` that this machine's runtime has no kernel for; none where the runtime is not built."""
        try:
            known = runtime.operator_names()
        except ImportError:
            return {}
        return {name: line for name, line in self.operators().items() if name not in known}

    def __repr__(self) -> str:
        lines = []
        for name, program in sorted(self._programs.items()):
            planned, bound = self.planned_bytes(name)
            lines.append(
                f"{name}: {_signature_text(program)}, {planned} bytes planned (at least {bound} needed)"
            )
        return _describe(self, [f"{len(self._pte)} bytes", *lines])

    def _repr_html_(self) -> str:
        return _html(self)


def _method(items: Mapping[str, Any], name: str) -> Any:
    if name not in items:
        raise KeyError(f"no method {name!r}; there are {', '.join(sorted(items))}")
    return items[name]


def _describe(manager: Any, lines: list[str]) -> str:
    constants = [f"{name}: constant" for name in sorted(manager.config_methods)]
    return "\n  ".join([f"{type(manager).__name__}", *lines, *constants])


def _html(manager: Any) -> str:
    heading, *lines = repr(manager).split("\n  ")
    return notebook.tables([("", (), [(line,) for line in lines])], heading)


def _signature_text(program: ExportedProgram) -> str:
    signature = program.graph_signature
    values = {node.name: node.meta.get("val") for node in placeholders(program)}
    inputs = [shape_text(values.get(str(name), name)) for name in signature.user_inputs]
    by_name = {node.name: node.meta.get("val") for node in program.graph.nodes}
    results = [shape_text(by_name.get(str(name), name)) for name in signature.user_outputs]
    calls = sum(node.op == "call_function" and "alias" not in node.meta for node in program.graph.nodes)
    return f"({', '.join(inputs)}) -> ({', '.join(results)}), {calls} calls"
