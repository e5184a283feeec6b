# SPDX-License-Identifier: BSD-3-Clause
# In: view operators. Out: the copying operators of the same kind, so that no values of the graph share memory.
# eliminate_views finds those that need no copy again at the end.
"""Views become copies: `view` is `view_copy`."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from torchette.exir import ops
from torchette.exir.graph import calls, note

# A view that its schema does not mark as one.
_UNSAFE = {torch.ops.aten._unsafe_view.default}


def copy_views(program: ExportedProgram) -> ExportedProgram:
    """Replace each operator whose result shares memory with its input by one that copies."""
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
