# SPDX-License-Identifier: BSD-3-Clause
# Names resolve on first use: running a language model needs numpy alone, making one torch and transformers.
"""Language models: `export` makes one file of a Hugging Face model."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchette.errors import MissingPackageError

if TYPE_CHECKING:
    from torchette.llm._export import export

_LAZY = {"export": "torchette.llm._export"}

__all__ = ["export"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(
            f"module 'torchette.llm' has no attribute {name!r}; there are {', '.join(__all__)}"
        )
    try:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "torchette"):
            raise
        raise MissingPackageError(
            f"torchette.llm.{name} needs {package}, which is not installed", hints=[f"pip install {package}"]
        ) from error
    globals()[name] = value
    return value
