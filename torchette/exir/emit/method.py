# SPDX-License-Identifier: BSD-3-Clause
# In: a planned graph. Out: an ExecutionPlan. One pass over the nodes calls the file that emits each kind of node.
"""The emission of one method."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputSpec
from torch.fx import GraphModule, Node

from torchette.errors import EmitError
from torchette.exir import control_flow, ops
from torchette.exir.arguments import int_arg, node_arg
from torchette.exir.delegation.delegate import is_delegate_call
from torchette.exir.emit import branches, calls, delegates, inputs
from torchette.exir.emit.constants import Storage
from torchette.exir.emit.instructions import Instructions
from torchette.exir.emit.metadata import structure
from torchette.exir.emit.records import Unsupported
from torchette.exir.emit.values import Values
from torchette.exir.graph import placeholders, tensor_of
from torchette.exir.interface import GraphInterface, specs_of
from torchette.format import pte


class MethodEmitter:
    """The tables of one ExecutionPlan during emission."""

    def __init__(
        self,
        name: str,
        program: ExportedProgram,
        storage: Storage,
        delegate_data: delegates.Delegates,
        lines_of: Callable[[Node], Any] | None,
    ) -> None:
        self.name = name
        self.program = program
        self.interface = GraphInterface.of(program.graph_module, program.graph_signature)
        self.storage = storage
        self.delegate_data = delegate_data
        self.values = Values()
        self.code = Instructions(lines_of)
        self.inputs: list[int] = []
        self.delegates: list[Any] = []
        self.delegate_map: dict[int, Any] = {}
        self.problems: list[tuple[str, Node, str]] = []

    def emit(self) -> Any:
        """Emits the ExecutionPlan of the method. `problems` then contains the nodes that the file format cannot
        represent."""
        signature = self.program.graph_signature
        for node, stored in zip(placeholders(self.program), signature.input_specs, strict=True):
            self._attempt(self._placeholder, node, stored)
        calls.relate_sizes(self, self.program.graph_module, list(self.interface.inputs))
        self.graph(self.program.graph_module)
        outputs = self._attempt(self._output, self.program.graph.output_node()) or []
        if self.program.graph_module.meta.get("non_const_buffer_sizes") is None:
            raise EmitError(
                f"method {self.name!r} has no memory plan",
                hints=["run MemoryPlanningPass on the program first"],
            )
        return pte.ExecutionPlan(
            name=self.name,
            container_meta_type=pte.ContainerMetadata(
                structure(self.program.call_spec.in_spec),
                # a flat list if gradients and parameters follow
                "" if self.interface.gradients else structure(self.program.call_spec.out_spec),
            ),
            values=self.values.records,
            inputs=self.inputs,
            outputs=outputs,
            chains=self.code.chains(self.values.records, self.inputs, outputs),
            operators=[pte.Operator(name, overload) for name, overload in self.code.operators],
            delegates=self.delegates,
            non_const_buffer_sizes=list(self.program.graph_module.meta["non_const_buffer_sizes"]),
            separate_state=self.program.graph_module.meta.get("separate_state", False),
        )

    def _placeholder(self, node: Node, stored: InputSpec) -> None:
        if node in self.interface.inputs:
            self.inputs.append(inputs.user_input(self.values, node, stored, self.program.range_constraints))
        else:
            tensor = tensor_of(self.program, stored)
            inputs.stored_tensor(self.values, self.storage, self.interface, node, stored, tensor)

    def _attempt(self, visit: Callable[..., Any], node: Node, *arguments: object) -> Any:
        try:
            return visit(node, *arguments)
        except (Unsupported, ValueError) as problem:
            self.problems.append((self.name, node, str(problem)))
            # Assign a value, so that its readers can be emitted and all problems are found in one run.
            self.values.of_node[node] = self.values.scalar(0)

    def graph(self, module: GraphModule) -> None:
        """Emits a graph or a branch. Its placeholders must have values."""
        for node in module.graph.nodes:
            is_branch = node.op == "get_attr" and isinstance(
                getattr(module, str(node.target), None), GraphModule
            )
            if node.op not in ("placeholder", "output") and not is_branch:
                self.values.chain = self.code.chain = node.meta.get("chain")
                self._attempt(self._call, node)
                for spec in node.meta.get("frees", ()):
                    if spec in self.values.of_spec:
                        self.code.append(pte.FreeCall(self.values.of_spec[spec]), node)

    def _call(self, node: Node) -> None:
        target = node.target
        if node.op == "get_attr" and all(is_delegate_call(user) for user in node.users):
            return  # named by the call
        if node.op != "call_function":
            raise Unsupported(f"{node.op} of {target}")
        if control_flow.name(target) == "cond":
            branches.cond(self, node)
        elif control_flow.name(target) == "while_loop":
            branches.while_loop(self, node)
        elif target is operator.getitem:
            parts = self.values.of_node[node_arg(node)]
            self.values.of_node[node] = parts[int_arg(node, 1)] if isinstance(parts, tuple) else parts
        elif "alias" in node.meta and _is_alias(node):
            calls.alias(self, self.storage.outside, node)
        elif target is ops.assert_scalar:
            calls.assertion(self, node)
        elif target in calls.PRIMITIVES or target is operator.pos:
            if not node.meta.get("no_instruction"):
                calls.primitive(self, node)
        elif isinstance(target, torch._ops.OpOverload):
            calls.kernel(self, node, target)
        elif is_delegate_call(node):
            delegates.call(self, node)
        else:
            raise Unsupported(
                f"the file format cannot represent a call of {getattr(target, '__name__', target)}"
            )

    def _output(self, node: Node) -> list[int]:
        for value, buffer in self.interface.updates:
            mine, theirs = specs_of(value), specs_of(buffer)
            if not mine or not theirs or mine[0] is None or mine[0].root is not theirs[0]:
                raise Unsupported(f"the new value of {buffer.name} is never written back to it")
        return [self.values.argument(value, "") for value in self.interface.outputs]


def _is_alias(node: Node) -> bool:
    """Returns whether the plan lets this node share the storage of its source."""
    return any(spec is not None and spec.base is not None for spec in specs_of(node))
