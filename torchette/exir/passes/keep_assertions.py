# SPDX-License-Identifier: BSD-3-Clause
# In: torch.export's assertions about numbers and tensors, in all their forms. Out: one form, for conditions that
# only the device can check. Conditions that follow from the ranges of the inputs are removed.
"""Assertions of a model are checked on the device."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils._sympy.functions import FloorDiv, PythonMod
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torchette.exir import ops
from torchette.exir.graph import call, fake_mode, graph_modules, note, place
from torchette.exir.tensor import upper_bound

aten = torch.ops.aten

_FUNCTIONS: dict[Any, Callable[..., sympy.Basic]] = {
    operator.add: operator.add, operator.sub: operator.sub, operator.mul: operator.mul, operator.neg: operator.neg,
    operator.floordiv: FloorDiv, operator.mod: PythonMod, operator.eq: sympy.Eq, operator.ne: sympy.Ne,
    operator.lt: sympy.Lt, operator.le: sympy.Le, operator.gt: sympy.Gt, operator.ge: sympy.Ge,
    operator.and_: sympy.And, operator.or_: sympy.Or, operator.not_: sympy.Not, torch.sym_not: sympy.Not,
}  # fmt: skip


# torch.export's text for the assertion of an expression; the model's own text is in the graph's `meta[CHECKS]`.
_TORCHS = re.compile(r"Runtime assertion failed for expression (.*) on node '\w+'")
CHECKS = "checks"


class _Assertion(NamedTuple):
    """The condition, and the text if it fails; `theirs` if the text is the model's own."""

    node: Node
    condition: Any
    text: str
    theirs: bool = True


def keep_assertions(program: ExportedProgram) -> ExportedProgram:
    """Make every assertion an `_assert_scalar`, with its line in the text; drop those that always hold."""
    kept = dropped = 0
    checks = program.graph_module.meta.get(CHECKS, {})
    for module in graph_modules(program):
        selections = _widened(module)
        known = _Known(program, module)
        nodes = [node for node in module.graph.nodes if node.target in ops.ASSERTIONS]
        found = [assertion for node in nodes for assertion in _assertions(program, node, checks)]
        # Torch has some of them twice, once with the model's text and once with its own.
        words = {known.form(each.condition): each.text for each in reversed(found) if each.theirs}
        for node, condition, text, theirs in found:
            if not theirs and _is_torchs_bound(condition, selections):
                continue
            if known.proves(condition):
                dropped += 1
                continue
            kept += 1
            text = words.get(known.form(condition), text)
            call(node, ops.assert_scalar, (condition, text), val=None, like=node)
        for node in nodes:
            module.graph.erase_node(node)
    if kept or dropped:
        note(program, f"{kept} assertions are left to the device, {dropped} hold always")
    return program


def _assertions(program: ExportedProgram, node: Node, checks: Mapping[str, str]) -> list[_Assertion]:
    """What a node asserts, except a tensor's dtype, device and layout, which no run changes. Conditions that need
    nodes get them before `node`."""
    subject = node.args[0]
    # Without folders, so that the file is the same on every machine.
    line = re.sub(r"^.*/(?=[^/]+:\d+, in )", "", place(node))
    if node.target is ops.assert_scalar:
        text = str(ops.argument(node, "assert_msg"))
        torchs = _TORCHS.fullmatch(text)
        if torchs and torchs[1] in checks:
            return [_Assertion(node, subject, checks[torchs[1]])]
        if torchs:
            return [_Assertion(node, subject, f"{torchs[1]} is asserted, {line}", theirs=False)]
        return [_Assertion(node, subject, text if text.endswith(line) else f"{text}, {line}")]
    assert isinstance(subject, Node)
    if node.target is aten._assert_async.msg:
        with fake_mode(program):
            number = subject.meta["val"].item()
            holds = number if isinstance(number, torch.SymBool) else number != 0
        value = call(node, aten._local_scalar_dense.default, (subject,), val=number, like=node)
        if holds is not number:
            value = call(node, operator.ne, (value, 0), val=holds, like=node)
        return [_Assertion(node, value, f"{ops.argument(node, 'assert_msg')}, {line}")]
    found = []
    if node.target in (aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default):
        for name, function, words in (("min", operator.ge, "at least"), ("max", operator.le, "at most")):
            bound = ops.argument(node, name)
            if bound is not None:
                holds = function(subject.meta["val"], bound)
                condition = call(node, function, (subject, bound), val=holds, like=node)
                found.append(_Assertion(node, condition, f"a number must be {words} {bound}, {line}"))
    return found


