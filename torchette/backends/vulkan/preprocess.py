# SPDX-License-Identifier: BSD-3-Clause
# In: a program of supported operators. Out: a payload; see payload.py for its format.
"""Compiles a program to a Vulkan payload."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from torchette.backends.vulkan.operators import CHANGES, EMPTY, MOVES, name_of, why_not
from torchette.backends.vulkan.payload import Payload, VkMemoryLayout, VkStorageType
from torchette.backends.vulkan.quantized_layers import NAME as QUANTIZED
from torchette.backends.vulkan.quantized_layers import QuantizedLayer, quantized_layer
from torchette.backends.vulkan.weight_only import WeightOnlyLinear, weight_only_linear
from torchette.exir.arguments import checked, int_arg
from torchette.exir.delegation.delegate import BackendDetails, CompileSpec, PreprocessResult
from torchette.exir.graph import calls, constants, outputs, placeholders, tensor_of, written
from torchette.exir.tensor import upper_bound

_OVERRIDES = {"storage_type_override": VkStorageType, "memory_layout_override": VkMemoryLayout}


class VulkanBackend(BackendDetails):
    """Delegates programs to Vulkan devices. The payload has ExecuTorch's format."""

    # ExecuTorch's options. The backend stores all tensors in buffers, so options that select images or buffers have no
    # effect.
    option_names = frozenset(
        [
            "force_fp16",
            "require_dynamic_shapes",
            "skip_bool_tensors",
            "downcast_64_bit",
            "storage_type_override",
            "memory_layout_override",
            "texture_limits",
            "small_texture_limits",
            "buffer_limit",
            "skip_tag_memory_metadata",
            "skip_memory_planning",
        ]
    )

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Returns the payload of a program, with its weights as named data.

        Raises:
            ValueError: if the runtime does not support a node, or if the program modifies an input.
        """
        options = {spec.key: int.from_bytes(spec.value, "little") for spec in compile_specs}
        if edge_program.graph_signature.user_inputs_to_mutate:
            raise ValueError(
                f"it modifies {', '.join(written(edge_program))}: the Vulkan backend supports mutable state only within the delegate"
            )
        overrides = {key: kind(options[key]) for key, kind in _OVERRIDES.items() if key in options}
        builder = _Builder(edge_program, Payload(bool(options.get("force_fp16")), **overrides))
        for node in calls(edge_program):
            if node.target is not operator.getitem:
                reason = why_not(node, downcast=True)
                if reason is not None:
                    raise ValueError(f"{node.target}: {reason}")
                builder.call(node)
        processed, named_data = builder.finish()
        return PreprocessResult(processed, debug_handle_map=builder.handles, data_store_output=named_data)


def _states(program: ExportedProgram) -> tuple[dict[Node, torch.Tensor], list[tuple[Node, Node]]]:
    """Returns mutable buffer -> initial value, and pairs of (new value, buffer) in the order of the outputs."""
    signature = program.graph_signature
    nodes = dict(zip((spec.target for spec in signature.input_specs), placeholders(program), strict=True))
    tensors = {spec.target: tensor_of(program, spec) for spec in signature.input_specs}
    targets = [spec.target for spec in signature.output_specs if spec.kind is OutputKind.BUFFER_MUTATION]
    updates = [(new, nodes[target]) for new, target in zip(outputs(program), targets, strict=False)]
    return {nodes[target]: checked(tensors[target], torch.Tensor) for target in targets}, updates


def _in_place(program: ExportedProgram, updates: list[tuple[Node, Node]]) -> dict[Node, Node]:
    """Returns new value -> state for updates in place: a part of the state changes, and the old value is not read
    afterwards.
    """
    order = {node: place for place, node in enumerate(program.graph.nodes)}
    states: dict[Node, Node] = {}
    for new, state in updates:
        if name_of(new.target) in CHANGES and new.args[0] is state and new not in states:
            visited, todo = {new}, [state]
            while todo:  # the buffer and values that may share its memory
                for user in todo.pop().users:
                    if user not in visited:
                        visited.add(user)
                        if name_of(user.target) in MOVES or user.target is operator.getitem:
                            todo.append(user)
            if all(order[reader] <= order[new] for reader in visited if reader.op != "output"):
                states[new] = state
    return states


class _Builder:
    """Adds the calls of a program to a payload, and maps nodes to values."""

    def __init__(self, program: ExportedProgram, payload: Payload) -> None:
        self._program, self._payload = program, payload
        self._stored = constants(program)
        self._states, self._updates = _states(program)
        self._stored |= self._states
        self._in_place = _in_place(program, self._updates)
        layers = {node: weight_only_linear(node, self._stored) for node in calls(program)}
        self._layers = {node: layer for node, layer in layers.items() if layer is not None}
        quantized = {node: quantized_layer(node, self._stored) for node in calls(program)}
        self._quantized = {node: layer for node, layer in quantized.items() if layer is not None}
        self._needed = self._find_needed()
        self._values: dict[Node, int] = {}
        self.handles: dict[int, tuple[int, ...]] = {}
        self._inputs = [self._value(node) for node in placeholders(program) if node not in self._stored]

    def call(self, node: Node) -> None:
        """Adds a call: all arguments of the schema, then the result."""
        handle = node.meta.get("debug_handle", 0)
        self.handles[handle] = (handle,)
        if node not in self._needed:
            return
        if quantized := self._quantized.get(node):
            self._quantize(node, quantized, handle)
        elif layer := self._layers.get(node):
            self._weight_only(node, layer, handle)
        else:
            self._call(node, handle)

    def _find_needed(self) -> set[Node]:
        """Returns the nodes that are computed. Integer layers compute some of their operands themselves."""
        needed = set(outputs(self._program))
        for node in reversed(list(calls(self._program))):
            if node in self._quantized:
                read = [self._quantized[node].input]
            elif node in self._layers:
                read = [one for one in node.all_input_nodes if one is not node.args[1]]
            else:
                read = node.all_input_nodes
            if node in needed or not node.users:
                needed.update(read, [node])
        return needed

    def _quantize(self, node: Node, layer: QuantizedLayer, handle: int) -> None:
        weight, terms = (
            self._payload.tensor(tensor.shape, tensor.dtype, tensor) for tensor in (layer.weight, layer.terms)
        )
        result = self._values[node] = self._new(node.meta["val"])
        parameters = map(self._argument, layer.parameters)
        self._payload.call(
            QUANTIZED, [self._argument(layer.input), weight, terms, *parameters, result], handle
        )

    def _weight_only(self, node: Node, layer: WeightOnlyLinear, handle: int) -> None:
        weights, scales = (
            self._payload.tensor(tensor.shape, tensor.dtype, tensor)
            for tensor in (layer.weights, layer.scales)
        )
        bias_and_group = [
            self._argument(node.args[2] if len(node.args) > 2 else None),
            self._payload.scalar(layer.group),
        ]
        if layer.weights.dtype is torch.uint8:
            bias_and_group.reverse()  # ExecuTorch's order
        result = self._values[node] = self._new(node.meta["val"])
        self._payload.call(
            layer.name, [self._argument(node.args[0]), weights, scales, *bias_and_group, result], handle
        )

    def _call(self, node: Node, handle: int) -> None:
        schema = getattr(node.target, "_schema", None)
        operands = list(node.args)
        if schema is not None:
            operands += [
                node.kwargs.get(argument.name, argument.default_value)
                for argument in schema.arguments[len(operands) :]
            ]
        name = name_of(node.target)
        if name == EMPTY:
            name, operands = "aten.zeros.default", operands[:-1]  # without the memory format
        arguments = [self._argument(value) for value in operands]
        val = node.meta["val"]
        if isinstance(val, (list, tuple)):
            parts = [self._new(one) for one in val]
            result = self._payload.list(parts)
            for user in node.users:
                self._values[user] = parts[int_arg(user, 1)]
        else:
            state = self._in_place.get(node)
            result = self._values[node] = self._new(val) if state is None else self._values[state]
        self._payload.call(name, [*arguments, result], handle)

    def finish(self) -> tuple[bytes, Any]:
        """Returns the payload and its named data."""
        for new, state in self._updates:
            if self._in_place.get(new) is not state:
                target = self._value(state)
                none = self._payload.scalar(False)
                self._payload.call("aten.copy.default", [target, self._value(new), none, target], 0)
        returned = outputs(self._program)[len(self._updates) :]
        return self._payload.finish(self._inputs, [self._value(node) for node in returned])

    def _argument(self, value: object) -> int:
        if isinstance(value, Node):
            return self._value(value)
        if isinstance(value, (list, tuple)):
            if any(isinstance(item, Node) for item in value):
                return self._payload.list([self._argument(item) for item in value])
            return self._payload.numbers(value)
        if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            value = None  # the result determines the dtype
        return self._payload.scalar(value)

    def _value(self, node: Node) -> int:
        if node not in self._values:
            self._values[node] = self._new(node.meta["val"], self._stored.get(node))
        return self._values[node]

    def _new(self, val: object, constant: torch.Tensor | None = None) -> int:
        if isinstance(val, torch.Tensor):
            return self._payload.tensor(
                [checked(upper_bound(size), int) for size in val.shape], val.dtype, constant
            )
        return self._payload.size() if isinstance(val, torch.SymInt) else self._payload.scalar(val)
