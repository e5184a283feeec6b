# SPDX-License-Identifier: BSD-3-Clause
# In: torch.export's assertions about scalars and tensors, in all their forms. Out: one form, for the conditions that
# must be checked at run time. Conditions that follow from the ranges of the inputs are removed.
"""Keeps the assertions of a model that the device must check."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from torchette.exir import ops
from torchette.exir.arguments import node_arg
from torchette.exir.graph import call, fake_mode, graph_modules, note, place
from torchette.exir.tensor import upper_bound

aten = torch.ops.aten

# torch.export's message for the assertion of an expression. The graph's `meta[CHECKS]` has the message of the model.
_TORCHS = re.compile(r"Runtime assertion failed for expression (.*) on node '\w+'")
CHECKS = "checks"


class _Assertion(NamedTuple):
    """A condition and its message. `from_model` is true if the model, and not torch, defines the message."""

    node: Node
    condition: Any
    text: str
    from_model: bool = True


def keep_assertions(program: ExportedProgram) -> ExportedProgram:
    """Convert assertions to `_assert_scalar` with the source line in the message. Remove those that always hold."""
    # Imported on demand: the module imports sympy, which takes as long to import as the rest of this package.
    from torchette.exir.assertion_prover import AssertionProver

    num_checked = num_dropped = 0
    checks = program.graph_module.meta.get(CHECKS, {})
    for module in graph_modules(program):
        selections = _widened(module)
        prover = AssertionProver(program, module)
        nodes = [node for node in module.graph.nodes if node.target in ops.ASSERTIONS]
        assertions = [assertion for node in nodes for assertion in _assertions(program, node, checks)]
        # torch contains some assertions twice: with the message of the model and with its own message.
        words = {prover.form(each.condition): each.text for each in reversed(assertions) if each.from_model}
        for node, condition, text, from_model in assertions:
            if not from_model and _is_torchs_bound(condition, selections):
                continue
            if prover.proves(condition):
                num_dropped += 1
                continue
            num_checked += 1
            text = words.get(prover.form(condition), text)
            call(node, ops.assert_scalar, (condition, text), val=None, like=node)
        for node in nodes:
            module.graph.erase_node(node)
    if num_checked or num_dropped:
        note(program, f"{num_checked} assertions are checked at run time, {num_dropped} always hold")
    return program


def _assertions(program: ExportedProgram, node: Node, checks: Mapping[str, str]) -> list[_Assertion]:
    """Returns the assertions of a node, except for a tensor's dtype, device and layout, which are static. Inserts the
    nodes that conditions need before `node`."""
    subject = node.args[0]
    # Omit folders, so that the file is the same on every machine.
    line = re.sub(r"^.*/(?=[^/]+:\d+, in )", "", place(node))
    if node.target is ops.assert_scalar:
        text = str(ops.argument(node, "assert_msg"))
        torchs = _TORCHS.fullmatch(text)
        if torchs and torchs[1] in checks:
            return [_Assertion(node, subject, checks[torchs[1]])]
        if torchs:
            return [_Assertion(node, subject, f"{torchs[1]} is asserted, {line}", from_model=False)]
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
    assertions = []
    if node.target in (aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default):
        for name, function, words in (("min", operator.ge, "at least"), ("max", operator.le, "at most")):
            bound = ops.argument(node, name)
            if bound is not None:
                holds = function(subject.meta["val"], bound)
                condition = call(node, function, (subject, bound), val=holds, like=node)
                assertions.append(_Assertion(node, condition, f"a value must be {words} {bound}, {line}"))
    return assertions


def _widened(module: GraphModule) -> dict[Node, int]:
    """Returns the calls of `masked_select` with a mask that broadcasts the other operand, and the maximum that torch
    assumes
    for their results: the number of elements of that operand. Sets the ranges of their sizes to the correct maximum."""
    bounds = {}
    for node in module.graph.nodes:
        if node.target is not aten.masked_select.default:
            continue
        x, mask = (operand.meta["val"] for operand in node.args)
        (length,) = node.meta["val"].shape
        sizes = [[upper_bound(size) or 0 for size in reversed(operand.shape)] for operand in (x, mask)]
        most = math.prod(max(pair) for pair in itertools.zip_longest(*sizes, fillvalue=1))
        torchs = math.prod(sizes[0])  # 0 if there is no bound or no element
        if most > torchs > 0:
            bounds[node] = torchs
            ranges = length.node.shape_env.var_to_range
            ranges[length.node.expr] = type(ranges[length.node.expr])(0, most)
    return bounds


def _is_torchs_bound(condition: object, selections: Mapping[Node, int]) -> bool:
    """Returns whether a condition asserts the incorrect maximum that `_widened` returns for a `masked_select`."""
    if not isinstance(condition, Node) or condition.target is not operator.le:
        return False
    count, most = condition.args
    if not isinstance(count, Node) or count.target is not aten.sym_size.int:
        return False
    return node_arg(count) in selections and bool(most == selections[node_arg(count)])