def _widened(module: GraphModule) -> dict[Node, int]:
    """Calls of `masked_select` whose mask broadcasts the other operand, and the maximum that torch lets them find: the elements
    of that operand. From here on the ranges of their sizes are what they can find."""
    bounds = {}
    for node in module.graph.nodes:
        if node.target is not aten.masked_select.default:
            continue
        x, mask = (operand.meta["val"] for operand in node.args)
        (found,) = node.meta["val"].shape
        sizes = [[upper_bound(size) or 0 for size in reversed(operand.shape)] for operand in (x, mask)]
        most = math.prod(max(pair) for pair in itertools.zip_longest(*sizes, fillvalue=1))
        torchs = math.prod(sizes[0])  # 0: no bound, or nothing to find
        if most > torchs > 0:
            bounds[node] = torchs
            found.node.shape_env.var_to_range[found.node.expr] = ValueRanges(0, most)
    return bounds


def _is_torchs_bound(condition: Any, selections: Mapping[Node, int]) -> bool:
    """Whether a condition is that `masked_select` finds no more than the maximum of `_widened`."""
    if not isinstance(condition, Node) or condition.target is not operator.le:
        return False
    count, most = condition.args
    if not isinstance(count, Node) or count.target is not aten.sym_size.int:
        return False
    return count.args[0] in selections and most == selections[count.args[0]]


class _Known:
    """What is known about the numbers of one graph before an assertion: ranges of the inputs, and what was asserted
    earlier. Torch's own knowledge assumes all assertions, so it is not used."""

    def __init__(self, program: ExportedProgram, module: GraphModule) -> None:
        self._sized: set[Node] = set()  # nodes whose sizes follow from those of the inputs
        for node in module.graph.nodes:
            given = node.op == "placeholder" and module is program.graph_module
            if given or (_sizes_follow(node) and self._sized.issuperset(node.all_input_nodes)):
                self._sized.add(node)
        self._ranges: dict[sympy.Symbol, ValueRanges] = dict(program.range_constraints)
        self._symbols: dict[tuple, sympy.Symbol] = {}
        self._asserted: set[Any] = set()

    def form(self, value: Any) -> Any:
        """The same key for equal conditions."""
        expression = self._expression(value)
        if expression is not None:
            return expression
        if isinstance(value, Node) and value.target in ops.SYMBOLIC_FUNCTIONS:
            return (value.target, *map(self.form, value.args))
        return value

    def proves(self, condition: Any) -> bool:
        """Whether a condition always holds. It is assumed from now on."""
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
            least = max(known.lower, form.rhs) if isinstance(form, sympy.Ge) else known.lower
            most = min(known.upper, form.rhs) if isinstance(form, sympy.Le) else known.upper
            if least <= most:  # otherwise no run passes it
                self._ranges[form.lhs] = ValueRanges(least, most)
        return proven

    def _expression(self, value: Any) -> sympy.Basic | None:
        """A number or condition in terms of run-time values; None if it is not about integers."""
        if isinstance(value, (bool, int)):
            return sympy.sympify(value)
        if not isinstance(value, Node):
            return None
        if value.op == "call_function" and value.target in _FUNCTIONS:
            terms = [self._expression(argument) for argument in value.args]
            return None if None in terms else _whole(_FUNCTIONS[value.target](*terms))
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

    def _range(self, value: Node) -> ValueRanges:
        if value.target is not aten.sym_size.int:
            return ValueRanges(-int_oo, int_oo)
        source, dim = value.args
        most: Any = int_oo
        if source.target is aten.nonzero.default and dim == 0 and source.args[0] in self._sized:
            elements = sympy.sympify(source.args[0].meta["val"].numel())
            most = bound_sympy(elements, self._ranges).upper
        return ValueRanges(0, most)


def _sizes_follow(node: Node) -> bool:
    """Whether the sizes of a call's results follow only from those of its operands."""
    if node.op != "call_function" or "unbacked_bindings" in node.meta:
        return False
    if not ops.is_operator(node.target):
        return node.target is operator.getitem or node.target in ops.SYMBOLIC_FUNCTIONS
    data = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    return node.target.namespace == "aten" and not any(tag in node.target.tags for tag in data)  # type: ignore[union-attr]


def _whole(expression: sympy.Basic) -> sympy.Basic:
    """For integers, x < 5 and x <= 4 are the same condition."""
    if isinstance(expression, sympy.Lt):
        return sympy.Le(expression.lhs, expression.rhs - 1)
    if isinstance(expression, sympy.Gt):
        return sympy.Ge(expression.lhs, expression.rhs + 1)
    return expression
