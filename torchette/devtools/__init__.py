# SPDX-License-Identifier: BSD-3-Clause
"""Tools for the development machine. They read files, do not call the compiler, and import neither torch nor rich.

The package also exports the names of ExecuTorch's `devtools`. Each is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchette.devtools import inspector
    from torchette.devtools.bundle import BundledProgram
    from torchette.devtools.inspector import Inspector
    from torchette.exir.etrecord import ETRecord, generate_etrecord, parse_etrecord

_HOMES = {
    "BundledProgram": "torchette.devtools.bundle",
    "ETRecord": "torchette.exir.etrecord",
    "Inspector": "torchette.devtools.inspector",
    "inspector": "torchette.devtools.inspector",
    "generate_etrecord": "torchette.exir.etrecord",
    "parse_etrecord": "torchette.exir.etrecord",
}

__all__ = ["BundledProgram", "ETRecord", "Inspector", "generate_etrecord", "inspector", "parse_etrecord"]

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(_HOMES[name])
        return home if name == "inspector" else getattr(home, name)
