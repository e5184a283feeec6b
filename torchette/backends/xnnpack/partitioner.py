# SPDX-License-Identifier: BSD-3-Clause
# A program in the Edge dialect comes in; what XNNPACK can run has a tag afterwards, the rest a reason.
"""Which nodes go to XNNPACK."""

from __future__ import annotations

import operator

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
    """Everything in float32 that the library has: convolutions, products, activations, pools, softmax, shapes."""

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
            if reason is None:
                node.meta["delegation_tag"] = "xnnpack"
            else:
                reject(node, reason)
        for node in calls(exported_program):
            if "delegation_tag" in node.meta and not _beside_work(node):
                del node.meta["delegation_tag"]
                reject(node, "a conversion beside nothing that runs on XNNPACK")
        tag_constant_data(exported_program)
        spec = DelegationSpec(XnnpackBackend.__name__, [])
        return PartitionResult(exported_program, {"xnnpack": spec})


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
