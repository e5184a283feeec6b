# SPDX-License-Identifier: BSD-3-Clause
# In: the inputs of a program, with sizes that are torch's symbolic expressions. Out: the sizes that must be equal to an
# expression of other input sizes, so that the device can check them.
"""Relations between the sizes of inputs: equal sizes, and derived sizes such as 2*n + 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv


class Size(NamedTuple):
    """A dimension of an input. `dim` is None if the input is an integer."""

    input: int
    dim: int | None


class Relation(NamedTuple):
    """The size `place` must equal the expression `wanted` of keys of `places`. `text` describes the relation."""

    place: sympy.Symbol
    wanted: sympy.Expr
    text: str


def relations(inputs: Sequence[tuple[str, Any]]) -> tuple[list[Relation], Mapping[sympy.Symbol, Size]]:
    """Returns the relations that must hold between the input sizes of a program, in addition to the range of each size.

    Args:
        inputs: (name, fake tensor or symbolic integer). Other values have no sizes.

    Returns:
        (relations in the order of the inputs, size of each symbol in them).
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
        if len(unknown) == 1:  # the value of the symbol follows from this size
            (symbol,) = unknown
            factor, rest = expression.coeff(symbol, 1), expression.coeff(symbol, 0)
            if not (factor.is_Integer and rest.is_Integer and expression == factor * symbol + rest):
                continue
            known[symbol] = FloorDiv(place - rest, factor)
            words = f"{expression.subs(symbol, sympy.Symbol('n'))} for an integer n"
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
