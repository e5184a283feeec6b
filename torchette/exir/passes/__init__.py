# SPDX-License-Identifier: BSD-3-Clause
# The compiler's passes, one per file: each takes an ExportedProgram, edits it in place and returns it. The names that
# ExecuTorch's users import from here are in the table of torchette/compat.
"""Passes; `torchette.exir.pipeline` defines their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchette import compat

if TYPE_CHECKING:
    from torchette.exir.memory.plan_memory import MemoryPlanningPass
    from torchette.exir.passes.to_out_variants import ToOutVarPass

__all__ = ["MemoryPlanningPass", "ToOutVarPass"]

__getattr__ = compat.attributes(__name__)
