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
    """The size `size_symbol` must equal the expression `expected` of keys of `sizes_by_symbol`. `text` describes the relation."""

    size_symbol: sympy.Symbol
    expected: sympy.Expr
    text: str


def relations(inputs: Sequence[tuple[str, Any]]) -> tuple[list[Relation], Mapping[sympy.Symbol, Size]]:
    """Returns the relations that must hold between the input sizes of a program, in addition to the range of each size.

    Args:
        inputs: (name, fake tensor or symbolic integer). Other values have no sizes.

    Returns:
        (relations in the order of the inputs, size of each symbol in them).
    """
    sizes_by_symbol: dict[sympy.Symbol, Size] = {}
    sizes: list[tuple[sympy.Symbol, sympy.Expr, str]] = []
    for index, (name, value) in enumerate(inputs):
        shape = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
        for dim, size in shape:
            if isinstance(size, torch.SymInt) and not size.node.is_constant():
                size_symbol = sympy.Symbol(name if dim is None else f"{name}.shape[{dim}]", integer=True)
                sizes_by_symbol[size_symbol] = Size(index, dim)
                sizes.append((size_symbol, size.node.expr, f"input {index} ({name})"))
    known: dict[sympy.Symbol, sympy.Expr] = {}
    for size_symbol, expression, _ in sizes:
        if expression.is_Symbol:
            known.setdefault(expression, size_symbol)
    result = []
    for size_symbol, expression, where in sizes:
        words = ""
        unknown = expression.free_symbols - known.keys()
        if len(unknown) == 1:  # the value of the symbol follows from this size
            (symbol,) = unknown
            factor, constant = expression.coeff(symbol, 1), expression.coeff(symbol, 0)
            if not (factor.is_Integer and constant.is_Integer and expression == factor * symbol + constant):
                continue
            known[symbol] = FloorDiv(size_symbol - constant, factor)
            words = f"{expression.subs(symbol, sympy.Symbol('n'))} for an integer n"
        elif unknown:
            continue
        expected = expression.subs(known)
        if expected != size_symbol and _is_arithmetic(expected):
            result.append(
                Relation(size_symbol, expected, f"{where}: {size_symbol} must be {words or expected}")
            )
    return result, sizes_by_symbol


def _is_arithmetic(expression: sympy.Expr) -> bool:
    return all(
        part.is_Symbol or part.is_Integer or isinstance(part, (sympy.Add, sympy.Mul, FloorDiv))
        for part in sympy.preorder_traversal(expression)
    )
