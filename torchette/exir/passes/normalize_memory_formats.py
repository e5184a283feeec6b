# SPDX-License-Identifier: BSD-3-Clause
# In: a graph with memory formats and strides of torch. Out: a graph with only contiguous values in their natural order.
# A channels-last user input keeps its order and is converted once at its first use. A result in channels-last order is
# converted at the end.
"""Makes all values contiguous, outermost dimension first."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from torchette.exir import ops
from torchette.exir.graph import (
    call,
    constants,
    graph_modules,
    is_dense,
    note,
    placeholders,
    rename_outputs,
    replace_constant,
)

aten = torch.ops.aten
_FORMATTED = frozenset({"memory_format", "layout", "device", "pin_memory"})


def normalize_memory_formats(program: ExportedProgram) -> ExportedProgram:
    """Make every value contiguous, remove memory-format arguments, convert channels-last inputs once."""
    for node, tensor in constants(program).items():
        if not tensor.is_contiguous():
            replace_constant(program, node, tensor.detach().contiguous())
    keep = _convert_channels_last_inputs(program) | _keep_ordered_outputs(program)
    for module in graph_modules(program):
        for node in module.graph.nodes:
            if node.op == "call_function" and ops.is_operator(node.target) and node.kwargs:
                _drop_format(node)
            if node not in keep and "val" in node.meta:
                node.meta["val"] = _contiguous(node.meta["val"])
    return program


def _convert_channels_last_inputs(program: ExportedProgram) -> set[Node]:
    inputs: set[Node] = set()
    first_call = next(node for node in program.graph.nodes if node.op != "placeholder")
    for node, spec in zip(placeholders(program), program.graph_signature.input_specs, strict=True):
        val = node.meta.get("val")
        if (
            spec.kind is not InputKind.USER_INPUT
            or not isinstance(val, torch.Tensor)
            or not _channels_last(val)
        ):
            continue
        users = list(node.users)
        if not users:
            continue
        order = list(range(val.dim()))
        converted = call(
            first_call, ops.clone_dim_order, (node,), {"dim_order": order}, val=_contiguous(val), like=node
        )
        for user in users:
            if user.op != "output":
                user.replace_input_with(node, converted)
        inputs.add(node)
    if inputs:
        note(program, f"{len(inputs)} channels-last inputs converted once")
    return inputs


def _keep_ordered_outputs(program: ExportedProgram) -> set[Node]:
    """Adds the copies that convert user results to the memory format that the model requests. Returns them."""
    output, copies = program.graph.output_node(), {}
    for place, spec in enumerate(program.graph_signature.output_specs):
        node = output.args[0][place]
        if spec.kind is not OutputKind.USER_OUTPUT or not isinstance(node, Node) or node in copies:
            continue
        val = node.meta.get("val")
        is_requested = node.kwargs.get("memory_format") in (torch.channels_last, torch.channels_last_3d)
        if is_requested and isinstance(val, torch.Tensor) and _channels_last(val):
            order = [0, *range(2, val.dim()), 1]
            copies[node] = call(
                output, ops.clone_dim_order, (node,), {"dim_order": order}, val=val, like=node
            )
    for node, ordered in copies.items():
        output.replace_input_with(node, ordered)
        rename_outputs(program, node.name, ordered.name)
    if copies:
        note(program, f"{len(copies)} results stay channels-last")
    return set(copies.values())


def _channels_last(val: torch.Tensor) -> bool:
    return (
        val.dim() in (4, 5)
        and not is_dense(val)
        and val.is_contiguous(memory_format=torch.channels_last if val.dim() == 4 else torch.channels_last_3d)
    )


def _drop_format(node: Node) -> None:
    dropped = _FORMATTED & node.kwargs.keys()
    if dropped:
        node.kwargs = {name: value for name, value in node.kwargs.items() if name not in dropped}


def _contiguous(val: object) -> object:
    if isinstance(val, torch.Tensor):
        if val.layout is not torch.strided or is_dense(val):
            return val
        return val.new_empty(val.shape)
    if isinstance(val, (list, tuple)):
        return type(val)(_contiguous(item) for item in val)
    return val
