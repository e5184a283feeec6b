# SPDX-License-Identifier: BSD-3-Clause
# In: the program that torch.export captured. Out: functional core ATen. Only this pass traces: torch's decompositions
# run once, with additional entries in their table.
"""Decompose to core ATen operators and make every mutation functional."""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch._export.utils import _collect_all_valid_cia_ops, _special_op_to_preserve_cia
from torch.export import ExportedProgram, default_decompositions, exported_program
from torch.export.graph_signature import InputKind, OutputKind

from torchette.errors import UnsupportedError
from torchette.exir import control_flow, decompositions, ops
from torchette.exir.arguments import node_arg
from torchette.exir.decompositions import histograms, linear_algebra, random_numbers
from torchette.exir.graph import call, calls, graph_modules, place, replace
from torchette.exir.passes.decompose_repeated import decompose_calls, decompose_repeated
from torchette.exir.passes.number_calls import numbers_of
from torchette.exir.passes.split_complex import split_complex
from torchette.exir.passes.steps_to_scan import steps_to_scan
from torchette.exir.passes.substitution_to_matmul import substitution_to_matmul

aten = torch.ops.aten


def decompose_to_core(
    program: ExportedProgram,
    preserve: Iterable[torch._ops.OpOverload] = (),
    train_mode: bool = False,
    remaining: Collection[torch._ops.OpOverload] = (),
) -> ExportedProgram:
    """Decompose operators to core ATen, except the preserved ones. Mutations become outputs.

    Args:
        program: a captured program, or with `remaining` a program of core ATen.
        preserve: operators that stay.
        train_mode: see `EdgeCompileConfig`.
        remaining: the only operators to decompose. The others are core ATen already.
    """
    operators = len(torch._C._dispatch_get_all_op_names())  # 3 ms
    table = dict(_table(operators))
    if train_mode:
        table |= random_numbers.IN_TRAINING
    preserve = tuple(preserve)
    for op in (*ops.EXTRAS, *preserve):
        table.pop(op, None)
    if remaining and decompose_calls(program, remaining, functools.partial(_traced, table, operators)):
        return split_complex(program, table)
    _check_stacking_loops(program)
    _views_to_reshapes(program)
    _vector_weights_to_matmul(program)
    steps_to_scan(program, preserve)
    substitution_to_matmul(program)
    number = numbers_of(program)
    trace = functools.partial(_traced, table, operators)
    with _no_garbage_collection():
        program = decompose_repeated(program, trace) or trace(program)
    number(program)
    _parameters_as_state(program)
    return split_complex(program, table)


def _traced(
    table: dict[Any, Callable[..., Any]], operators: int, program: ExportedProgram
) -> ExportedProgram:
    """Returns the program that torch traces with a table of decompositions."""
    with warnings.catch_warnings():
        # torch warns about its own call.
        warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)
        with _no_garbage_collection(), _few_overrides(operators):
            traced: ExportedProgram = program.run_decompositions(table)
    return traced


def _check_stacking_loops(program: ExportedProgram) -> None:
    """Rejects while_loop_stack_output calls that cannot be compiled.

    torch.export leaves a weight that the body reads as an attribute of the body, and cannot decompose the call then.
    The number of iterations is found by an additional first run; a second run with other random values could differ.
    """
    for loop in calls(program):
        if control_flow.name(loop.target) != "while_loop_stack_output":
            continue
        for branch in control_flow.branches(loop):
            for node in (node for module in control_flow.graphs(branch) for node in module.graph.nodes):
                attribute = getattr(node.graph.owning_module, str(node.target), None)
                if node.op == "get_attr" and isinstance(attribute, torch.Tensor):
                    problem, hint = (
                        "reads a tensor of the module",
                        "pass it to the loop in additional_inputs",
                    )
                elif torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                    problem, hint = "draws random numbers", "draw them before the loop, or use while_loop"
                else:
                    continue
                raise UnsupportedError(
                    f"the body of a while_loop_stack_output {problem} ({node.name})",
                    where=[place(loop)],
                    hints=[hint],
                )


