# SPDX-License-Identifier: BSD-3-Clause
# A program comes in; graph_module.meta["size_relations"] goes out: which sizes of inputs depend on which others. The emitter
# writes a comparison for each, so that the device refuses inputs that do not fit together.
"""Sizes of inputs that depend on each other are compared on the device."""

from __future__ import annotations

from torch.export import ExportedProgram

from torchette.exir.interface import GraphInterface


def relate_sizes(program: ExportedProgram) -> ExportedProgram:
    """Note which sizes of the inputs must equal what, in terms of other sizes of the inputs."""
    from torchette.exir.size_relations import relations  # loads sympy

    inputs = GraphInterface.of(program.graph_module, program.graph_signature).inputs
    program.graph_module.meta["size_relations"] = relations(
        [(str(node.target), node.meta.get("val")) for node in inputs]
    )
    return program
