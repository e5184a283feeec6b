# SPDX-License-Identifier: BSD-3-Clause
# In: view operators. Out: copying operators, so that no values of the graph share memory. eliminate_views removes the
# copies again at the end if possible.
"""Replaces views by copies, such as `view` by `view_copy`."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from torchette.exir import ops
from torchette.exir.graph import calls, note

# Views that their schemas do not declare as views.
_UNSAFE = {torch.ops.aten._unsafe_view.default}


def copy_views(program: ExportedProgram) -> ExportedProgram:
    """Replace each view operator by its copying variant."""
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
