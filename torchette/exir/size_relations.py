# SPDX-License-Identifier: BSD-3-Clause
# In: the inputs of a program, whose sizes are torch's expressions of symbols. Out: which of their sizes must be equal to
# what, in terms of other sizes of the inputs, so that the device can hold one against the other.
"""How the sizes of inputs depend on each other: equal ones, and derived ones such as 2*n + 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv


class Size(NamedTuple):
    """A dimension of an input; `dim` is None where the input is the number itself."""

    input: int
    dim: int | None


class Relation(NamedTuple):
    """The size at `place` must equal `wanted`, whose symbols are keys of `places`; `text` says it in words."""

    place: sympy.Symbol
    wanted: sympy.Expr
    text: str


def relations(inputs: Sequence[tuple[str, Any]]) -> tuple[list[Relation], Mapping[sympy.Symbol, Size]]:
    """What must hold between the sizes of a program's inputs besides each one's own range.

    Args:
        inputs: (name, fake tensor or symbolic integer); anything else has no size.

    Returns:
        (relations in the order of the inputs, what each symbol in them stands for).
    """
    places: dict[sympy.Symbol, Size] = {}
    sizes: list[tuple[sympy.Symbol, sympy.Expr, str]] = []
    for index, (name, value) in enumerate(inputs):
        shape = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
        for dim, size in shape:
            if isinstance(size, torch.SymInt) and not size.node.is_constant():
                place = sympy.Symbol(name if dim is None else f"{name}.shape[{dim}]", integer=True)
                places[place] = Size(index, dim)
                sizes.append((place, size.node.expr, f"input {index} ({name})"))
    known: dict[sympy.Symbol, sympy.Expr] = {}
    for place, expression, _ in sizes:
        if expression.is_Symbol:
            known.setdefault(expression, place)
    found = []
    for place, expression, where in sizes:
        words = ""
        unknown = expression.free_symbols - known.keys()
        if len(unknown) == 1:  # its value follows from this size
            (symbol,) = unknown
            factor, rest = expression.coeff(symbol, 1), expression.coeff(symbol, 0)
            if not (factor.is_Integer and rest.is_Integer and expression == factor * symbol + rest):
                continue
            known[symbol] = FloorDiv(place - rest, factor)
            words = f"{expression.subs(symbol, sympy.Symbol('n'))} with a whole n"
        elif unknown:
            continue
        wanted = expression.subs(known)
        if wanted != place and _is_arithmetic(wanted):
            found.append(Relation(place, wanted, f"{where}: {place} must be {words or wanted}"))
    return found, places


def _is_arithmetic(expression: sympy.Expr) -> bool:
    return all(
        part.is_Symbol or part.is_Integer or isinstance(part, (sympy.Add, sympy.Mul, FloorDiv))
        for part in sympy.preorder_traversal(expression)
    )
