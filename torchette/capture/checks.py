# SPDX-License-Identifier: BSD-3-Clause
# torch.export keeps the expressions of torch._check calls, but not their messages and lines. This file records both by
# expression during capture and stores them in the program.
"""The messages of a model's own checks."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import sympy
import torch
import typing_extensions
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import canonicalize_bool_expr

from torchette.exir.passes.keep_assertions import CHECKS

_TORCH = str(Path(torch.__file__).parent)
_SKIPPED_FILES = (__file__, typing_extensions.__file__)  # some of torch's checks are decorated


class Checks:
    """A context in which a model is captured. `annotate` then stores messages and source lines in the program."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def __enter__(self) -> Checks:
        self._original = torch._check_with
        torch._check_with = self._check_with  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        torch._check_with = self._original

    def _check_with(
        self, error_type: type[Exception], condition: bool | torch.SymBool, message: Any = None
    ) -> None:
        if isinstance(condition, torch.SymBool):
            text = str(message()) if callable(message) else "check failed"
            for form in _forms(condition.node.expr):
                self._texts.setdefault(form, f"{text}, {_user_line()}")
        self._original(error_type, condition, message)

    def annotate(self, program: ExportedProgram) -> None:
        """Stores the messages of the model's checks in the program."""
        program.graph_module.meta[CHECKS] = self._texts


def _forms(expression: sympy.Basic) -> set[str]:
    """Returns the forms in which torch.export may record a check. For an integer it records only minimum and
    maximum."""
    forms = {str(canonicalize_bool_expr(expression))}
    if isinstance(expression, sympy.core.relational.Relational):
        relation = expression if expression.lhs.is_Symbol else expression.reversed
        symbol, bound = relation.args
        if symbol.is_Symbol and bound.is_Integer:
            strict = int(isinstance(relation, (sympy.Lt, sympy.Gt)))
            if isinstance(relation, (sympy.Lt, sympy.Le, sympy.Eq)):
                forms.add(f"{symbol} <= {bound - strict}")
            if isinstance(relation, (sympy.Gt, sympy.Ge, sympy.Eq)):
                forms.add(f"{symbol} >= {bound + strict}")
    return forms


def _user_line() -> str:
    frames = [
        frame
        for frame in traceback.extract_stack()
        if frame.filename not in _SKIPPED_FILES and not frame.filename.startswith(_TORCH)
    ]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}, in {frames[-1].name}: {frames[-1].line}"
