# SPDX-License-Identifier: BSD-3-Clause
# In: a program in the Edge dialect. Out: tags on supported nodes, and reasons for all other nodes.
"""Selects the nodes that are delegated to Vulkan."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.vulkan.operators import OPERATORS, name_of, reads_wide_integers, why_not
from torchette.backends.vulkan.preprocess import VulkanBackend
from torchette.exir.delegation.delegate import (
    CompileSpec,
    DelegationSpec,
    Partitioner,
    PartitionResult,
    check_option_names,
    reject,
    rejection_reason,
    tag_constant_data,
    tag_mutated_buffer,
)
from torchette.exir.delegation.partition import TAG
from torchette.exir.graph import calls, constants
from torchette.exir.ops import functional

_TO_RUNTIME = ("force_fp16", "storage_type_override", "memory_layout_override")


class VulkanPartitioner(Partitioner):
    """Selects all nodes that the runtime supports, in float32 or float16."""

    def __init__(
        self,
        compile_options: Mapping[str, Any] | None = None,
        operator_blocklist: Collection[Any] | None = None,
        operator_allowlist: Collection[Any] | None = None,
        nn_module_blocklist: Collection[str] | None = None,
        nn_module_allowlist: Collection[str] | None = None,
    ) -> None:
        """Creates a partitioner.

        Args:
            compile_options: options by name. `force_fp16`: stores float32 as float16 on the device. `downcast_64_bit`:
                computes int64 arithmetic in int32. `skip_bool_tensors`: leaves out nodes with boolean tensors. Dynamic
                sizes are always supported, so `require_dynamic_shapes` has no effect; options that select storage have
                none either.
            operator_blocklist, operator_allowlist: operators that are never, or exclusively, delegated.
            nn_module_blocklist, nn_module_allowlist: names of module classes that are never, or exclusively, delegated.

        Raises:
            InputError: if an option does not exist.
        """
        super().__init__()
        options = dict(compile_options or {})
        check_option_names(VulkanBackend, options)
        self._options = options
        self._blocked = {_plain(op) for op in operator_blocklist or ()}
        self._allowed = None if operator_allowlist is None else {_plain(op) for op in operator_allowlist}
        self._blocked_modules = frozenset(nn_module_blocklist or ())
        self._allowed_modules = None if nn_module_allowlist is None else frozenset(nn_module_allowlist)
        specs = [
            CompileSpec(key, int(options[key]).to_bytes(4, "little")) for key in _TO_RUNTIME if key in options
        ]
        self._delegation = DelegationSpec(VulkanBackend.__name__, specs)

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Returns the operators that must not be decomposed."""
        supported = [op for op in {functional(node.target) for node in calls(ep)} if name_of(op) in OPERATORS]
        return (
            supported,
            lambda node: (
                name_of(node.target) not in OPERATORS or OPERATORS[name_of(node.target)](node) is None
            ),
        )

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags the supported nodes, and the weights and state that only they use."""
        stored, wide = constants(exported_program), set[Node]()
        for node in calls(exported_program):
            reads_wide = reads_wide_integers(node, wide)
            if node.target is operator.getitem:
                continue
            reason = rejection_reason(lambda: self._why_not(node, stored))  # noqa: B023
            if reads_wide:
                reason = reason or "integers converted from floats, which may exceed 32 bits"
            if reason is None:
                node.meta[TAG] = "vulkan"
            else:
                reject(node, reason)
        tag_constant_data(exported_program)
        tag_mutated_buffer(exported_program)
        return PartitionResult(exported_program, {"vulkan": self._delegation})

    def _why_not(self, node: Node, stored: Mapping[Node, torch.Tensor]) -> str | None:
        name = name_of(node.target)
        if name in self._blocked:
            return "operator_blocklist names it"
        if self._allowed is not None and name not in self._allowed:
            return "operator_allowlist does not name it"
        if self._blocked_modules or self._allowed_modules is not None:
            stack = node.meta.get("nn_module_stack") or {}
            classes = {str(kind).rsplit(".", 1)[-1].rstrip("'>") for _, kind in stack.values()}
            if classes & self._blocked_modules:
                return "nn_module_blocklist names its module"
            if self._allowed_modules is not None and not classes & self._allowed_modules:
                return "nn_module_allowlist does not name its module"
        if self._options.get("skip_bool_tensors") and any(
            isinstance(val := value.meta.get("val"), torch.Tensor) and val.dtype is torch.bool
            for value in (node, *node.all_input_nodes)
        ):
            return "boolean tensors, which skip_bool_tensors excludes"
        return why_not(node, bool(self._options.get("downcast_64_bit")), stored)


def _plain(op: object) -> str:
    """Returns the name of an operator of torch, or of ExecuTorch's operator of the same name."""
    return name_of(op) or str(op)
