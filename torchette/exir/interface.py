# SPDX-License-Identifier: BSD-3-Clause
# In: a graph and its signature. Out: the role of each placeholder, the results, and the storage of each node's result.
# The planner and the emitter both use these functions, because they must agree.
"""Inputs, state, outputs and storage of a graph in the EXEC dialect."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.fx import GraphModule, Node

from torchette.exir.graph import state
from torchette.exir.tensor import TensorSpec

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
_STORED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True)
class GraphInterface:
    """The placeholders of a graph by role, and the results that it returns to the caller.

    Without a signature, every placeholder is an input and every result is an output.
    """

    inputs: dict[Node, None] = field(default_factory=dict)
    constants: dict[Node, str] = field(default_factory=dict)  # -> fully qualified name; never written
    mutable_buffers: dict[Node, str] = field(default_factory=dict)  # and parameters that have a gradient
    # Nodes or plain values, without the write-backs. The parameters of the gradients follow the gradients.
    outputs: list[Any] = field(default_factory=list)
    # parameter -> index of its gradient in the outputs
    gradients: dict[str, int] = field(default_factory=dict)
    updates: list[tuple[Any, Node]] = field(default_factory=list)  # (new value, updated buffer or input)

    @classmethod
    def of(cls, graph_module: GraphModule, signature: ExportGraphSignature | None) -> GraphInterface:
        """Reads the interface from a graph and its signature."""
        interface = cls()
        nodes = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        returned = graph_module.graph.output_node().args[0]
        results = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        if signature is None:
            interface.inputs.update(dict.fromkeys(nodes))
            interface.outputs.extend(
                torch.utils._pytree.tree_leaves(returned) if returned is not None else results
            )
            return interface
        changing = state(signature)
        targets: dict[str | None, Node] = {}
        for node, spec in zip(nodes, signature.input_specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                interface.inputs[node] = None
                targets[node.name] = node
            elif spec.kind in _STORED and spec.target in changing:
                interface.mutable_buffers[node] = spec.target
                targets[spec.target] = node
            elif spec.kind in _STORED and spec.target is not None:
                interface.constants[node] = spec.target
        for value, output in zip(results, signature.output_specs, strict=True):
            if output.kind in _MUTATIONS:
                interface.updates.append((value, targets[output.target]))
            elif output.kind is not OutputKind.TOKEN:
                if output.kind is OutputKind.GRADIENT_TO_PARAMETER and output.target is not None:
                    interface.gradients[output.target] = len(interface.outputs)
                interface.outputs.append(value)
        interface.outputs.extend(targets[name] for name in interface.gradients)
        return interface


class ComplexTensor:
    """Wraps a result in a program's output structure if the graph returns a complex tensor as real pairs
    (`torch.view_as_real`). torch rebuilds the complex tensor when a program is called as a module."""


pytree.register_pytree_node(
    ComplexTensor,
    lambda tensor: ([torch.view_as_real(tensor)], None),
    lambda pair, _: torch.view_as_complex(*pair),
    serialized_type_name="torchette.ComplexTensor",
)


def mark_complex_outputs(program: ExportedProgram, are_pairs: Sequence[bool]) -> None:
    """Records which results of the program, without the write-backs, are real pairs that represent complex tensors."""
    leaf = pytree.tree_structure(0)
    marks = iter(are_pairs)

    def marked(spec: pytree.TreeSpec) -> pytree.TreeSpec:
        if spec.is_leaf():
            return pytree.TreeSpec(ComplexTensor, None, [leaf]) if next(marks) else spec
        return pytree.TreeSpec(spec.type, spec.context, [marked(child) for child in spec.children()])

    entry, *submodule_entries = program.module_call_graph
    known = entry.signature.out_spec or pytree.tree_structure((0,) * len(are_pairs))
    # A new list with new entries, because the original of this copy shares the old entries.
    signature = dataclasses.replace(entry.signature, out_spec=marked(known))
    program._module_call_graph = [dataclasses.replace(entry, signature=signature), *submodule_entries]


def specs_of(node: object) -> tuple[TensorSpec | None, ...]:
    """Returns the specs of a node's results; empty if the node yields no tensor."""
    spec = node.meta.get("spec") if isinstance(node, Node) else None
    if isinstance(spec, (tuple, list)):
        return tuple(spec)
    return (spec,) if isinstance(spec, TensorSpec) else ()


def storage_source(node: Node) -> tuple[Node, int] | None:
    """Returns the node that owns the storage of this node's result, and the offset in it; None if the result has its
    own storage."""
    for key in ("alias", "in_place"):
        target = node.meta.get(key)
        if target is not None:
            return (target, 0) if isinstance(target, Node) else (target[0], target[1])
    if isinstance(node.target, torch._ops.OpOverload):
        return _written_argument(node)
    return None


def _written_argument(node: Node) -> tuple[Node, int] | None:
    """Returns the argument that an operator without `out` writes to and returns, such as `self` of `copy_`."""
    written = _written_parameter(node.target)
    if written is None:
        return None
    position, name = written
    value = node.args[position] if position < len(node.args) else node.kwargs.get(name)
    return (value, 0) if isinstance(value, Node) else None


@functools.cache
def _written_parameter(op: OpOverload) -> tuple[int, str] | None:
    schema = op._schema
    if len(schema.returns) != 1 or not schema.is_mutable:
        return None
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write and not argument.is_out:
            return position, argument.name
    return None


def view_sizes(node: Node) -> list[int | Node] | None:
    """Returns the sizes of an alias as the operands of `et_view`: integers, symbolic nodes, or one -1; None if
    unknown."""
    size_arg = node.args[1] if len(node.args) > 1 else None
    if isinstance(node.target, torch._ops.OpOverload):
        name = node.target._overloadpacket._qualified_op_name.partition("::")[2]
        if name in ("view", "view_copy", "_unsafe_view", "reshape") and isinstance(size_arg, (list, tuple)):
            return list(size_arg)
    sizes = list(node.meta["val"].shape)
    fixed: list[int | Node] = [-1 if isinstance(size, torch.SymInt) else int(size) for size in sizes]
    return fixed if fixed.count(-1) <= 1 else None
