# SPDX-License-Identifier: BSD-3-Clause
# The compiler's passes, one per file: each takes an ExportedProgram, edits it in place and returns it. The names that
# ExecuTorch's users import from here resolve on first use.
"""Passes; `torchette.exir.pipeline` defines their order."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchette.exir.memory.plan_memory import MemoryPlanningPass
    from torchette.exir.passes.to_out_variants import ToOutVarPass

_LAZY = {
    "MemoryPlanningPass": "torchette.exir.memory.plan_memory",
    "ToOutVarPass": "torchette.exir.passes.to_out_variants",
    "ExportPass": "torchette.exir.pass_base",
    **dict.fromkeys(
        (
            "CSEPass", "ConstraintBasedSymShapeEvalPass", "DebugHandleGeneratorPass", "DebugPass",
            "HintBasedSymShapeEvalPass", "QuantFusionPass", "RemoveGraphAssertsPass", "RemoveMixedTypeOperators", "RemoveNoopPass",
            "RemoveToCopyPass", "ScalarToTensorPass", "SpecPropPass", "dead_code_elimination_pass",
        ),
        "torchette.exir.passes.graph_module_passes",
    ),
    "remove_unused_parameters_pass": "torchette.compat.inner",
}  # fmt: skip

__all__ = ["MemoryPlanningPass", "ToOutVarPass"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'torchette.exir.passes' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
