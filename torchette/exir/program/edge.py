# SPDX-License-Identifier: BSD-3-Clause
# In: programs in the Edge dialect, one per method. Out: a program manager that transforms, lowers and emits them. Names
# and signatures are those of ExecuTorch; additional ones have a default.
"""`EdgeProgramManager`: programs in the Edge dialect."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from torchette.errors import InputTypeError
from torchette.exir.config import EdgeCompileConfig, ExecutorchBackendConfig
from torchette.exir.delegation.delegate import (
    LoweredBackendModule,
    Partitioner,
    as_one_call,
    is_delegate_call,
)
from torchette.exir.delegation.explain import Delegation, explain, keep_reasons, warn
from torchette.exir.delegation.share_weights import share_weights
from torchette.exir.dialects._ops import to_edge_operators
from torchette.exir.emit import check_constant_method, emit_program
from torchette.exir.graph import calls, mark_shared_state, mark_written_elsewhere, recompile, remarks
from torchette.exir.pass_manager import flatten
from torchette.exir.passes.split_rows import split_rows
from torchette.exir.pipeline import TO_PLAN, Report, build, planner_of, run_stages
from torchette.exir.program.describe import describe, html, method_named, signature_text
from torchette.exir.program.executorch import ExecutorchProgramManager, warn_of_missing_kernels
from torchette.format import pte
from torchette.methods import by_method


def run(
    programs: Mapping[str, ExportedProgram],
    stages: Sequence[str],
    reports: Mapping[str, Report],
    edge: EdgeCompileConfig,
    backend: ExecutorchBackendConfig | None = None,
    **choices: Any,
) -> dict[str, ExportedProgram]:
    """Runs stages of the pipeline that the user's options select.

    Args:
        programs: method name -> program. A fallback (its name ends in `pte.PORTABLE`) has the options of its method.
        stages: names of stages in `pipeline.STAGES`.
        reports: method name -> report that receives a record for each pass.
        edge, backend, choices: see `pipeline.build`.
    """
    pipelines = {
        name: build(edge, backend, method=name.removesuffix(pte.PORTABLE), **choices) for name in programs
    }
    return run_stages(pipelines, programs, reports, stages)


# The accepted forms of partitioners and passes: for all methods, or by method.
Partitioners = Partitioner | Sequence[Partitioner] | Mapping[str, Partitioner | Sequence[Partitioner]] | None
Transforms = (
    Callable[..., Any] | Sequence[Callable[..., Any]] | Mapping[str, Sequence[Callable[..., Any]]] | None
)


def programs_by_method(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
) -> dict[str, ExportedProgram]:
    """Returns method name -> program. Raises InputTypeError unless `programs` is an ExportedProgram or a dict of
    them."""
    named = {"forward": programs} if isinstance(programs, ExportedProgram) else programs
    wrong = (
        named
        if not isinstance(named, Mapping)
        else next((p for p in named.values() if not isinstance(p, ExportedProgram)), None)
    )
    if wrong is not None or not named:
        raise InputTypeError(
            f"expected an ExportedProgram or a dict of them, got {type(wrong).__name__ if wrong is not None else '{}'}",
            hints=[
                "program = torch.export.export(model.eval(), example_inputs)",
                "torchette.compile(model, args)",
            ],
        )
    return dict(named)


def _without_shared_state(program: ExportedProgram) -> ExportedProgram:
    """Returns a shallow copy with separate state: the buffers that it does not write are constants."""
    result = copy.copy(program)
    mark_written_elsewhere(result, ())
    return result


def partitioners_by_method(partitioners: Partitioners, methods: Iterable[str]) -> dict[str, list[Any]]:
    """Returns method name -> partitioners, from any accepted form."""
    result = {
        name: list(each) if isinstance(each, (list, tuple)) else [each]
        for name, each in by_method(partitioners, methods, "partitioner").items()
        if each
    }
    wrong = [one for each in result.values() for one in each if not isinstance(one, Partitioner)]
    if wrong:
        raise InputTypeError(
            f"partitioner: expected a Partitioner, got {wrong[0]!r}",
            hints=["pass an instance, such as XnnpackPartitioner()"],
        )
    return result


def check_constant_methods(constant_methods: Mapping[str, Any] | None, methods: Iterable[str]) -> None:
    """Checks the names and values of a user's constant methods against the names of other methods.

    Raises:
        InputTypeError: a constant method has the name of another method.
        EmitError: the file format cannot store the value of a constant method.
    """
    clash = sorted(set(methods) & set(constant_methods or ()))
    if clash:
        raise InputTypeError(
            f"constant method {', '.join(clash)}: another method has this name",
            hints=["rename the constant method"],
        )
    for name, value in (constant_methods or {}).items():
        check_constant_method(name, value)


class EdgeProgramManager:
    """Programs in the Edge dialect, one per method. `to_edge` and `to_edge_transform_and_lower` return it.

    Example:
        >>> edge = to_edge(exported)
        >>> edge.to_backend(CpuPartitioner()).to_executorch().save("model.pte")
    """

    def __init__(
        self,
        edge_programs: ExportedProgram | Mapping[str, ExportedProgram],
        constant_methods: Mapping[str, Any] | None = None,
        compile_config: EdgeCompileConfig | None = None,
        *,
        reports: Mapping[str, Report] | None = None,
        portable: Mapping[str, ExportedProgram] | None = None,
        targets: Mapping[str, Sequence[Partitioner]] | None = None,
        etrecord: Any = None,
    ) -> None:
        self._targets = dict(targets or {})  # method -> partitioners with `target_passes`
        self._programs = {name: to_edge_operators(p) for name, p in programs_by_method(edge_programs).items()}
        mark_shared_state(self._programs)
        self._portable = dict(portable or {})  # method with delegates -> its program before delegation
        self._constant_methods = dict(constant_methods or {})
        self.compile_config = compile_config or EdgeCompileConfig()
        self._reports = {name: (reports or {}).get(name) or Report() for name in self._programs}
        self._etrecord = etrecord

    @property
    def _edge_programs(
        self,
    ) -> dict[str, ExportedProgram]:  # ExecuTorch's name, which existing user code accesses
        return self._programs

    @property
    def methods(self) -> set[str]:
        """The names of the methods with a program."""
        return set(self._programs)

    @property
    def config_methods(self) -> set[str]:
        """The names of the methods that return a constant."""
        return set(self._constant_methods)

    def exported_program(self, method_name: str = "forward") -> ExportedProgram:
        """Returns the program of a method.

        Args:
            method_name: the name of the method.

        Raises:
            KeyError: there is no such method; the message lists the methods.
        """
        program = method_named(self._programs, method_name)
        recompile(program.graph_module)  # passes edit only the graph
        result: ExportedProgram = program
        return result

    def report(self, method_name: str = "forward") -> Report:
        """Returns the effect of each pass on a method.

        Args:
            method_name: the name of the method.

        Raises:
            KeyError: there is no such method; the message lists the methods.
        """
        result: Report = method_named(self._reports, method_name)
        return result

    def _remarks(self, programs: Mapping[str, ExportedProgram]) -> dict[str, str]:
        """Returns the constant methods with the remarks of the passes."""
        texts = {
            f"{method}_{name}": text
            for method in self._programs
            for name, text in remarks(programs[method]).items()
        }
        check_constant_methods(self._constant_methods, texts)
        return texts

    def transform(
        self, passes: Transforms, compile_config: EdgeCompileConfig | None = None
    ) -> EdgeProgramManager:
        """Runs users' passes. Does not modify this manager.

        Args:
            passes: a pass, a sequence of passes or a PassManager for all methods, or method name -> passes. A pass
                accepts a graph module and returns a `PassResult` or None, or it accepts and returns an
                ExportedProgram. If a pass stores constant methods in its `constant_methods` (name -> value), the
                new manager contains them.
            compile_config: see `to_edge`.

        Returns:
            A new manager.
        """
        config = compile_config or self.compile_config
        transforms = {name: flatten(each) for name, each in by_method(passes, self._programs).items()}
        reports, portable = self._copied_reports(), self._fallbacks()
        programs, constants = {**self._programs, **portable}, dict(self._constant_methods)
        for name in self._programs:
            method_programs = {one: programs[one] for one in (name, name + pte.PORTABLE) if one in programs}
            # Without passes, lower the program to Edge again.
            stage = "transform" if transforms.get(name) else "edge"
            programs |= run(method_programs, (stage,), reports, config, transforms=transforms)
            for one in transforms.get(name, ()):
                constants |= getattr(one, "constant_methods", {})
        return self._with(
            programs={name: programs[name] for name in self._programs},
            constant_methods=constants,
            compile_config=config,
            reports=reports,
            portable={name: programs[name + pte.PORTABLE] for name in self._portable},
        )

    def to_backend(self, partitioner: Partitioners) -> EdgeProgramManager:
        """Lowers the nodes that partitioners choose to backends. Does not modify this manager.

        Args:
            partitioner: a `Partitioner`, several that are called in order, or method name -> one or several.

        Returns:
            A new manager.

        Raises:
            DelegationError: a backend cannot compile the nodes that its partitioner chose.
        """
        reports, targets = self._copied_reports(), dict(self._targets)
        delegating: dict[str, list[Partitioner]] = {}
        for name, partitioners in partitioners_by_method(partitioner, self._programs).items():
            for one in partitioners:
                if one.target_passes():
                    targets[name] = [*targets.get(name, ()), one]
                else:
                    delegating.setdefault(name, []).append(one)
        delegated_programs = run(
            {name: self._programs[name] for name in delegating},
            ("delegate",),
            reports,
            self.compile_config,
            partitioners=delegating,
        )
        programs = {**self._programs, **delegated_programs}
        changed = {name: p for name, p in programs.items() if any(map(is_delegate_call, calls(p)))}
        portable = {name: self._portable.get(name, self._programs[name]) for name in changed}
        return self._with(programs=programs, reports=reports, portable=portable, targets=targets)

    def delegation(self, method_name: str = "forward") -> Delegation:
        """Returns the backend and the cost of every call of a method, and the reasons of the backends that rejected it.

        Args:
            method_name: the name of the method.

        Raises:
            KeyError: there is no such method; the message lists the methods.
        """
        return explain(self.exported_program(method_name))

    def _decompose_preserved(self, preserved: Sequence[Any], config: EdgeCompileConfig) -> EdgeProgramManager:
        """Decomposes operators that were preserved for backends and that no backend chose."""
        programs = {**self._programs, **self._fallbacks()}
        left = {
            name: program
            for name, program in programs.items()
            if any(True for _ in calls(program, *preserved))
        }
        stages = ("core again", "edge again")
        for name, program in run(left, stages, self._reports, config, preserve=preserved).items():
            programs[name] = keep_reasons(left[name], program)
        return self._with(
            programs={name: programs[name] for name in self._programs},
            compile_config=config,
            portable={name: programs[name + pte.PORTABLE] for name in self._portable},
        )

    def _with(self, *, programs: Mapping[str, ExportedProgram], **changes: Any) -> EdgeProgramManager:
        """Returns a new manager with these programs and changes, and with the other data of this manager."""
        defaults = {
            "constant_methods": self._constant_methods,
            "compile_config": self.compile_config,
            "reports": self._reports,
            "portable": self._portable,
            "targets": self._targets,
            "etrecord": self._etrecord,
        }
        return EdgeProgramManager(programs, **{**defaults, **changes})

    def _copied_reports(self) -> dict[str, Report]:
        """Returns method -> a new report that continues the report of the method."""
        return {name: Report(list(report.records)) for name, report in self._reports.items()}

    def _fallbacks(self) -> dict[str, ExportedProgram]:
        """Returns the methods that run if a backend is missing, under their names in the file."""
        return {name + pte.PORTABLE: program for name, program in self._portable.items()}

    def to_executorch(self, config: ExecutorchBackendConfig | None = None) -> ExecutorchProgramManager:
        """Optimizes the programs, plans memory and emits the file. Does not modify this manager.

        Args:
            config: see `ExecutorchBackendConfig`.

        Returns:
            The finished program.

        Raises:
            PlanError: the tensors exceed the sizes of the memories.
            CompileError: code "does-not-load": the runtime refuses a method of the file.
            DelegationError: with `strict` in the Edge configuration, an expensive call that a target has an operator
                for runs on a portable kernel. Without `strict` this is a DelegationWarning.

        Example:
            >>> program = edge.to_executorch(ExecutorchBackendConfig(segment_alignment=4096))
        """
        config = config or ExecutorchBackendConfig()
        programs = {**self._programs, **(self._fallbacks() if config.portable_fallback else {})}
        programs = {
            name: program if _shares_state(config, name) else _without_shared_state(program)
            for name, program in programs.items()
        }
        reports = {name: Report() for name in programs} | self._copied_reports()
        programs = self._run(programs, TO_PLAN, config, reports)
        for name in self._programs:
            if placed := reports[name].delegation:
                warn(placed, self.compile_config.strict, rejected=True)
        _plan_across_methods(config, self._programs)
        _share_weights(programs, config)
        constant_methods = {**self._constant_methods, **self._remarks(programs)}
        output = emit_program(
            programs,
            constant_methods=constant_methods,
            emit_stacktrace=config.emit_stacktrace,
            source_lines=config.source_lines,
            emit_mutable_buffer_names=config.emit_mutable_buffer_names,
            data_file_of=_data_file_of(config.external_constants),
            file_of_trained=_DATA_FILE if config.external_mutable_weights else None,
        )
        output.named_data = {**output.named_data, **config.named_data}
        program = ExecutorchProgramManager(programs, constant_methods, output, config, reports)
        if self._etrecord is not None:
            program._etrecord = self._etrecord.copy()
            program._etrecord.add_executorch_program(program)
        warn_of_missing_kernels(program)
        return program

    def _run(
        self,
        programs: Mapping[str, ExportedProgram],
        stages: Sequence[str],
        config: ExecutorchBackendConfig,
        reports: Mapping[str, Report],
    ) -> dict[str, ExportedProgram]:
        return run(programs, stages, reports, self.compile_config, config, partitioners=self._targets)

    def _optimized(self, name: str, config: ExecutorchBackendConfig) -> ExportedProgram:
        """Returns a method at the end of the Edge stages. Another split into rows can still change its memory."""
        program = self._run({name: self._programs[name]}, ("user", "optimize"), config, {})[name]
        return split_rows(program, config.row_splits.get(name, ()))

    def __repr__(self) -> str:
        return describe(self, [f"{name}: {signature_text(p)}" for name, p in sorted(self._programs.items())])

    def _repr_html_(self) -> str:
        return html(self)


def _lowered_to_executorch(
    lowered: LoweredBackendModule, memory_planning: object, options: Mapping[str, Any]
) -> ExecutorchProgramManager:
    """Returns a program with one instruction that calls the backend. Implements `LoweredBackendModule.buffer`."""
    if memory_planning is not None:
        options = {**options, "memory_planning_pass": memory_planning}
    return EdgeProgramManager(as_one_call(lowered)).to_executorch(ExecutorchBackendConfig(**options))


LoweredBackendModule.to_executorch = _lowered_to_executorch


def _shares_state(config: ExecutorchBackendConfig, method: str) -> bool:
    planner = planner_of(config, method.removesuffix(pte.PORTABLE))
    return bool(getattr(planner, "share_mutable_buffers", False))


def _plan_across_methods(config: ExecutorchBackendConfig, methods: Iterable[str]) -> None:
    """Completes the plans of memory that methods share."""
    planners: list[Any] = []
    for planner in (planner_of(config, method) for method in methods):
        if planner not in planners:
            planners.append(planner)
            if hasattr(planner, "run_multimethod"):
                planner.run_multimethod()


_DATA_FILE = "_default_external_constant"


def _data_file_of(choice: bool | Callable[[torch.fx.Node], str | None]) -> Any:
    """Returns a function from a constant to the name of its data file: ExecuTorch's default name, the user's function,
    or the tag that passes set on the placeholder. Literals in the code of a model stay in the program."""
    if choice is True:
        choice = lambda node: _DATA_FILE  # noqa: E731
    if not callable(choice):
        choice = lambda node: node.meta.get("constant_tag")  # noqa: E731
    return lambda node: None if "_lifted_tensor" in node.name else choice(node)


def _share_weights(programs: Mapping[str, ExportedProgram], config: ExecutorchBackendConfig) -> None:
    """Lets portable plans use weights in the layout that delegates store."""
    portable = {name for name in programs if name.endswith(pte.PORTABLE)}
    share_weights(
        (programs[name] for name in sorted(portable)),
        (programs[name] for name in sorted(programs.keys() - portable)),
        _data_file_of(config.external_constants),
    )
