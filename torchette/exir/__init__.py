# SPDX-License-Identifier: BSD-3-Clause
# Re-exports the compiler's public names under ExecuTorch's names. Each name is imported on first use.
"""The compiler: from `torch.export`'s ExportedProgram to the bytes of a `.pte` file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchette import compat
from torchette.packages import import_compiler

if TYPE_CHECKING:
    from torch.export import ExportedProgram, ExportGraphSignature

    from torchette.exir.dialects import verify
    from torchette.exir.program import (
        EdgeCompileConfig,
        EdgeProgramManager,
        ExecutorchBackendConfig,
        ExecutorchProgramManager,
        to_edge,
        to_edge_transform_and_lower,
    )
    from torchette.exir.serde.pt2 import load, save

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
    "load": "torchette.exir.serde.pt2",
    "save": "torchette.exir.serde.pt2",
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

_names_of_first_releases = compat.attributes(__name__)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        return _names_of_first_releases(name)
    value = getattr(import_compiler(_LAZY[name], f"torchette.exir.{name}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
