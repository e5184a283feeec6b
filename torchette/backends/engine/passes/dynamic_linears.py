# SPDX-License-Identifier: BSD-3-Clause
# In: matrix multiplications of stored integers with an input that is quantized at run time, as PT2E and torchao express
# it in core operators. Out: `cpu::quantize_rows`, once for all users of the input, and `cpu::dynamic_linear`.
"""Replaces linear layers with dynamically quantized inputs by `cpu::dynamic_linear`."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.engine.passes.constants import Weights
from torchette.backends.engine.passes.integers import MAX_DEPTH
from torchette.backends.engine.passes.linears import operands
from torchette.backends.engine.passes.weight_only import PackedMatrix, QuantizedMatrix, pack, packed_weight
from torchette.exir import ops
from torchette.exir.arguments import checked, ints_arg
from torchette.exir.delegation.delegate import reject
from torchette.exir.graph import call, calls, constants, fake_mode, note, replace, same_shape, same_size
from torchette.exir.passes.remove_dead_code import remove_dead_code

aten = torch.ops.aten
cpu = torch.ops.cpu

_EXACT = (torch.float32, torch.float64)
_SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
_MIN_SCALE = 2.0**-126  # the reciprocal of a smaller scale overflows


class Scheme(NamedTuple):
    """The arguments of `cpu::quantize_rows` after the input."""

    low: int
    high: int
    steps: float
    epsilon: float
    symmetric: bool
    whole: bool


class Quantized(NamedTuple):
    """A quantized tensor: its scheme, and the formulas of its integers, zero points and scales."""

    x: Node
    scheme: Scheme
    integers: Formula
    zero: Formula
    scale: Formula


def place_dynamic_linears(program: ExportedProgram) -> ExportedProgram:
    """Replaces multiplications of stored integers with dynamically quantized inputs by cpu::dynamic_linear."""
    if not any(True for _ in calls(program, aten.amax.default)):
        return program
    placer = _Placer(program)
    count = sum(placer.place(node) for node in calls(program, *_PRODUCTS))
    if count:
        note(
            program,
            f"{count} linear layers run on integers; {len(placer.rows)} tensors are quantized for them",
        )
        remove_dead_code(program)
    return program


_PRODUCTS = (aten.linear.default, aten.mm.default, aten.addmm.default)


class _Placer:
    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._weights = Weights(program)
        self._stored = dict(constants(program))
        self._packed: dict[Node, PackedMatrix | None] = {}
        self._formulas: dict[Node, _Formulas] = {}
        self.rows: dict[tuple[Node, Scheme], tuple[Node, Node]] = {}

    def place(self, node: Node) -> bool:
        if node._erased or node.kwargs:
            return False
        x, weight, bias = operands(node)
        if not isinstance(x, Node) or not isinstance(weight, Node):
            return False
        if x.meta["val"].dtype is torch.float32:
            return self._of_floats(node, x, weight, bias)
        return node.target is aten.mm.default and self._of_integers(node, x, weight)

    # ---- layers that dequantize the input before the multiplication ----

    def _of_floats(self, node: Node, x: Node, weight: Node, bias: object) -> bool:
        if weight in self._stored or x.target is not aten.mul.Tensor:
            return False
        integers, scale = x.args
        quantized = self._quantized(scale, integers)
        if quantized is None or not same_shape(x.meta["val"].shape, quantized.x.meta["val"].shape):
            return False
        formulas = self._formulas[quantized.x]
        if formulas.of(x) != formulas.make(
            "mul", formulas.make("sub", quantized.integers, quantized.zero), quantized.scale
        ):
            reject(node, "its input is not quantized like the results of cpu::quantize_rows")
            return False
        if weight not in self._packed:
            self._packed[weight] = packed_weight(self._weights, self._stored, node, weight)
        packed = self._packed[weight]
        if packed is None:
            return False
        if bias is not None and not self._is_bias(bias, packed.outputs):
            reject(
                node,
                self._weights.why_not(bias, "bias") or "its bias does not have one element for each output",
            )
            return False
        return self._emit(node, node, quantized, packed, bias)

    # ---- layers that multiply integers and scale the result ----

    def _of_integers(self, node: Node, x: Node, weight: Node) -> bool:
        """Replaces an mm of integers and the multiplications with scales that follow it."""
        matrix, offset = self._stored.get(weight), self._offset(node, x, weight)
        product: Node | None = node
        if offset:
            # On processors that only multiply uint8 by int8, torchao adds an offset to the inputs and subtracts it from
            # the results.
            product, x = (
                _only_user(node, aten.sub.Tensor),
                _skip_views_and_casts(_skip_views_and_casts(x).args[0]).args[0],
            )
        end = _only_user(product, aten._to_copy.default)
        if (
            matrix is None
            or matrix.is_floating_point()
            or end is None
            or end.meta["val"].dtype is not torch.float32
        ):
            return False
        end, integers = _only_user(end, aten.mul.Tensor), _skip_views_and_casts(x)
        if end is None or not _is_column(end.args[1]):
            return False
        quantized = self._quantized(_skip_views_and_casts(end.args[1]), integers)
        if quantized is None or not same_shape(integers.meta["val"].shape, quantized.x.meta["val"].shape):
            return False
        formulas, (depth, outputs) = self._formulas[quantized.x], matrix.shape
        if offset and not 0 <= quantized.scheme.low + offset <= quantized.scheme.high + offset <= 255:
            return False
        if formulas.of(integers) != quantized.integers or not same_size(x.meta["val"].shape[-1], depth):
            return False
        correction = _only_user(end, aten.sub.Tensor)
        if correction is not None:  # subtracts zero * scale * (sums of the weights)
            end, zero_term = correction, correction.args[1]
            if not isinstance(zero_term, Node) or zero_term.target is not aten.mul.Tensor:
                return False
            scaled, sums = zero_term.args
            known = self._row(sums, outputs)
            if known is None or not torch.equal(known.flatten().double(), matrix.double().sum(0)):
                return False
            if not _is_column(scaled) or formulas.of(_skip_views_and_casts(scaled)) != formulas.make("mul", quantized.zero, quantized.scale):  # fmt: skip
                return False
        elif not quantized.scheme.symmetric:
            return False
        end = _only_user(end, aten.mul.Tensor)
        factors = None if end is None else self._row(end.args[1], outputs)
        if factors is None or factors.dtype is not torch.float32:
            return False
        if matrix.numel() == 0 or matrix.min() < -128 or matrix.max() > 127 or depth > MAX_DEPTH:
            reject(node, "its weight needs more than 8 bits, or its accumulators need more than 32 bits")
            return False
        # The result is reshaped to the leading dimensions of x. A bias may follow.
        sizes, bias, last = (*quantized.x.meta["val"].shape[:-1], outputs), None, None
        while end is not None:
            if same_shape(end.meta["val"].shape, sizes):
                last = end
            user = next(iter(end.users)) if len(end.users) == 1 else None
            if user is not None and user.target is aten.add.Tensor and user.args[0] is end:
                if (
                    user.kwargs
                    or bias is not None
                    or last is not end
                    or not self._is_bias(user.args[1], outputs)
                ):
                    break
                bias = user.args[1]
            elif user is None or user.target is not aten.view_copy.default:
                break
            end = user
        if last is None:
            reject(node, "its result is reshaped to other leading dimensions")
            return False
        scales = factors.detach().reshape(-1, 1).expand(outputs, 1)
        stored = QuantizedMatrix(matrix.detach().t().to(torch.int8), scales)
        packed = pack(self._weights, weight, stored)
        return packed is not None and self._emit(node, last, quantized, packed, bias)

    def _offset(self, node: Node, x: Node, weight: Node) -> int:
        """Returns the offset that is added to the inputs to make them uint8 and subtracted from the results, or 0."""
        cast, matrix = _skip_views_and_casts(x), self._stored.get(weight)
        if cast.target is not aten._to_copy.default or cast.meta["val"].dtype is not torch.uint8:
            return 0
        add, sub = _skip_views_and_casts(cast.args[0]), _only_user(node, aten.sub.Tensor)
        offset = self._stored.get(add.args[1]) if add.target is aten.add.Tensor else None
        if (
            offset is None
            or offset.numel() != 1
            or offset.is_floating_point()
            or sub is None
            or matrix is None
        ):
            return 0
        subtracted = self._row(sub.args[1], matrix.shape[1])
        same = subtracted is not None and torch.equal(
            subtracted.flatten().long(), offset.long() * matrix.long().sum(0)
        )
        return int(offset) if same and isinstance(add.args[0], Node) else 0

    def _row(self, value: object, outputs: int) -> torch.Tensor | None:
        """Returns a stored tensor of one element, or of one element for each output, or None."""
        stored = self._stored.get(value) if isinstance(value, Node) else None
        fits = stored is not None and (stored.numel() == 1 or stored.numel() == stored.shape[-1] == outputs)
        return stored if fits else None

    # ---- shared by both forms ----

    def _is_bias(self, value: object, outputs: int) -> bool:
        stored = self._weights.get(value)
        return stored is not None and stored.shape == (outputs,)

    def _emit(self, node: Node, end: Node, found: Quantized, packed: PackedMatrix, bias: object) -> bool:
        if packed.group > MAX_DEPTH:
            reject(node, "its accumulators need more than 32 bits")
            return False
        if (found.x, found.scheme) not in self.rows:
            val = found.x.meta["val"]
            with fake_mode(self._program):
                vals = val.to(torch.int8), val.new_empty((*val.shape[:-1], 2))
            first = _first_after(found.x)
            pair = call(first, cpu.quantize_rows.default, (found.x, *found.scheme), val=vals, like=node)
            integers, factors = (
                call(first, operator.getitem, (pair, i), val=part, like=node) for i, part in enumerate(vals)
            )
            self.rows[found.x, found.scheme] = integers, factors
        args = (*self.rows[found.x, found.scheme], *packed[:2], bias, None, packed.outputs, "none")
        placed = call(end, cpu.dynamic_linear.default, args, val=end.meta["val"], like=node)
        replace(self._program, end, placed)
        return True

    def _quantized(self, scale: object, above: object) -> Quantized | None:
        """Returns the quantized tensor with this scale and these integers, or None."""
        for reduction in _reductions(scale):
            x = reduction.args[0]
            if not isinstance(x, Node) or x.meta["val"].dtype is not torch.float32:
                continue
            if x not in self._formulas:
                self._formulas[x] = _Formulas(x, self._stored)
            quantized = self._formulas[x].quantized(scale, above)
            if quantized is not None:
                return quantized
        return None


def _is_column(node: object) -> bool:
    """Whether a value is a matrix with one column."""
    return isinstance(node, Node) and node.meta["val"].dim() == 2 and same_size(node.meta["val"].shape[1], 1)


def _only_user(node: Node | None, target: object) -> Node | None:
    """Returns the only user of a node, views skipped, if it is a call of `target` with the node as its first
    operand.
    """
    while node is not None and len(node.users) == 1:
        (user,) = node.users
        if user.target is target:
            return user if user.args[0] is node and set(user.kwargs) <= {"dtype"} else None
        if user.target is not aten.view_copy.default:
            return None
        node = user
    return None


def _skip_views_and_casts(node: object) -> Any:
    """Skips views and casts between integer dtypes."""
    while isinstance(node, Node) and (
        node.target is aten.view_copy.default
        or (node.target is aten._to_copy.default and node.meta["val"].dtype in _SIGNED)
    ):
        node = node.args[0]
    return node


def _first_after(x: Node) -> Node:
    """Returns the first node after x, so that all users of x can read a value that is inserted there."""
    first = x.next
    while first.op == "placeholder":
        first = first.next
    return first


def _reductions(scale: object) -> Iterator[Node]:
    """Yields the amax calls that a value depends on, within a limited number of calls."""
    waiting: list[Any] = [scale]
    visited: set[Node] = set()
    while waiting and len(visited) < 16:
        node = waiting.pop(0)
        if not isinstance(node, Node) or node in visited or node.op != "call_function":
            continue
        visited.add(node)
        if node.target is aten.amax.default:
            yield node
        else:
            waiting += node.all_input_nodes


# ---- formulas ----

_MAX_CALLS = 32  # maximum number of calls between a tensor and its dequantized form

Formula = int  # an index; equal formulas of one tensor have equal indices

_POINTWISE = {
    aten.add.Tensor: "add", aten.sub.Tensor: "sub", aten.mul.Tensor: "mul", aten.div.Tensor: "div",
    aten.minimum.default: "minimum", aten.maximum.default: "maximum", aten.neg.default: "neg",
    aten.round.default: "round", aten.reciprocal.default: "reciprocal",
}  # fmt: skip
_COMMUTE = ("add", "mul", "minimum", "maximum")


class _Formulas:
    """Computes the formulas of values that depend on a tensor x, so that equal computations have equal formulas.

    A formula describes the same computation, bit for bit, as the calls that it is derived from. A formula does not record
    whether a value has the shape of x or one element for each range; callers check the shapes.
    """

    def __init__(self, x: Node, stored: dict[Node, torch.Tensor]) -> None:
        self._x = x
        self._stored = stored
        self._ids: dict[tuple[Any, ...], Formula] = {}
        self._tuples: list[tuple[Any, ...]] = []
        self._depth = 0
        self._known: dict[Node, Formula | None] = {x: self.make("x")}

    def make(self, kind: str, *parts: Any) -> Formula:
        """Returns the formula of an operation.

        Identities such as x + 0 and x * 1 are simplified; they do not change the integers.
        """
        if kind in _COMMUTE:
            parts = tuple(sorted(parts))
        if kind in ("add", "sub") and self._is_number(parts[-1], 0.0):
            return checked(parts[0], int)
        for i in (0, 1):
            if kind == "mul" and self._is_number(parts[i], 1.0):
                return checked(parts[1 - i], int)
            if kind == "add" and self._is_number(parts[i], 0.0):
                return checked(parts[1 - i], int)
        key = (kind, *parts)
        if key not in self._ids:
            self._ids[key] = len(self._tuples)
            self._tuples.append(key)
        return self._ids[key]

    def _is_number(self, formula: Formula, value: float) -> bool:
        return self._tuples[formula] == ("number", value)

    def of(self, value: object) -> Formula | None:
        """Returns the formula of a value, or None."""
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return self.make("number", float(value))
        if not isinstance(value, Node):
            return None
        if value not in self._known:
            self._known[value] = None
            if self._depth < _MAX_CALLS:
                self._depth += 1
                self._known[value] = self._read(value)
                self._depth -= 1
        return self._known[value]

    def _read(self, node: Node) -> Formula | None:
        if node in self._stored:
            tensor = self._stored[node]
            if tensor.numel() == 0 or tensor.is_complex():
                return None
            values = tensor.flatten()
            is_number = bool(values[0] == values[-1]) and bool((values == values[0]).all())
            return self.make("number", float(values[0])) if is_number else None
        val = node.meta.get("val")
        if node.op != "call_function" or not isinstance(val, torch.Tensor):
            return None
        target = node.target
        if target in (aten.full_like.default, aten.full.default):
            return self.of(node.args[1])
        if target in (aten.amin.default, aten.amax.default):
            return self._extreme(node)
        if target is aten.view_copy.default:
            part = self.of(node.args[0])
            # A view of one value for each range keeps their order.
            return None if part is None or self._has_x(part) else part
        if target is aten._to_copy.default:
            part = self.of(node.args[0])
            # float64 represents every float32 value, and no arithmetic runs in float64.
            is_exact = set(node.kwargs) <= {"dtype"} and (val.dtype in _EXACT or self._fits(part, val.dtype))
            return part if part is not None and is_exact else None
        if target is aten.clamp.default:
            part = self.of(node.args[0])
            low, high = (ops.argument(node, name) for name in ("min", "max"))
            if part is None or not all(bound is None or isinstance(bound, (int, float)) for bound in (low, high)):  # fmt: skip
                return None
            return self.make("clamp", part, low, high)
        if target not in _POINTWISE or node.kwargs or val.dtype is not torch.float32:
            return None
        if not self._broadcasts_by_range(node):
            return None
        parts = [self.of(arg) for arg in node.args]
        return None if None in parts else self.make(_POINTWISE[target], *parts)

    def _extreme(self, node: Node) -> Formula | None:
        """Matches the minimum or maximum of each row of x, or of all elements."""
        rank = self._x.meta["val"].dim()
        given = node.args[1] if len(node.args) > 1 else []
        reduced = [given] if isinstance(given, int) else ints_arg(node, 1) if given else []
        dims = ({d % rank for d in reduced} if rank else set()) or set(range(rank))
        if node.args[0] is not self._x or dims not in ({rank - 1}, set(range(rank))) or not rank:
            return None
        kind = "amin" if node.target is aten.amin.default else "amax"
        return self.make(kind, "row" if dims == {rank - 1} and rank > 1 else "whole")

    def _broadcasts_by_range(self, node: Node) -> bool:
        """Whether operands broadcast only if they are scalars, or values of a range that apply to the elements of that
        range.
        """
        shape = node.meta["val"].shape
        for arg in node.args:
            part = self.of(arg)
            if part is None:
                return False
            if self._tuples[part][0] == "number" or not isinstance(arg, Node):
                continue
            sizes = arg.meta["val"].shape
            if same_shape(sizes, shape):
                continue
            of_row = same_shape(sizes, (*shape[:-1], 1)) and same_shape(shape, self._x.meta["val"].shape)
            if not of_row and not (self._is_per_tensor(part) and all(same_size(size, 1) for size in sizes)):
                return False
        return True

    def _is_per_tensor(self, formula: Formula) -> bool:
        """Whether a value is a scalar that is computed from all elements of x."""
        kind, *parts = self._tuples[formula]
        if kind in ("amin", "amax"):
            return parts == ["whole"]
        return kind == "number" or (
            kind != "x" and all(self._is_per_tensor(part) for part in self._parts(formula))
        )

    def _has_x(self, formula: Formula) -> bool:
        return self._tuples[formula][0] == "x" or any(self._has_x(part) for part in self._parts(formula))

    def _parts(self, formula: Formula) -> list[Formula]:
        kind, *parts = self._tuples[formula]
        return [] if kind in ("number", "amin", "amax") else parts[:1] if kind == "clamp" else parts

    def _fits(self, formula: Formula | None, dtype: torch.dtype) -> bool:
        """Whether a value is an integer within the range of a dtype."""
        if formula is None or dtype.is_floating_point or dtype is torch.bool or dtype.is_complex:
            return False
        info, (kind, *parts) = torch.iinfo(dtype), self._tuples[formula]
        if kind == "number":
            return float(parts[0]).is_integer() and info.min <= parts[0] <= info.max
        if kind != "clamp" or None in parts[1:]:
            return False
        return info.min <= parts[1] and parts[2] <= info.max and self._is_integer(formula)

    def _is_integer(self, formula: Formula) -> bool:
        kind, *parts = self._tuples[formula]
        if kind == "number":
            return float(parts[0]).is_integer()
        if kind == "clamp":
            return all(float(bound).is_integer() for bound in parts[1:]) and self._is_integer(parts[0])
        return kind == "round" or (kind in ("add", "sub") and all(map(self._is_integer, parts)))

    def quantized(self, scale: object, above: object) -> Quantized | None:
        """Returns how x is quantized, or None if the pattern does not match.

        Args:
            scale: must be max(spread / steps, epsilon).
            above: the integers, or the integers minus their zero point.
        """
        formula, numbers = self.of(scale), self.of(above)
        if formula is None or numbers is None:
            return None
        if self._tuples[numbers][0] == "sub":
            numbers = self._tuples[numbers][1]
        kind, *parts = self._tuples[formula]
        if kind != "clamp" or parts[2] is not None or self._tuples[parts[0]][0] != "div":
            return None
        _, spread, divisor = self._tuples[parts[0]]
        epsilon, (number, *steps) = parts[1], self._tuples[divisor]
        clamp, *bounds = self._tuples[numbers]
        if number != "number" or not steps[0] > 0 or epsilon is None or epsilon < _MIN_SCALE:
            return None
        if clamp != "clamp" or not all(
            isinstance(bound, (int, float)) and bound == int(bound) for bound in bounds[1:]
        ):
            return None
        low, high = int(bounds[1]), int(bounds[2])
        if not -128 <= low <= 0 <= high <= 127:
            return None
        none, x = self.make("number", 0.0), self.make("x")
        for where in ("row", "whole"):
            least = self.make("minimum", self.make("amin", where), none)
            most = self.make("maximum", self.make("amax", where), none)
            if spread == self.make("maximum", self.make("neg", least), most):
                symmetric, zero = True, none
            elif spread == self.make("sub", most, least):
                below = self.make("round", self.make("div", least, formula))
                symmetric = False
                zero = self.make("clamp", self.make("sub", self.make("number", float(low)), below), low, high)
            else:
                continue
            rounded = self.make("round", self.make("mul", x, self.make("reciprocal", formula)))
            scheme = Scheme(low, high, float(steps[0]), float(epsilon), symmetric, where == "whole")
            expected = self.make("clamp", self.make("add", rounded, zero), low, high)
            return Quantized(self._x, scheme, expected, zero, formula)
        return None
