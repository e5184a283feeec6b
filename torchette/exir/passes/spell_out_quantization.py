# SPDX-License-Identifier: BSD-3-Clause
# In: a graph with quantization that no backend accepted. Out: the same arithmetic in core operators. Stored integers
# stay integers, so that the file stays small.
"""Decomposes quantize and dequantize to operators that every runtime has."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.node import Argument

from torchette.exir import control_flow
from torchette.exir.arguments import checked, int_arg, node_arg, number_arg, owner
from torchette.exir.graph import add_constant, call, calls, fake_mode, note, replace

aten = torch.ops.aten
_NAMESPACE = "quantized_decomposed."


def spell_out_quantization(program: ExportedProgram) -> ExportedProgram:
    """Replace PT2E's quantize, dequantize and choose_qparams by core operators."""
    done, callers = 0, control_flow.owners(program.graph_module)
    for node in list(calls(program)):
        name = str(node.target)
        rule = _RULES.get(name.removeprefix(_NAMESPACE)) if name.startswith(_NAMESPACE) else None
        if rule is not None:
            rule(_Writer(program, node, callers), node)
            done += 1
    if done:
        note(program, f"{done} quantize and dequantize nodes decomposed to core operators")
    return program


class _Writer:
    """Inserts calls before a node."""

    def __init__(self, program: ExportedProgram, node: Node, callers: dict[GraphModule, Node]) -> None:
        self.program = program
        self._node = node
        self._callers = callers
        self._mode = fake_mode(program)

    def call(self, target: Callable[..., Any], *args: Argument, **kwargs: Argument) -> Node:
        values, named = torch.fx.node.map_arg((args, kwargs), lambda source: source.meta["val"])
        with self._mode:
            val = target(*values, **named)
        return call(self._node, target, args, kwargs, val=val, like=self._node)

    def number(self, value: float) -> Node:
        tensor = torch.tensor(float(value))
        stored = add_constant(self.program, f"number_{self._node.name}", tensor, self._node)
        return control_flow.pass_to_branch(stored, owner(self._node), self._callers)

    def real(self, value: Argument) -> Node:
        """Returns a scalar or tensor in float32."""
        if isinstance(value, (int, float)):
            return self.number(value)
        source = checked(value, Node)
        return source if source.meta["val"].dtype is torch.float32 else self.to(source, torch.float32)

    def inverse(self, scale: Argument) -> Node:
        """Returns the factor by which torch multiplies when it quantizes."""
        if isinstance(scale, Node):
            return self.call(aten.reciprocal.default, self.real(scale))
        if not isinstance(scale, (int, float)):
            raise TypeError(f"expected a scalar scale, not {scale}")
        return self.number(1.0 / scale if scale else math.inf)

    def to(self, value: Node, dtype: torch.dtype) -> Node:
        return self.call(aten._to_copy.default, value, dtype=dtype)

    def along(self, value: Node, axis: int, rank: int) -> Node:
        """Reshapes a vector so that it broadcasts over all other dimensions."""
        shape = [1] * rank
        shape[axis] = value.meta["val"].shape[0]
        return self.call(aten.view_copy.default, value, shape)

    def replace(self, old: Node, value: Node) -> None:
        if value.meta["val"].dtype != old.meta["val"].dtype:
            value = self.to(value, old.meta["val"].dtype)
        replace(self.program, old, value)


def _quantize(write: _Writer, node: Node, inverse: Node, zero: Node, low: float, high: float) -> None:
    scaled = write.call(aten.mul.Tensor, write.real(node.args[0]), inverse)
    shifted = write.call(aten.add.Tensor, write.call(aten.round.default, scaled), zero)
    write.replace(node, write.call(aten.clamp.default, shifted, float(low), float(high)))


def _dequantize(write: _Writer, node: Node, scale: Node, zero: Node | None) -> None:
    value = write.real(node.args[0])
    if zero is not None:
        value = write.call(aten.sub.Tensor, value, zero)
    write.replace(node, write.call(aten.mul.Tensor, value, scale))


def _per_tensor(write: _Writer, node: Node) -> None:
    scale, zero = node.args[1:3]
    low, high = number_arg(node, 3), number_arg(node, 4)
    if ".quantize" in str(node.target):
        _quantize(write, node, write.inverse(scale), write.real(zero), low, high)
    else:
        _dequantize(write, node, write.real(scale), None if zero == 0 else write.real(zero))


def _per_channel(write: _Writer, node: Node) -> None:
    scales, zeros = node.args[1:3]
    axis, low, high = int_arg(node, 3), number_arg(node, 4), number_arg(node, 5)
    rank = node.meta["val"].dim()

    def along(value: Argument) -> Node:
        return write.along(write.real(value), axis % rank, rank)

    if ".quantize" in str(node.target):
        _quantize(write, node, along(write.inverse(scales)), along(zeros), low, high)
    else:
        _dequantize(write, node, along(scales), None if zeros is None else along(zeros))


def _choose(write: _Writer, node: Node) -> None:
    """Computes the range of all elements, extended to contain 0."""
    source, dtype = node_arg(node), node.args[4]
    low, high, epsilon = (number_arg(node, place) for place in (1, 2, 3))
    dims = list(range(source.meta["val"].dim()))
    none = write.number(0.0)
    least = write.call(aten.minimum.default, write.call(aten.amin.default, source, dims), none)
    most = write.call(aten.maximum.default, write.call(aten.amax.default, source, dims), none)
    steps = high - low
    symmetric = "symmetric" in str(node.target)
    if symmetric:
        spread, steps = write.call(aten.maximum.default, write.call(aten.neg.default, least), most), steps / 2
    else:
        spread = write.call(aten.sub.Tensor, most, least)
    scale = write.call(aten.div.Tensor, spread, write.number(steps))
    scale = write.call(aten.clamp.default, scale, float(epsilon))
    if symmetric:
        zero = write.number(128 if dtype is torch.uint8 else 0)
    else:
        zero = write.call(aten.round.default, write.call(aten.div.Tensor, least, scale))
        zero = write.call(aten.sub.Tensor, write.number(low), zero)
        zero = write.call(aten.clamp.default, zero, float(low), float(high))
    for user in [user for user in node.users if user.target is operator.getitem]:
        part = scale if user.args[1] == 0 else zero
        write.replace(user, write.call(aten.view_copy.default, part, list(user.meta["val"].shape)))
    if not node.users:
        node.graph.erase_node(node)


_RULES: dict[str, Callable[[_Writer, Node], None]] = {
    "quantize_per_tensor.default": _per_tensor,
    "quantize_per_tensor.tensor": _per_tensor,
    "dequantize_per_tensor.default": _per_tensor,
    "dequantize_per_tensor.tensor": _per_tensor,
    "quantize_per_channel.default": _per_channel,
    "dequantize_per_channel.default": _per_channel,
    "choose_qparams.tensor": _choose,
    "choose_qparams_symmetric.tensor": _choose,
}
