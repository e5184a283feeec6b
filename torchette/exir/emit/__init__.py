# SPDX-License-Identifier: BSD-3-Clause
# In: planned programs, one per method. Out: the records of a .pte file and the buffers of its weights. The plan defines
# locations and order; the graph defines calls and assertions. Equal data is stored once. Emission does not edit the
# graph and visits each node once.
"""Emission: converts planned ExportedPrograms to the records of `torchette.format.pte`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.errors import EmitError
from torchette.exir.emit.constants import DataFiles, Storage, Store
from torchette.exir.emit.delegates import Delegates
from torchette.exir.emit.metadata import source_line, stack_trace, structure
from torchette.exir.emit.method import MethodEmitter
from torchette.exir.emit.output import EmitterOutput
from torchette.exir.emit.records import Unsupported, plain, scalar_record, tensor_record
from torchette.exir.graph import place
from torchette.exir.tensor import TensorSpec
from torchette.format import pte

__all__ = ["EmitterOutput", "emit_program"]

SCHEMA_VERSION = 0


def emit_program(
    methods: ExportedProgram | Mapping[str, ExportedProgram],
    emit_stacktrace: bool = False,
    constant_methods: Mapping[str, Any] | None = None,
    *,
    source_lines: bool = False,
    emit_mutable_buffer_names: bool = False,
    data_file_of: Callable[[Node], str | None] | None = None,
    file_of_trained: str | None = None,
) -> EmitterOutput:
    """Converts planned programs in the EXEC dialect to the records of one file.

    Args:
        methods: method name -> program that `MemoryPlanningPass` has planned. A single program becomes "forward".
        constant_methods: method name -> scalar, string, tensor, or a structure of them that the method returns.
        emit_stacktrace: store, for each instruction, the full stack trace of the call that it was compiled from.
        source_lines: store, for each instruction, the source line of the user's model.
        emit_mutable_buffer_names: store the fully qualified names of state; state may then be unplanned.
        data_file_of: returns, for the placeholder of a constant, the name of its data file, or None for the program.
        file_of_trained: the data file of parameters with gradients if `data_file_of` returns None.

    Returns:
        Records and buffers. The buffers are views of the programs' tensors if those are dense.

    Raises:
        EmitError: the file format cannot represent some nodes. The error lists all of them with their source lines.
    """
    if isinstance(methods, ExportedProgram):
        methods = {"forward": methods}
    origin = stack_trace if emit_stacktrace else source_line if source_lines else None
    lines_of = functools.partial(origin, listed={}) if origin else None
    constants, mutable_data, delegates = Store(), Store(), Delegates()
    outside = DataFiles(data_file_of, file_of_trained)
    storage = Storage(constants, mutable_data, outside, emit_mutable_buffer_names)
    output = EmitterOutput(None, constants.buffers, mutable_data.buffers, delegates.blobs)
    plans, problems = [], []
    returned = dict(constant_methods or {})
    for name, program in sorted(methods.items()):
        emitter = MethodEmitter(name, program, storage, delegates, lines_of)
        plans.append(emitter.emit())
        problems += emitter.problems
        if emitter.interface.gradients:
            returned |= _training_methods(emitter)
        output.debug_handle_map[name] = emitter.code.debug_handles
        output.nodes[name], output.values[name] = emitter.code.nodes, emitter.values.of_node
        output.instruction_id_to_num_outs_map[name] = emitter.code.results_written
        output.delegate_map[name] = emitter.delegate_map
    if problems:
        raise _error(problems)
    for name, value in sorted(returned.items()):
        if name in methods:
            raise ValueError(f"{name!r} is both a method and a constant method")
        plans.append(_constant_method(name, value, constants))
    if len(mutable_data.buffers) == 1:
        mutable_data.buffers.clear()
    output.data_files = outside.files
    delegates.named_data(output)
    output.program = pte.Program(version=SCHEMA_VERSION, execution_plan=plans)
    return output


def _training_methods(method: MethodEmitter) -> dict[str, Any]:
    """Returns the constant methods that tell ExecuTorch's training module at which outputs gradients and parameters
    begin."""
    gradients, count = method.interface.gradients, len(method.interface.outputs)
    values = {
        "gradients_index": min(gradients.values()),
        "parameters_index": count - len(gradients),
        "fqn": tuple(gradients),
    }
    return {f"__et_training_{what}_{method.name}": value for what, value in values.items()}


def check_constant_method(name: str, value: object) -> None:
    """Raises EmitError if a file cannot store the value of a constant method."""
    for leaf in pytree.tree_leaves(value):
        if not isinstance(leaf, torch.Tensor):
            _constant_scalar(name, leaf)


def _constant_scalar(name: str, value: object) -> Any:
    try:
        return scalar_record(plain(value, ""))
    except Unsupported as problem:
        raise EmitError(
            f"constant method {name!r} cannot return {problem}",
            hints=["return tensors, scalars, strings, None, or tuples, lists and dicts of them"],
        ) from None


def _constant_method(name: str, value: object, constants: Store) -> Any:
    """Returns a method without instructions that returns stored values."""
    values = []
    leaves, tree = pytree.tree_flatten(value)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            spec = TensorSpec.from_tensor(leaf, const=True)
            record = tensor_record(spec, constants.add(leaf, spec.dim_order))
        else:
            record = _constant_scalar(name, leaf)
        values.append(pte.EValue(record))
    return pte.ExecutionPlan(
        name=name,
        container_meta_type=pte.ContainerMetadata("", structure(tree)),
        values=values,
        outputs=list(range(len(values))),
        chains=[pte.Chain()],
        non_const_buffer_sizes=[0],
    )


def _error(problems: list[tuple[str, Node, str]]) -> EmitError:
    many = "s have" if len(problems) > 1 else " has"
    return EmitError(
        f"{len(problems)} node{many} no representation in the file format",
        where=[f"{method}, {node.name}: {text}\n{place(node)}" for method, node, text in problems],
        hints=[
            "rewrite these lines with other operators or dtypes",
            "compile with check_passes=True, which names the pass if a pass produced this graph",
        ],
    )
