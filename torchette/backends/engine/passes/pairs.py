# SPDX-License-Identifier: BSD-3-Clause
# In: linear layers and convolutions with packed float weights, and attention. Out: the same calls on weights in pairs of bfloat16,
# and cpu::bfloat16_attention. The kernels round their inputs to bfloat16 (docs/decisions/0031-bfloat16-with-consent.md).
"""Computes layers in bfloat16."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from torchette.backends.engine.pack import pack_pairs, restore_last_panel
from torchette.backends.engine.passes.constants import Weights
from torchette.exir import control_flow
from torchette.exir.arguments import node_arg
from torchette.exir.graph import add_remark, call, calls, constants, copy_program, note, recompile

cpu = torch.ops.cpu
_LAYERS = (cpu.linear.default, cpu.convolution.default)
_ATTENTION, _ROUNDED_ATTENTION = cpu.attention.default, cpu.bfloat16_attention.default

PRECISIONS = ("float32", "bfloat16", "auto")
TOLERANCE = 0.01


def compute_in_bfloat16(
    program: ExportedProgram, precision: str = "bfloat16", tolerance: float = TOLERANCE
) -> ExportedProgram:
    """Computes linear layers, convolutions and attention in bfloat16. With "auto", `tolerance` limits their number.

    The error is the largest difference of an output from float32 on the example inputs, divided by the largest absolute
    value of that output. It is a remark in the file.
    """
    layers = _layers(program)
    excluded: Collection[int] = ()
    error = 0.0 if not layers else math.nan
    if layers and program.example_inputs is not None:
        excluded, error = _measured(program, len(layers), tolerance if precision == "auto" else math.inf)
    weights = Weights(program)
    for index, node in enumerate(layers):
        if index in excluded:
            continue
        if node.target is _ATTENTION:
            node.target = _ROUNDED_ATTENTION
        else:
            weight = node_arg(node, 1)
            node.update_arg(1, weights.packed(weight, "pairs", lambda one: _pairs(one, node)))  # noqa: B023
    remark = f"bfloat16 in {len(layers) - len(excluded)} of {len(layers)} layers"
    remark += "" if math.isnan(error) else f", error {error:.2g}"
    add_remark(program, "precision", remark)
    note(program, remark)
    recompile(program.graph_module)
    return program


def _layers(program: ExportedProgram) -> list[Node]:
    """Returns the layers with an even number of input channels and a stored weight that only layers read, and attention."""
    stored, callers = constants(program), control_flow.owners(program.graph_module)
    layers = []
    for node in calls(program, *_LAYERS, _ATTENTION):
        if node.target is _ATTENTION:
            if isinstance(depth := node_arg(node, 0).meta["val"].shape[-1], int) and depth % 2 == 0:
                layers.append(node)
            continue
        weight = control_flow.origin(node_arg(node, 1), callers)
        if weight is None or weight not in stored or not stored[weight].is_floating_point():
            continue
        if stored[weight].shape[-2] % 2 == 0 and all(user.target in _LAYERS for user in _readers(weight)):
            layers.append(node)
    return layers


def _readers(value: Node) -> Iterator[Node]:
    """Yields the nodes that read a value, also in branches."""
    for user in value.users:
        if control_flow.form(user) is None:
            yield user
            continue
        for branch in control_flow.branches(user):
            for operand, inside in control_flow.shared_inputs(user, branch):
                if operand is value:
                    yield from _readers(inside)


def _pairs(weight: torch.Tensor, node: Node) -> torch.Tensor:
    if node.target is cpu.linear.default:
        return pack_pairs(restore_last_panel(weight, 3).float())
    strides: Any = node.args[4]
    panels = [restore_last_panel(group, len(strides) + 3) for group in weight]
    return pack_pairs(torch.stack(panels).float())


# ---- errors ----


def _measured(program: ExportedProgram, count: int, tolerance: float) -> tuple[Collection[int], float]:
    """Returns the indices of the layers that stay in float32, and the error of the others together.

    Each layer has an error, computed alone; the layers with the largest errors stay in float32.
    """
    interpreter = _LayerErrors(program)
    expected = _results(program, interpreter)
    # The errors of layers in branches are unknown.
    order = sorted(range(count), key=lambda index: interpreter.errors.get(index, 0.0), reverse=True)

    def error_without(number: int) -> float:
        reduced = _reduced(program, frozenset(order[number:]))
        return _distance(_results(reduced, Interpreter(reduced.graph_module)), expected)

    error = error_without(0)
    if error <= tolerance:
        return (), error
    first, last, error = 0, count, 0.0
    while last - first > 1:  # `first` layers are too few, `last` are enough
        middle = (first + last) // 2
        found = error_without(middle)
        if found <= tolerance:
            last, error = middle, found
        else:
            first = middle
    return frozenset(order[:last]), error


class _LayerErrors(Interpreter):
    """Runs a program in float32.

    Attributes:
        errors: index of a layer -> the error of its result, computed in bfloat16 from exact inputs.
    """

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__(program.graph_module)
        self._layers = {node: index for index, node in enumerate(_layers(program))}
        self.errors: dict[int, float] = {}

    def run_node(self, n: Node) -> Any:
        """Runs a call."""
        exact = super().run_node(n)
        if n in self._layers:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            if n.target is _ATTENTION:
                result = _ROUNDED_ATTENTION(*args, **kwargs)
            else:
                x, weight = (one.to(torch.bfloat16).to(one.dtype) for one in args[:2])
                result = n.target(x, weight, *args[2:], **kwargs)  # type: ignore[operator]
            self.errors[self._layers[n]] = _distance([result], [exact])
        return exact


def _reduced(program: ExportedProgram, indices: Collection[int]) -> ExportedProgram:
    """Returns a copy of a program in which the layers with these indices round their inputs and weights to bfloat16."""
    result = copy_program(program)
    for index, node in enumerate(_layers(result)):
        if index in indices and node.target is _ATTENTION:
            node.target = _ROUNDED_ATTENTION
            continue
        for position in (0, 1) if index in indices else ():
            value = node_arg(node, position)
            val = value.meta["val"]
            for dtype in (torch.bfloat16, val.dtype):
                kwargs = {"dtype": dtype}
                value = call(
                    node, torch.ops.aten._to_copy.default, (value,), kwargs, val=val.to(dtype), like=node
                )
            node.update_arg(position, value)
    recompile(result.graph_module)
    return result


@torch.no_grad()
def _results(program: ExportedProgram, interpreter: Interpreter) -> list[torch.Tensor]:
    """Returns the output tensors of a program for its example inputs."""
    args, kwargs = pytree.tree_map(_copied, program.example_inputs)
    values = map(_copied, program._graph_module_flat_inputs(args, kwargs))
    kinds = (spec.kind for spec in program.graph_signature.output_specs)
    with torch.random.fork_rng(devices=[]):  # all runs draw the same random values
        torch.manual_seed(0)
        results = interpreter.run(*values)
    return [
        result
        for kind, result in zip(kinds, results, strict=True)
        if kind is OutputKind.USER_OUTPUT and isinstance(result, torch.Tensor)
    ]


def _copied(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _distance(results: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Returns the largest difference of an output divided by its largest absolute value; infinity for NaN."""
    largest = 0.0
    for actual, exact in zip(results, expected, strict=True):
        if exact.is_floating_point() and exact.numel() > 0:
            limit = exact.abs().max().item()
            difference = (actual - exact).abs().max().item()
            error = 0.0 if difference == 0 else difference / limit if limit > 0 else math.inf
            largest = max(largest, math.inf if math.isnan(error) else error)
    return largest
