# SPDX-License-Identifier: BSD-3-Clause
# A program in the Edge dialect comes in; what XNNPACK can run has a tag afterwards, the rest a reason.
"""Which nodes go to XNNPACK."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.xnnpack.attention import spell_out_attention
from torchette.backends.xnnpack.operators import why_not
from torchette.backends.xnnpack.preprocess import XnnpackBackend
from torchette.backends.xnnpack.quantization import role
from torchette.exir.delegate import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
    reject,
    tag_constant_data,
)
from torchette.exir.graph import calls, constants, copy_program


class XnnpackPartitioner(Partitioner):
    """Everything in float32, float16 and int8 that the library has: convolutions, products, activations, pools, softmax,
    shapes. Quantized graphs run on integers where the library has the operator so."""

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Torchao's quantization, and what the library has whole."""
        return [op for op in {node.target for node in calls(ep)} if _is_kept(op)], None

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """Attention in numbers only."""
        return spell_out_attention(copy_program(exported_program))

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag it, and the weights that only it reads."""
        stored = constants(exported_program)
        for node in calls(exported_program):
            if node.target is operator.getitem:
                continue
            reason = why_not(node, stored)
            if reason is None and self._wants(node, stored):
                node.meta["delegation_tag"] = "xnnpack"
            else:
                reject(node, reason or "only what is quantized at run time was asked for")
        for node in calls(exported_program):
            if "delegation_tag" in node.meta and not _beside_work(node):
                del node.meta["delegation_tag"]
                reject(node, "a conversion beside nothing that runs on XNNPACK")
        tag_constant_data(exported_program)
        spec = DelegationSpec(XnnpackBackend.__name__, [])
        return PartitionResult(exported_program, {"xnnpack": spec})

    def _wants(self, node: Node, stored: dict[Node, torch.Tensor]) -> bool:
        return True


class XnnpackDynamicallyQuantizedPartitioner(XnnpackPartitioner):
    """Nothing but linear layers whose inputs are quantized when the model runs."""

    def _wants(self, node: Node, stored: dict[Node, torch.Tensor]) -> bool:
        kind = role(node)
        if kind == "weights" or (kind == "dequantize" and node.args[0] in stored):
            return all(self._wants(user, stored) for user in node.users)
        if kind is not None:
            return kind in ("choose", "quantize rows", "dequantize rows")
        return node.target == torch.ops.aten.linear.default and role(node.args[0]) == "dequantize rows"


def _is_kept(op: Any) -> bool:
    return str(op).startswith("torchao.")


def _beside_work(node: Node) -> bool:
    """Whether a node is more than a conversion, or one of what such a node takes or gives."""
    if role(node) not in ("quantize", "dequantize"):
        return True
    around = {*node.all_input_nodes, *node.users}
    for other in tuple(around):
        if role(other) in ("quantize", "dequantize"):
            around |= {*other.all_input_nodes, *other.users}
        elif other.target is operator.getitem:
            around.add(other.args[0])  # type: ignore[arg-type]
    return any("delegation_tag" in other.meta and role(other) is None for other in around)
