# SPDX-License-Identifier: BSD-3-Clause
# In: a node. Out: the activation that its users compute, as one call or in a form that torch decomposes it to.
"""Finds the activation that follows a value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.engine.passes.constants import Weights

aten = torch.ops.aten


class Activation(NamedTuple):
    """A name of `ACTIVATIONS`, and the node of its result."""

    name: str
    end: Node


class Activations:
    """Finds activations in a program."""

    def __init__(self, program: ExportedProgram) -> None:
        self._weights = Weights(program)

    def after(self, node: Node) -> Activation | None:
        """Returns the longest activation that includes all users of `node`, or None."""
        activation = None
        for end, inner in _ends(node):
            name = self._name(end, node)
            if name is not None and all(user is end or user in inner for user in node.users):
                activation = Activation(name, end)
        return activation

    def _name(self, end: Node, node: Node) -> str | None:
        return next((name for name, is_it in _FORMS.items() if is_it(self, end, node)), None)

    # ---- patterns: whether `end` is the activation of x ----

    def _is(self, value: object, target: object, *args: object) -> bool:
        """Whether `value` is a call of `target` with these arguments: nodes, Python scalars, stored scalars, None,
        or predicates.
        """
        if not isinstance(value, Node) or value.target is not target:
            return False
        values = list(value.args) + [None] * (len(args) - len(value.args))
        return len(values) == len(args) and all(map(self._fits, values, args))

    def _fits(self, given: object, expected: object) -> bool:
        if callable(expected):
            return bool(expected(given))
        if isinstance(expected, Node) or expected is None or given is None:
            return given is expected
        number = self._weights.number(given)
        return (
            isinstance(expected, (int, float))
            and number is not None
            and math.isclose(number, expected, rel_tol=1e-6)
        )

    def _both(self, value: object, target: object, one: object, other: object) -> bool:
        """Whether `value` is a call of `target` with two operands, in either order."""
        return self._is(value, target, one, other) or self._is(value, target, other, one)

    def relu(self, end: Node, x: object) -> bool:
        """max(x, 0)"""
        return (
            self._is(end, aten.relu.default, x)
            or self._is(end, aten.clamp.default, x, 0)
            or self._is(end, aten.clamp.default, x, 0, None)
            or self._is(end, aten.clamp_min.default, x, 0)
        )

    def relu6(self, end: Node, x: Node) -> bool:
        """min(max(x, 0), 6)"""
        return (
            self._is(end, aten.hardtanh.default, x, 0, 6)
            or self._is(end, aten.clamp.default, x, 0, 6)
            or self._is(end, aten.clamp.default, lambda low: self.relu(low, x), None, 6)
        )

    def _hard(self, end: object, x: Node) -> bool:
        """relu6(x + 3)"""
        if not isinstance(end, Node):
            return False
        shifted = end.args[0] if end.args else None
        if isinstance(shifted, Node) and self.relu(shifted, shifted.args[0] if shifted.args else None):
            shifted = shifted.args[0]
        return (
            isinstance(shifted, Node)
            and self._both(shifted, aten.add.Tensor, x, 3)
            and self.relu6(end, shifted)
        )

    def hardsigmoid(self, end: Node, x: Node) -> bool:
        """relu6(x + 3) / 6"""
        return (
            self._is(end, aten.hardsigmoid.default, x)
            or self._is(end, aten.div.Tensor, lambda top: self._hard(top, x), 6)
            or self._both(end, aten.mul.Tensor, lambda top: self._hard(top, x), 1 / 6)
        )

    def hardswish(self, end: Node, x: Node) -> bool:
        """x relu6(x + 3) / 6"""
        product = lambda top: self._both(top, aten.mul.Tensor, x, lambda hard: self._hard(hard, x))  # noqa: E731
        return (
            self._is(end, aten.hardswish.default, x)
            or self._is(end, aten.div.Tensor, product, 6)
            or self._both(end, aten.mul.Tensor, product, 1 / 6)
            or self._both(
                end, aten.mul.Tensor, x, lambda gate: isinstance(gate, Node) and self.hardsigmoid(gate, x)
            )
        )

    def sigmoid(self, end: Node, x: Node) -> bool:
        """1 / (1 + exp(-x))"""
        return self._is(end, aten.sigmoid.default, x)

    def silu(self, end: Node, x: Node) -> bool:
        """x sigmoid(x)"""
        return self._is(end, aten.silu.default, x) or self._both(
            end, aten.mul.Tensor, x, lambda gate: isinstance(gate, Node) and self.sigmoid(gate, x)
        )

    def tanh(self, end: Node, x: Node) -> bool:
        """tanh(x)"""
        return self._is(end, aten.tanh.default, x)

    def gelu(self, end: Node, x: Node) -> bool:
        """x / 2 (1 + erf(x / sqrt(2)))"""
        if self._is(end, aten.gelu.default, x):
            return not end.kwargs or end.kwargs.get("approximate") == "none"
        scaled = lambda value: (  # noqa: E731
            self._both(value, aten.mul.Tensor, x, math.sqrt(0.5))
            or self._is(value, aten.div.Tensor, x, math.sqrt(2))
        )
        erf = lambda value: self._is(value, aten.erf.default, scaled)  # noqa: E731
        return self._halved(end, x, lambda value: self._both(value, aten.add.Tensor, erf, 1))

    def gelu_tanh(self, end: Node, x: Node) -> bool:
        """x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))"""
        if self._is(end, aten.gelu.default, x):
            return end.kwargs.get("approximate") == "tanh"

        def power(value: object, exponent: int) -> bool:
            return self._is(value, aten.pow.Tensor_Scalar, x, exponent)

        def square(value: object) -> bool:
            return self._is(value, aten.mul.Tensor, x, x) or power(value, 2)

        cube = lambda value: power(value, 3) or self._both(value, aten.mul.Tensor, square, x)  # noqa: E731
        bent = lambda value: self._both(  # noqa: E731
            value, aten.add.Tensor, x, lambda term: self._both(term, aten.mul.Tensor, cube, 0.044715)
        )
        inner = lambda value: self._both(value, aten.mul.Tensor, bent, math.sqrt(2 / math.pi))  # noqa: E731
        tanh = lambda value: self._is(value, aten.tanh.default, inner)  # noqa: E731
        return self._halved(end, x, lambda value: self._both(value, aten.add.Tensor, tanh, 1))

    def _halved(self, end: Node, x: Node, factor: Callable[[Any], bool]) -> bool:
        """x / 2 times a factor, in any order of the multiplications."""
        product: Callable[[object, object, object], bool] = lambda value, one, other: self._both(  # noqa: E731
            value, aten.mul.Tensor, one, other
        )
        half = lambda value: product(value, x, 0.5) or self._is(value, aten.div.Tensor, x, 2)  # noqa: E731
        scaled = lambda value: self._both(value, aten.mul.Tensor, x, factor)  # noqa: E731
        half_factor = lambda value: self._both(value, aten.mul.Tensor, factor, 0.5)  # noqa: E731
        return (
            self._both(end, aten.mul.Tensor, half, factor)
            or self._both(end, aten.mul.Tensor, scaled, 0.5)
            or self._both(end, aten.mul.Tensor, x, half_factor)
        )


_FORMS: dict[str, Callable[[Activations, Node, Node], bool]] = {
    "relu": Activations.relu, "relu6": Activations.relu6, "hardswish": Activations.hardswish,
    "hardsigmoid": Activations.hardsigmoid, "silu": Activations.silu, "sigmoid": Activations.sigmoid,
    "tanh": Activations.tanh, "gelu": Activations.gelu, "gelu_tanh": Activations.gelu_tanh,
}  # fmt: skip

# Number of calls in the longest pattern.
_MAX_CALLS = 9


def _ends(node: Node) -> Iterator[tuple[Node, set[Node]]]:
    """Yields candidates for the last call of an activation of `node`, each with the calls that precede it.

    All users of `node` and of the preceding calls are within the candidate.
    """
    ends: list[Node] = []
    waiting = set(node.users)
    while waiting and len(ends) < _MAX_CALLS:
        first = min(waiting)
        waiting.remove(first)
        if first.op != "call_function":
            return  # the value is an output of the program
        ends.append(first)
        waiting.update(user for user in first.users if user.op == "call_function")
    for end in ends:
        inner: set[Node] = set()
        reached = [end]
        while reached:
            for source in reached.pop().all_input_nodes:
                if source in ends and source not in inner:
                    inner.add(source)
                    reached.append(source)
        if all(user is end or user in inner for value in (node, *inner) for user in value.users):
            yield end, inner