def _views_to_reshapes(program: ExportedProgram) -> None:
    """Replaces views by reshapes, because a decomposition may return other strides than eager's operator, which permit
    no view. A view of a tensor that the graph updates in place stays, because a reshape may copy."""
    for module in graph_modules(program):
        updated = {
            _base(changed)
            for node in module.graph.nodes
            if ops.is_mutating(node.target)
            for changed in ops.written_arguments(node)
        }
        for node in module.graph.find_nodes(op="call_function", target=aten.view.default):
            if _base(node) not in updated:
                node.target = aten.reshape.default


def _vector_weights_to_matmul(program: ExportedProgram) -> None:
    """Replaces linear layers with a vector as weight by matmul. The linear of core ATen has a matrix."""
    for node in calls(program, aten.linear.default):
        x, weight, bias = (*node.args, None)[:3]
        if node_arg(node, 1).meta["val"].dim() != 1:
            continue
        val = node.meta["val"]
        result = call(node, aten.matmul.default, (x, weight), val=val, like=node)
        if bias is not None:
            result = call(node, aten.add.Tensor, (result, bias), val=val, like=node)
        replace(program, node, result)


def _base(node: torch.fx.Node) -> torch.fx.Node:
    """Returns the node at the start of a chain of views, which share its memory."""
    while (ops.is_view(node.target) or node.target is operator.getitem) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _parameters_as_state(program: ExportedProgram) -> None:
    """Marks a parameter that the model updates as state, like a buffer."""
    signature = program.graph_signature
    changed = [spec for spec in signature.output_specs if spec.kind is OutputKind.PARAMETER_MUTATION]
    for spec in changed:
        spec.kind = OutputKind.BUFFER_MUTATION
    targets = {spec.target for spec in changed}
    for input_spec in signature.input_specs:
        if input_spec.kind is InputKind.PARAMETER and input_spec.target in targets:
            input_spec.kind, input_spec.persistent = InputKind.BUFFER, True


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disables garbage collection. Tracing creates many short-lived objects, and each collection that they trigger
    visits all objects of torch, which needs up to a quarter of the time. Remaining cycles are collected later."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _few_overrides(operators: int) -> Iterator[None]:
    """Reduces the overrides of operators. For each call, torch collects the composite operators of all namespaces and
    overrides each one, even with its own kernel. This needs two thirds of the compile time of a small model. Here only
    rules other than an operator's own kernel are overrides."""

    def split(
        table: dict[Any, Callable[..., Any]],
    ) -> tuple[dict[Any, Callable[..., Any]], dict[Any, Callable[..., Any]]]:
        composites = _composites(operators)
        overrides = {op: table.get(op, _special_op_to_preserve_cia) for op in composites}
        overrides = {op: rule for op, rule in overrides.items() if not _is_own_rule(op, rule)}
        return overrides, {op: rule for op, rule in table.items() if op not in composites}

    name = "_split_decomp_table_to_cia_and_python_decomp"
    before = getattr(exported_program, name)
    setattr(exported_program, name, split)
    try:
        yield
    finally:
        setattr(exported_program, name, before)


def _is_own_rule(op: object, rule: Callable[..., Any]) -> bool:
    """Returns whether a rule of torch's table is the operator's own kernel."""
    return isinstance(rule, functools.partial) and rule.keywords.get("kernel") is op


@functools.cache
def _composites(operators: int) -> frozenset[Any]:
    """Returns the operators that torch.export preserves if no rule decomposes them. `operators` is the cache key."""
    return frozenset(_collect_all_valid_cia_ops())


@functools.cache
def _table(operators: int) -> dict[Any, Callable[..., Any]]:
    """Returns torch's table with additional rules. Reading torch's table needs tens of milliseconds, so the result is
    cached until an operator is registered."""
    table = dict(default_decompositions().items())
    wrapped = {op: make(table[op]) for op, make in decompositions.WRAPPERS.items()}
    registered = set(torch._C._dispatch_get_all_op_names())
    foreign = {
        getattr(getattr(torch.ops, namespace), name).default: rule
        for namespace, _, name, rule in (
            (*full.partition("::"), rule) for full, rule in decompositions.FOREIGN.items()
        )
        if f"{namespace}::{name}" in registered
    }
    return {
        **table,
        **foreign,
        **decompositions.TABLE,
        **histograms.TABLE,
        **linear_algebra.TABLE,
        **random_numbers.TABLE,
        **wrapped,
    }
