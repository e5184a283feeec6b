# SPDX-License-Identifier: BSD-3-Clause
# In: connected elementwise calls. Out: `cpu::chain`, which computes them in blocks that fit the L1 cache and stores
# only the last result.
"""Replaces connected elementwise calls by one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.engine.operators._library import COMPOSED
from torchette.backends.engine.passes.constants import Weights
from torchette.exir.arguments import checked, number_arg
from torchette.exir.graph import call, graph_modules, is_dense, note, replace, same_shape
from torchette.schema.engine import ACTIVATIONS, CHAIN_FOLDS, CHAIN_OPERATIONS, CONSTANTS

aten = torch.ops.aten

_MAX_INPUTS, _MAX_NUMBERS, _MAX_INSTRUCTIONS = (
    CONSTANTS[f"kMaxChain{of}"] for of in ("Inputs", "Numbers", "Instructions")
)

# Calls with only tensor or scalar operands -> their name in a chain program.
_DIRECT: dict[Any, str] = {
    **{getattr(aten, name).default: name for name in ACTIVATIONS if name not in COMPOSED},
    **{getattr(getattr(aten, name), overload): name for name, _, overload in CHAIN_OPERATIONS},
}
# Operators with boolean operands.
_LOGICAL = {
    aten.logical_and.default: "logical_and", aten.bitwise_and.Tensor: "logical_and",
    aten.logical_or.default: "logical_or", aten.bitwise_or.Tensor: "logical_or",
    aten.logical_not.default: "logical_not", aten.bitwise_not.default: "logical_not",
}  # fmt: skip
_DIRECT |= _LOGICAL
_FOLDS = {getattr(getattr(aten, operator), overload): name for name, operator, overload in CHAIN_FOLDS}
_POWERS = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}


class _Program:
    """Builds a chain program and collects its operands."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._values: dict[Node, str] = {}
        self._words: list[str] = []
        self._length = 0
        self.inputs: list[Node] = []
        self.conditions: list[Node] = []
        self.numbers: list[float] = []

    @property
    def text(self) -> str:
        return " ".join(self._words)

    @property
    def fits(self) -> bool:
        inputs = len(self.inputs) + len(self.conditions)
        return (
            inputs <= _MAX_INPUTS and len(self.numbers) <= _MAX_NUMBERS and self._length <= _MAX_INSTRUCTIONS
        )

    def add(self, node: Node) -> None:
        """Writes the instructions of a call."""
        self._values[node] = _WRITERS[node.target](self, node)

    def operand(self, value: object) -> str:
        """Returns the word for an operand, and adds the operand to its list if it is new."""
        if isinstance(value, Node) and value in self._values:
            return self._values[value]
        number = _number(self._weights, value)
        if number is not None:
            if number not in self.numbers:
                self.numbers.append(number)
            return f"n{self.numbers.index(number)}"
        among, letter = (self.conditions, "c") if _dtype(value) == torch.bool else (self.inputs, "i")
        read = checked(value, Node)
        among.append(read)
        self._values[read] = f"{letter}{len(among) - 1}"
        return self._values[read]

    def write(self, name: str, *operands: object) -> str:
        """Writes an instruction. Operands are words or values for `operand`. Returns the word for the result."""
        words = [one if isinstance(one, str) else self.operand(one) for one in operands]
        self._words += [name, *words]
        self._length += 1
        return f"v{self._length - 1}"

    # ---- writers of calls ----

    def direct(self, node: Node) -> str:
        """A call that is one instruction."""
        operands = list(node.args)
        if (alpha := node.kwargs.get("alpha", 1)) != 1:
            operands[1] = self.write("mul", operands[1], alpha)
        return self.write(_DIRECT[node.target], *operands)

    def clamp(self, node: Node) -> str:
        """Scalar bounds; NaN is propagated."""
        value: Any = node.args[0]
        low, high = list(node.args[1:]) + list(_BOUNDS[node.target][len(node.args) - 1 :])
        if low is not None:
            value = self.write("maximum", value, low)
        return value if high is None else self.write("minimum", value, high)

    def gelu(self, node: Node) -> str:
        """The exact form or the tanh approximation."""
        return self.write("gelu_tanh" if node.kwargs.get("approximate") == "tanh" else "gelu", node.args[0])

    def leaky_relu(self, node: Node) -> str:
        """x < 0 ? slope x : x"""
        x, slope = (*node.args, 0.01)[:2]
        return self.write("where", self.write("lt", x, 0), self.write("mul", x, slope), x)

    def elu(self, node: Node) -> str:
        """x < 0 ? alpha expm1(x) : x"""
        x, alpha = (*node.args, 1)[:2]
        curve = self.write("expm1", x)
        return self.write("where", self.write("lt", x, 0), self.write("mul", curve, alpha), x)

    def pow(self, node: Node) -> str:
        """Small integer exponents as multiplications, and roots."""
        x, exponent = node.args[0], number_arg(node, 1)
        if exponent in _POWERS:
            return self.write(_POWERS[exponent], x)
        value = self.write("mul", x, x)
        return self.write("mul", value, x if exponent == 3 else value) if exponent > 2 else value


