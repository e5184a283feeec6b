# SPDX-License-Identifier: BSD-3-Clause
# In: a program. Out: graph_module.meta["size_relations"]: the input sizes that depend on others. The emitter writes a
# comparison for each, so that the device rejects inconsistent inputs.
"""Records the relations between input sizes, for checks on the device."""

from __future__ import annotations

from torch.export import ExportedProgram

from torchette.exir.interface import GraphInterface


def relate_sizes(program: ExportedProgram) -> ExportedProgram:
    """Record the input sizes that must equal an expression of other input sizes."""
    from torchette.exir.size_relations import relations  # loads sympy

    inputs = GraphInterface.of(program.graph_module, program.graph_signature).inputs
    program.graph_module.meta["size_relations"] = relations(
        [(str(node.target), node.meta.get("val")) for node in inputs]
    )
    return program
