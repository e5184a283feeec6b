# SPDX-License-Identifier: BSD-3-Clause
# The compiler's front door, with ExecuTorch's names; they resolve on first use.
"""The compiler: from `torch.export`'s ExportedProgram to the bytes of a `.pte` file."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram, ExportGraphSignature, load, save

    from torchette.exir.dialects import verify
    from torchette.exir.program import (
        EdgeCompileConfig,
        EdgeProgramManager,
        ExecutorchBackendConfig,
        ExecutorchProgramManager,
        to_edge,
        to_edge_transform_and_lower,
    )

_LAZY = {
    "to_edge": "torchette.exir.program",
    "to_edge_transform_and_lower": "torchette.exir.program",
    "EdgeCompileConfig": "torchette.exir.program",
    "EdgeProgramManager": "torchette.exir.program",
    "ExecutorchBackendConfig": "torchette.exir.program",
    "ExecutorchProgramManager": "torchette.exir.program",
    "verify": "torchette.exir.dialects",
    "ExportedProgram": "torch.export",
    "ExportGraphSignature": "torch.export",
    "load": "torch.export",
    "save": "torch.export",
    # ExecuTorch's first releases
    "CallSpec": "torch.export.exported_program",
    "CaptureConfig": "torchette.exir.exir_program",
    "ExecutorchProgram": "torchette.exir.exir_program",
    "ExirDynamoConfig": "torchette.exir.exir_program",
    "ExirExportedProgram": "torchette.exir.exir_program",
    "capture": "torchette.exir.exir_program",
    "Value": "typing:Any",
}

__all__ = [
    "EdgeCompileConfig",
    "EdgeProgramManager",
    "ExecutorchBackendConfig",
    "ExecutorchProgramManager",
    "ExportGraphSignature",
    "ExportedProgram",
    "load",
    "save",
    "to_edge",
    "to_edge_transform_and_lower",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'torchette.exir' has no attribute {name!r}")
    home, _, called = _LAZY[name].partition(":")
    value = getattr(importlib.import_module(home), called or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
