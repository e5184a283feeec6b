# SPDX-License-Identifier: BSD-3-Clause
# View operators come in, their copying twins go out: in a graph without shared memory every value stands for itself.
# Views that need no copy after all are found again at the end, by eliminate_views.
"""Views become copies: `view` is `view_copy`."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from torchette.exir import ops
from torchette.exir.graph import calls, note

# Not marked as a view in its schema, though it is one.
_UNSAFE = {torch.ops.aten._unsafe_view.default}


def copy_views(program: ExportedProgram) -> ExportedProgram:
    """Replace each operator whose result shares memory with its input by the one that copies."""
    count = 0
    for node in calls(program):
        if ops.is_operator(node.target) and (ops.is_view(node.target) or node.target in _UNSAFE):
            twin = ops.copying(node.target)
            if twin is not None:
                node.target = twin
                count += 1
    if count:
        note(program, f"{count} views made copies")
    return program
