# SPDX-License-Identifier: BSD-3-Clause
# In: the program that torch.export captured, with all parameters and buffers of the model. Out: the program without the
# unused ones. A tensor that no file can store (sparse, complex, on another device) is no problem if it is unused.
"""Removes unused stored tensors."""

from __future__ import annotations

from torch.export import ExportedProgram

from torchette.exir.graph import drop_unused_constants, note


def drop_unused_tensors(program: ExportedProgram) -> ExportedProgram:
    """Remove stored tensors without uses."""
    dropped = drop_unused_constants(program)
    if dropped:
        note(program, f"{dropped} unused stored tensors removed")
    return program
