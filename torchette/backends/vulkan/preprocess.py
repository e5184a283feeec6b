# SPDX-License-Identifier: BSD-3-Clause
# A program of operators that the runtime has comes in, a payload goes out. See payload.py for its form.
"""What the Vulkan backend makes of a program."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.vulkan.operators import name_of, why_not
from torchette.backends.vulkan.payload import Payload, VkMemoryLayout, VkStorageType
from torchette.exir.delegation.delegate import BackendDetails, CompileSpec, PreprocessResult
from torchette.exir.graph import calls, constants, outputs, placeholders, written
from torchette.exir.tensor import upper_bound

_OVERRIDES = {"storage_type_override": VkStorageType, "memory_layout_override": VkMemoryLayout}


class VulkanBackend(BackendDetails):
    """Networks on whatever Vulkan finds. The payload has ExecuTorch's form."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """The payload of a program; its weights are named data.

        Raises:
            ValueError: a node that the runtime has no shader for, or a buffer that changes.
        """
        options = {spec.key: int.from_bytes(spec.value, "little") for spec in compile_specs}
        if changes := written(edge_program):
            raise ValueError(f"it changes {', '.join(changes)}: the Vulkan backend keeps no state")
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


class _Builder:
    """Values of a payload by the nodes that they come from."""

    def __init__(self, program: ExportedProgram, payload: Payload) -> None:
        self._program, self._payload = program, payload
        self._stored = constants(program)
        self._values: dict[Node, int] = {}
        self.handles: dict[int, tuple[int, ...]] = {}
        self._inputs = [self._value(node) for node in placeholders(program) if node not in self._stored]

    def call(self, node: Node) -> None:
        """Adds a call: all arguments of the schema, then the result."""
        schema = getattr(node.target, "_schema", None)
        given = list(node.args)
        if schema is not None:
            given += [node.kwargs.get(it.name, it.default_value) for it in schema.arguments[len(given) :]]
        arguments = [self._argument(value) for value in given]
        val = node.meta["val"]
        if isinstance(val, (list, tuple)):
            parts = [self._new(one) for one in val]
            result = self._payload.list(parts)
            for user in node.users:
                self._values[user] = parts[user.args[1]]  # type: ignore[index]
        else:
            result = self._values[node] = self._new(val)
        handle = node.meta.get("debug_handle", 0)
        self._payload.call(name_of(node.target), [*arguments, result], handle)
        self.handles[handle] = (handle,)

    def finish(self) -> tuple[bytes, Any]:
        """The payload and its named data."""
        return self._payload.finish(self._inputs, [self._value(node) for node in outputs(self._program)])

    def _argument(self, value: Any) -> int:
        if isinstance(value, Node):
            return self._value(value)
        if isinstance(value, (list, tuple)):
            if any(isinstance(item, Node) for item in value):
                return self._payload.list([self._argument(item) for item in value])
            return self._payload.numbers(value)
        if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            value = None  # the result says it
        return self._payload.scalar(value)

    def _value(self, node: Node) -> int:
        if node not in self._values:
            self._values[node] = self._new(node.meta["val"], self._stored.get(node))
        return self._values[node]

    def _new(self, val: Any, constant: torch.Tensor | None = None) -> int:
        if isinstance(val, torch.Tensor):
            return self._payload.tensor([upper_bound(size) for size in val.shape], val.dtype, constant)  # type: ignore[misc]
        return self._payload.size() if isinstance(val, torch.SymInt) else self._payload.scalar(val)
