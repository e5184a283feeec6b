# SPDX-License-Identifier: BSD-3-Clause
# In: a program. Out: (node or None, message) for each violation of a rule about the whole program. The table of rules,
# with codes, sentences and remedies, follows the functions.
"""Checks of programs. `torchette.exir.dialects` assigns them to dialects."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from torchette.exir import ops
from torchette.exir.dialects import accepted, node_checks
from torchette.exir.dialects.rules import PASS_FAULT, ProgramCheck
from torchette.exir.graph import graph_modules, outputs, placeholders
from torchette.units import counted


def _lint(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    for module in graph_modules(program):
        fault = _lint_fault(module)
        if fault is not None:
            yield None, fault


def _lint_fault(module: GraphModule) -> str | None:
    try:
        module.graph.lint()
    except RuntimeError as error:
        return str(error)
    return None


def _signature(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    specs = program.graph_signature.input_specs
    inputs = placeholders(program)
    if len(inputs) != len(specs):
        yield None, f"the graph has {counted(len(inputs), 'input')}, but the signature has {len(specs)}"
        return
    for node, spec in zip(inputs, specs, strict=True):
        if getattr(spec.arg, "name", node.name) != node.name:
            yield node, f"input {node.name} has the name {spec.arg.name} in the signature"


def _stored(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    for node, spec in zip(placeholders(program), program.graph_signature.input_specs, strict=False):
        if (
            spec.kind in kinds
            and spec.target not in program.state_dict
            and spec.target not in program.constants
        ):
            yield node, f"{spec.target} is an input of the graph, but no tensor of that name is stored"


def _without_values(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    """Reports stored tensors without data, which torch.export creates for `x.data`."""
    for node, spec in zip(placeholders(program), program.graph_signature.input_specs, strict=False):
        stored = program.state_dict.get(spec.target, program.constants.get(spec.target))
        if isinstance(stored, torch.Tensor) and (isinstance(stored, FakeTensor) or stored.is_meta):
            for reader in list(node.users)[:1]:
                yield reader, f"{spec.target} has no values, only a shape"


def _updated_constants(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    constants = {
        node
        for node, spec in zip(placeholders(program), program.graph_signature.input_specs, strict=False)
        if spec.kind is InputKind.CONSTANT_TENSOR
    }
    for node in program.graph.nodes:
        if node.op != "call_function" or not ops.is_mutating(node.target):
            continue
        for written in ops.written_arguments(node):
            base = node_checks.base_of(written)
            if base in constants:
                yield (
                    node,
                    f"{accepted.target_text(node)} changes {base.name}, which is a constant of the program",
                )


def _returned(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    values, specs = outputs(program), program.graph_signature.output_specs
    if len(values) != len(specs):
        yield (
            program.graph.output_node(),
            f"the graph has {counted(len(values), 'output')}, but the signature has {len(specs)}",
        )
        return
    for value, spec in zip(values, specs, strict=True):
        if isinstance(value, Node) and getattr(spec.arg, "name", value.name) != value.name:
            yield value, f"output {value.name} has the name {spec.arg.name} in the signature"


def _mutations(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    known = set(program.graph_signature.buffers)
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.BUFFER_MUTATION and spec.target not in known:
            yield None, f"{spec.target} is updated, but is not a buffer of the program"


def _written_back(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    for value, spec in zip(outputs(program), program.graph_signature.output_specs, strict=False):
        mutation = spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
        if (
            mutation
            and isinstance(value, Node)
            and value.op != "placeholder"
            and "in_place" not in value.meta
        ):
            yield value, f"the new value of {spec.target} is not written back"


def _repeated_inputs(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    inputs_given = pytree.tree_leaves(program.example_inputs)
    users = set(program.graph_signature.user_inputs)
    inputs = [node for node in placeholders(program) if node.name in users]
    if len(inputs_given) != len(inputs):
        return
    same: dict[int, list[Node]] = {}
    for value, node in zip(inputs_given, inputs, strict=True):
        if isinstance(value, torch.Tensor):
            same.setdefault(id(value), []).append(node)
    for nodes in same.values():
        read = [node for node in nodes if node.users]
        for node in nodes if read else ():
            if node not in read:
                yield (
                    node,
                    f"{node.name} and {read[0].name} were the same tensor at export, and the program reads "
                    f"{read[0].name} for both",
                )


# ---- the rules ----

# Rules of every dialect.
PROGRAM_CHECKS = (
    ProgramCheck("broken-graph", "The graph lints: every value is defined once, before it is used.", PASS_FAULT, _lint),
    ProgramCheck("broken-inputs", "Graph and signature agree on the inputs.", PASS_FAULT, _signature),
    ProgramCheck("missing-tensor", "Every parameter, buffer and constant is stored.", PASS_FAULT, _stored),
    ProgramCheck("broken-outputs", "Graph and signature agree on the outputs.", PASS_FAULT, _returned),
    ProgramCheck("unknown-buffer", "Updated buffers exist.", PASS_FAULT, _mutations),
)  # fmt: skip
WITHOUT_VALUES = ProgramCheck(
    "tensor-without-values",
    "Stored tensors have values.",
    "write x.detach() instead of x.data; do not use fake tensors or tensors on the device meta",
    _without_values,
)
UPDATED_CONSTANT = ProgramCheck(
    "updated-constant",
    "Only buffers are updated.",
    "make it a buffer: self.register_buffer('state', tensor) instead of self.state = tensor",
    _updated_constants,
)
ONE_TENSOR_TWICE = ProgramCheck(
    "one-tensor-twice",
    "Inputs that were the same tensor at export are not read.",
    "export with a copy: (x, x.clone()) instead of (x, x), or compile the module itself",
    _repeated_inputs,
)
NOT_WRITTEN_BACK = ProgramCheck(
    "not-written-back",
    "New values of buffers are written back.",
    "run update_buffers_in_place",
    _written_back,
)
