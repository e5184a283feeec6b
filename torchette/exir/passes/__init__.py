# SPDX-License-Identifier: BSD-3-Clause
# The compiler's passes, one per file. Each pass edits an ExportedProgram in place and returns it. The table of
# torchette/compat lists the names that users of ExecuTorch import from this package.
"""Passes; `torchette.exir.pipeline` defines their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchette import compat

if TYPE_CHECKING:
    from torchette.exir.memory.plan_memory import MemoryPlanningPass
    from torchette.exir.passes.to_out_variants import ToOutVarPass

__all__ = ["MemoryPlanningPass", "ToOutVarPass"]

__getattr__ = compat.attributes(__name__)
