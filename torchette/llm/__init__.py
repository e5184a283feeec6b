# SPDX-License-Identifier: BSD-3-Clause
# Names are imported on first use: a session needs only numpy, an export also torch and transformers.
"""Language models: `export` compiles a Hugging Face model to one file, `Session` generates text with it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchette.errors import TorchetteError
from torchette.packages import imported_packages, missing_package, quietly

if TYPE_CHECKING:
    from torchette.llm.exporting.export import export
    from torchette.llm.exporting.lora import write_adapter
    from torchette.llm.generation import Generation, Piece, Statistics
    from torchette.llm.grammar import Grammar, grammar_of
    from torchette.llm.messages import calls_in
    from torchette.llm.session import Session

_LAZY = {
    "Generation": "torchette.llm.generation",
    "Grammar": "torchette.llm.grammar",
    "Piece": "torchette.llm.generation",
    "Session": "torchette.llm.session",
    "Statistics": "torchette.llm.generation",
    "calls_in": "torchette.llm.messages",
    "export": "torchette.llm.exporting.export",
    "grammar_of": "torchette.llm.grammar",
    "write_adapter": "torchette.llm.exporting.lora",
}

__all__ = [
    "Generation",
    "Grammar",
    "Piece",
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
                f"module 'torchette.llm' has no attribute {name!r}; public names: {', '.join(__all__)}"
            )
        try:
            with quietly():
                value = getattr(importlib.import_module(_LAZY[name]), name)
        except Exception as error:  # a package's own code may raise anything
            absent = (getattr(error, "name", None) or "").partition(".")[0]
            packages = [absent] if absent else imported_packages(error)
            if isinstance(error, TorchetteError) or not packages or absent == "torchette":
                raise
            raise missing_package(packages[0], f"torchette.llm.{name}", error) from error
        globals()[name] = value
        return value
