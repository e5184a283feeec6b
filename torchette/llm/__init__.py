# SPDX-License-Identifier: BSD-3-Clause
# Names resolve on first use: running a language model needs numpy alone, making one torch and transformers.
"""Language models: `export` makes one file of a Hugging Face model, `Session` talks to it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchette.packages import missing_package

if TYPE_CHECKING:
    from torchette.llm._export import export
    from torchette.llm.generation import Generation, Piece, Statistics
    from torchette.llm.grammar import Grammar
    from torchette.llm.lora import write_adapter
    from torchette.llm.messages import calls_in
    from torchette.llm.sampling import Sampling
    from torchette.llm.schema import grammar_of
    from torchette.llm.session import Session

_LAZY = {
    "Generation": "torchette.llm.generation",
    "Grammar": "torchette.llm.grammar",
    "Piece": "torchette.llm.generation",
    "Sampling": "torchette.llm.sampling",
    "Session": "torchette.llm.session",
    "Statistics": "torchette.llm.generation",
    "calls_in": "torchette.llm.messages",
    "export": "torchette.llm._export",
    "grammar_of": "torchette.llm.schema",
    "write_adapter": "torchette.llm.lora",
}

__all__ = [
    "Generation",
    "Grammar",
    "Piece",
    "Sampling",
    "Session",
    "Statistics",
    "calls_in",
    "export",
    "grammar_of",
    "write_adapter",
]

if not TYPE_CHECKING:  # a type checker would accept every name

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
            raise missing_package(package, f"torchette.llm.{name}", error) from error
        globals()[name] = value
        return value
