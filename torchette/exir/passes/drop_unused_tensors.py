# SPDX-License-Identifier: BSD-3-Clause
# In: what torch.export captured, with all parameters and buffers of the model. Out: the same without those unused, so
# that a tensor that no file can hold (sparse, complex, on another device) stops no model that does not use it.
"""Unused stored tensors are dropped."""

from __future__ import annotations

from torch.export import ExportedProgram

from torchette.exir.graph import drop_unused_constants, note


def drop_unused_tensors(program: ExportedProgram) -> ExportedProgram:
    """Drop stored tensors that nobody reads, whatever they are."""
    dropped = drop_unused_constants(program)
    if dropped:
        note(program, f"{dropped} stored tensors had no reader")
    return program
