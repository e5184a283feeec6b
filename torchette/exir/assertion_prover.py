# SPDX-License-Identifier: BSD-3-Clause
# In: a graph. Out: whether a condition on its symbolic integers always holds. Imported inside functions, because it
# imports sympy.
"""`AssertionProver`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils._sympy.functions import FloorDiv, PythonMod
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torchette.exir import ops
from torchette.exir.arguments import node_arg

aten = torch.ops.aten

_FUNCTIONS: dict[Any, Callable[..., sympy.Basic]] = {
    operator.add: operator.add, operator.sub: operator.sub, operator.mul: operator.mul, operator.neg: operator.neg,
    operator.floordiv: FloorDiv, operator.mod: PythonMod, operator.eq: sympy.Eq, operator.ne: sympy.Ne,
    operator.lt: sympy.Lt, operator.le: sympy.Le, operator.gt: sympy.Gt, operator.ge: sympy.Ge,
    operator.and_: sympy.And, operator.or_: sympy.Or, operator.not_: sympy.Not, torch.sym_not: sympy.Not,
}  # fmt: skip


class AssertionProver:
    """Proves assertions of one graph from the ranges of its inputs and from the preceding assertions. Torch's ShapeEnv
    cannot decide this: it assumes that all assertions hold."""

    def __init__(self, program: ExportedProgram, module: GraphModule) -> None:
        self._sized: set[Node] = set()  # nodes with result sizes that follow from the sizes of the inputs
        for node in module.graph.nodes:
            is_input = node.op == "placeholder" and module is program.graph_module
            if is_input or (_sizes_follow(node) and self._sized.issuperset(node.all_input_nodes)):
                self._sized.add(node)
        self._ranges: dict[sympy.Symbol, ValueRanges[Any]] = dict(program.range_constraints)
        self._symbols: dict[tuple[Any, ...], sympy.Symbol] = {}
        self._asserted: set[Any] = set()

    def form(self, value: object) -> Any:
        """Returns the normal form of a condition; equal conditions have equal forms."""
        expression = self._expression(value)
        if expression is not None:
            return expression
        if isinstance(value, Node) and value.target in ops.SYMBOLIC_FUNCTIONS:
            return (value.target, *map(self.form, value.args))
        return value

    def proves(self, condition: object) -> bool:
        """Returns whether a condition always holds. Later calls assume that it holds."""
        form = self.form(condition)
        if form in self._asserted:
            return True
        self._asserted.add(form)
        if not isinstance(form, sympy.Basic):
            return False
        proven = form == sympy.true or bound_sympy(form, self._ranges).lower == sympy.true
        if (
            not proven
            and isinstance(form, (sympy.Ge, sympy.Le))
            and form.lhs.is_Symbol
            and form.rhs.is_Integer
        ):
            known = self._ranges.get(form.lhs, ValueRanges(-int_oo, int_oo))
            lower = max(known.lower, form.rhs) if isinstance(form, sympy.Ge) else known.lower
            upper = min(known.upper, form.rhs) if isinstance(form, sympy.Le) else known.upper
            if lower <= upper:  # otherwise no run passes the assertion
                self._ranges[form.lhs] = ValueRanges(lower, upper)
        result: bool = proven
        return result

    def _expression(self, value: object) -> sympy.Basic | None:
        """Returns an integer or condition as an expression of input sizes and of values that are known only at run
        time. Returns None for a value that is not an integer or a condition on integers."""
        if isinstance(value, (bool, int)):
            return sympy.sympify(value)
        if not isinstance(value, Node):
            return None
        if value.op == "call_function" and value.target in _FUNCTIONS:
            terms = [self._expression(argument) for argument in value.args]
            return None if None in terms else _normalized(_FUNCTIONS[value.target](*terms))
        result = value.meta.get("val")
        if isinstance(result, int):
            return sympy.sympify(result)
        if not isinstance(result, torch.SymInt):
            return None
        source = value.args[0] if value.target is aten.sym_size.int else value
        if source in self._sized:
            return result.node.expr
        key = (value.target, value.args) if value.op == "call_function" else (value,)
        if key not in self._symbols:
            symbol = self._symbols[key] = sympy.Dummy(value.name, integer=True)
            self._ranges[symbol] = self._range(value)
        return self._symbols[key]

    def _range(self, value: Node) -> ValueRanges[Any]:
        if value.target is not aten.sym_size.int:
            return ValueRanges(-int_oo, int_oo)
        source, dim = node_arg(value), value.args[1]
        upper: Any = int_oo
        if source.target is aten.nonzero.default and dim == 0 and source.args[0] in self._sized:
            elements = sympy.sympify(node_arg(source).meta["val"].numel())
            upper = bound_sympy(elements, self._ranges).upper
        return ValueRanges(0, upper)


def _sizes_follow(node: Node) -> bool:
    """Returns whether the result sizes of a call depend only on its operand sizes."""
    if node.op != "call_function" or "unbacked_bindings" in node.meta:
        return False
    if not ops.is_operator(node.target):
        return node.target is operator.getitem or node.target in ops.SYMBOLIC_FUNCTIONS
    data = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    return node.target.namespace == "aten" and not any(tag in node.target.tags for tag in data)


def _normalized(expression: sympy.Basic) -> sympy.Basic:
    """Normalizes a comparison of integers: x < 5 becomes x <= 4."""
    if isinstance(expression, sympy.Lt):
        return sympy.Le(expression.lhs, expression.rhs - 1)
    if isinstance(expression, sympy.Gt):
        return sympy.Ge(expression.lhs, expression.rhs + 1)
    return expression
