# SPDX-License-Identifier: BSD-3-Clause
# In: ExportedPrograms, one per method. Out: a program manager that transforms, lowers and writes them as a .pte file.
# Names, fields and signatures are those of ExecuTorch; additional ones have a default.
"""`to_edge`, `to_edge_transform_and_lower`, and the managers that they return."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.export import ExportedProgram

from torchette.exir import ops
from torchette.exir.cached_size_arithmetic import cached_size_arithmetic
from torchette.exir.config import DynamicMemoryPlanningMode as DynamicMemoryPlanningMode
from torchette.exir.config import EdgeCompileConfig as EdgeCompileConfig
from torchette.exir.config import ExecutorchBackendConfig as ExecutorchBackendConfig
from torchette.exir.delegation import delegate
from torchette.exir.delegation.explain import warn
from torchette.exir.dialects._ops import to_edge_operators
from torchette.exir.graph import calls
from torchette.exir.pipeline import TO_EDGE, Report
from torchette.exir.program.edge import EdgeProgramManager as EdgeProgramManager
from torchette.exir.program.edge import (
    Partitioners,
    Transforms,
    partitioners_by_method,
    programs_by_method,
    run,
)
from torchette.exir.program.edge import check_constant_methods as check_constant_methods
from torchette.exir.program.executorch import ExecutorchProgramManager as ExecutorchProgramManager
from torchette.packages import warn_of_untested_torch

if TYPE_CHECKING:
    from torchette.exir.delegation.delegate import Partitioner


def to_edge(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    constant_methods: Mapping[str, Any] | None = None,
    compile_config: EdgeCompileConfig | None = None,
    generate_etrecord: bool = False,
) -> EdgeProgramManager:
    """Lowers exported programs to the Edge dialect.

    Args:
        programs: an ExportedProgram, or method name -> program. The programs are not modified.
        constant_methods: method name -> value that the method returns.
        compile_config: see `EdgeCompileConfig`.
        generate_etrecord: keep the stages for `ExecutorchProgramManager.get_etrecord()`.

    Returns:
        A manager of the lowered programs.

    Raises:
        DialectError: core ATen or Edge does not allow some nodes. The error lists all of them with their source lines.

    Example:
        >>> edge = to_edge(torch.export.export(model.eval(), example_inputs))
        >>> edge.to_executorch().save("model.pte")
    """
    return _to_edge(programs, constant_methods, compile_config, generate_etrecord, {}, (), True)


def to_edge_transform_and_lower(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    transform_passes: Transforms = None,
    partitioner: Partitioners = None,
    constant_methods: Mapping[str, Any] | None = None,
    compile_config: EdgeCompileConfig | None = None,
    generate_etrecord: bool = False,
) -> EdgeProgramManager:
    """Lowers exported programs to the Edge dialect, runs users' passes, and lowers the programs to backends.

    Args:
        programs: see `to_edge`.
        transform_passes: passes for all methods, a PassManager, or method name -> passes.
        partitioner: a `Partitioner`, several that are called in order, or method name -> one or several.
            `CpuPartitioner()` selects the CPU engine, which runs the calls that the others leave, after `to_executorch`
            has optimized them.
        constant_methods, compile_config, generate_etrecord: see `to_edge`.

    Returns:
        A manager of the lowered programs.

    Raises:
        DialectError: see `to_edge`.
        DelegationError: a backend cannot compile the nodes that its partitioner chose, or `strict` is set and no
            backend runs an expensive call.

    Example:
        >>> edge = to_edge_transform_and_lower(exported, partitioner=[CpuPartitioner()])
    """
    return transform_and_lower(
        programs, transform_passes, partitioner, constant_methods, compile_config, generate_etrecord, True
    )


def transform_and_lower(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    transform_passes: Transforms,
    partitioner: Partitioners,
    constant_methods: Mapping[str, Any] | None,
    compile_config: EdgeCompileConfig | None,
    generate_etrecord: bool,
    theirs: bool,
) -> EdgeProgramManager:
    """Implements `to_edge_transform_and_lower`. Calls keep the names that torch chose unless `theirs` is true."""
    named = programs_by_method(programs)
    partitioners = partitioners_by_method(partitioner, named)
    config = compile_config or EdgeCompileConfig()
    named = {
        name: _before_decomposition(program, partitioners.get(name, ())) for name, program in named.items()
    }
    preserve = tuple(
        {
            op: None
            for name, method_partitioners in partitioners.items()
            for one in method_partitioners
            for op in _preserved_operators(one, named[name])
            if op not in config.preserve_ops
        }
    )
    edge = _to_edge(named, constant_methods, config, generate_etrecord, partitioners, preserve, theirs)
    if transform_passes:
        edge = edge.transform(transform_passes)
        if edge._etrecord is not None:
            edge._etrecord.add_extra_export_modules({"edge_after_transform": edge})
    if not partitioners:
        return edge
    edge = edge.to_backend(partitioners)
    if preserve:
        edge = edge._decompose_preserved(preserve, config)
    for name in partitioners:
        if not edge._targets.get(name):  # these partitioners choose their operators later
            warn(edge.delegation(name), config.strict)
    return edge


@cached_size_arithmetic()
def _before_decomposition(program: ExportedProgram, partitioners: Sequence[Any]) -> ExportedProgram:
    for partitioner in partitioners:
        program = partitioner.transform_for_pre_decomposition(program)
    return program


def _preserved_operators(partitioner: Partitioner, program: ExportedProgram) -> list[Any]:
    """Returns the operators of a program that a partitioner requests not to decompose."""
    operators, filter_op = partitioner.ops_to_not_decompose(program)
    used: dict[Any, list[Any]] = {}
    for node in calls(program):
        used.setdefault(ops.functional(node.target), []).append(node)
    return [
        op for op in operators if any(delegate.passes_filter(node, filter_op) for node in used.get(op, ()))
    ]


def _to_edge(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    constant_methods: Mapping[str, Any] | None,
    config: EdgeCompileConfig | None,
    generate_etrecord: bool,
    partitioners: Mapping[str, Sequence[Any]],
    preserve: Sequence[Any],
    theirs: bool,
) -> EdgeProgramManager:
    warn_of_untested_torch()
    config = config or EdgeCompileConfig()
    named = programs_by_method(programs)
    check_constant_methods(constant_methods, named)
    reports = {name: Report() for name in named}
    lowered = run(named, TO_EDGE, reports, config, partitioners=partitioners, preserve=preserve)
    extended_config = replace(config, preserve_ops=[*config.preserve_ops, *preserve])
    if theirs:
        lowered = {name: to_edge_operators(program, named=True) for name, program in lowered.items()}
    edge = EdgeProgramManager(lowered, constant_methods, extended_config, reports=reports)
    if generate_etrecord:
        edge._etrecord = _new_etrecord()
        edge._etrecord.add_exported_program(named)
        edge._etrecord.add_edge_dialect_program(edge)
    return edge


def _new_etrecord() -> Any:
    """Imports the class on demand, because it belongs to a higher layer than the compiler."""
    return importlib.import_module("torchette.exir.etrecord").ETRecord()