_BOUNDS: dict[Any, tuple[Any, Any]] = {aten.clamp.default: (None, None), aten.hardtanh.default: (-1, 1)}
_WRITERS: dict[Any, Callable[[_Program, Node], str]] = {
    **dict.fromkeys(_DIRECT, _Program.direct),
    aten.pow.Tensor_Scalar: _Program.pow,
    aten.clamp.default: _Program.clamp, aten.hardtanh.default: _Program.clamp, aten.gelu.default: _Program.gelu,
    aten.leaky_relu.default: _Program.leaky_relu, aten.elu.default: _Program.elu,
}  # fmt: skip


def place_chains(program: ExportedProgram) -> ExportedProgram:
    """Replaces groups of two or more connected elementwise calls by cpu::chain."""
    weights = Weights(program)
    chains = members = 0
    for module in graph_modules(program):
        for end, group in _groups(weights, list(module.graph.nodes)).items():
            if len(group) > 1:
                _place(program, weights, end, group)
                chains += 1
                members += len(group)
    if chains:
        note(program, f"{members} elementwise calls became {chains} cpu::chain calls")
    return program


def _groups(weights: Weights, nodes: list[Node]) -> dict[Node, list[Node]]:
    """Returns last call -> the calls of its group, last call first.

    All users of the other results are in the same group.
    """
    ends: dict[Node, Node] = {}
    groups: dict[Node, list[Node]] = {}
    for node in reversed(nodes):
        folds = _is_fold(node)
        if not folds and not _is_elementwise(weights, node):
            continue
        owners = {ends.get(user) for user in node.users}
        end = owners.pop() if len(owners) == 1 else None
        if end is not None and not folds and _joins(weights, node, end, groups[end]):
            ends[node] = end
            groups[end].append(node)
        elif node.meta["val"].dtype == torch.float32:
            ends[node] = node
            groups[node] = [node]
    return groups


def _joins(weights: Weights, node: Node, end: Node, group: list[Node]) -> bool:
    operand: Any = end.args[0] if end.target in _FOLDS else end
    return (
        same_shape(node.meta["val"].shape, operand.meta["val"].shape)
        and _written(weights, [*group, node]).fits
    )


def _written(weights: Weights, group: list[Node]) -> _Program:
    written = _Program(weights)
    for node in reversed(group):
        if node.target not in _FOLDS:
            written.add(node)
    return written


def _place(program: ExportedProgram, weights: Weights, end: Node, group: list[Node]) -> None:
    written = _written(weights, group)
    fold, keepdim = _FOLDS.get(end.target, "none"), len(end.args) > 2 and bool(end.args[2])
    args = (
        written.inputs,
        written.conditions,
        written.numbers,
        written.text,
        fold,
        keepdim and fold != "none",
    )
    replace(program, end, call(end, torch.ops.cpu.chain.default, args, val=end.meta["val"], like=end))
    for node in group[1:]:
        node.graph.erase_node(node)


# ---- conditions for calls in a chain ----


def _is_fold(node: Node) -> bool:
    """Whether a node is a sum, mean or maximum of float32 elements over the last dimension."""
    if node.target not in _FOLDS or node.kwargs or _dtype(node) != torch.float32:
        return False
    x, dims = node.args[0], node.args[1] if len(node.args) > 1 else None
    if _dtype(x) != torch.float32 or not isinstance(dims, (list, tuple)) or len(dims) != 1:
        return False
    rank = checked(x, Node).meta["val"].dim()
    return rank > 0 and dims[0] in (-1, rank - 1)


def _is_elementwise(weights: Weights, node: Node) -> bool:
    """Whether a node is an elementwise call that the kernel supports, on dense float32 and bool tensors."""
    if node.op != "call_function" or node.target not in _WRITERS or not _fits(node):
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() == 0 or not is_dense(value):
        return False
    operands: list[Any] = list(node.args) if node.target in _DIRECT else [node.args[0]]
    for index, operand in enumerate(operands):
        condition = node.target in _LOGICAL or (index == 0 and node.target is aten.where.self)
        expected = torch.bool if condition else torch.float32
        is_constant = expected == torch.float32 and _number(weights, operand) is not None
        if not is_constant and (_dtype(operand) != expected or not is_dense(operand.meta["val"])):
            return False
    return value.dtype in (torch.float32, torch.bool)


def _fits(node: Node) -> bool:
    """Whether the arguments other than the operands are supported."""
    kwargs = dict(node.kwargs)
    alpha, approximate = kwargs.pop("alpha", 1), kwargs.pop("approximate", "none")
    if kwargs or not isinstance(alpha, (int, float)) or approximate not in ("none", "tanh"):
        return False
    if node.target is aten.pow.Tensor_Scalar:
        return node.args[1] in (2, 3, 4, *_POWERS)
    if node.target in (aten.clamp.default, aten.hardtanh.default, aten.leaky_relu.default, aten.elu.default):
        operands = node.args[1:]
        max_count = 1 if node.target in (aten.leaky_relu.default, aten.elu.default) else 2
        are_constant = all(one is None or isinstance(one, (int, float)) for one in operands)
        return (
            are_constant
            and len(operands) <= max_count
            and any(one is not None for one in (*operands, 1)[:max_count])
        )
    return True


def _number(weights: Weights, value: object) -> float | None:
    """Returns the value of a constant scalar operand, or None. Boolean constants are excluded."""
    if isinstance(value, Node) and (_dtype(value) in (None, torch.bool) or value.meta["val"].dim() != 0):
        return None
    return weights.number(value)


def _dtype(value: object) -> torch.dtype | None:
    tensor = value.meta.get("val") if isinstance(value, Node) else None
    return tensor.dtype if isinstance(tensor, torch.Tensor) else None
