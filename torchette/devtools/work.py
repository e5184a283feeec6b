# SPDX-License-Identifier: BSD-3-Clause
# In: an instruction of a file, and the shapes of its tensors. Out: the operations it executes and the bytes it moves.
"""`work`: the cost of an instruction. `FORMULAS` contains the formula of each operator."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torchette.devtools.inspect import InstructionInfo, MethodInfo, TensorInfo


class Work(NamedTuple):
    """Cost of one call. Each weight, input and result counts once, even if the kernel reads it repeatedly.

    Attributes:
        operations: floating-point operations; a multiply-add counts as two. None if the operator has no formula.
        nbytes: bytes read and written.
    """

    operations: int | None
    nbytes: int


class _Call:
    """An instruction with the shapes of its tensors."""

    def __init__(
        self, method: MethodInfo, item: InstructionInfo, sizes: Mapping[int, Sequence[int]] | None
    ) -> None:
        self._values, self._item, self._known = method.values, item, sizes or {}

    def sizes(self, position: int) -> tuple[int, ...]:
        """Returns the sizes of a tensor argument."""
        return self._sizes(self._item.inputs[position])

    def sizes_of_list(self, position: int) -> list[tuple[int, ...]]:
        """Returns the sizes of each tensor in a list argument."""
        return [self._sizes(index) for index in self._tensors([self._item.inputs[position]])]

    @property
    def result(self) -> tuple[int, ...]:
        """Sizes of the first result."""
        return self._sizes(next(self._tensors(self._item.outputs)))

    @property
    def is_floating(self) -> bool:
        """Whether the first result has a floating-point dtype."""
        return "float" in self._tensor(next(self._tensors(self._item.outputs))).dtype

    def argument(self, position: int) -> Any:
        """Returns a scalar, a string, or a list of integers."""
        value = self._values[self._item.inputs[position]]
        if value.kind == "int_list":
            return [self._values[index].value for index in value.value]
        return value.value

    def moved(self, op: str) -> int:
        """Returns the bytes of all tensors. A partly read input counts at most the bytes of the result."""
        results = sum(map(self._nbytes, dict.fromkeys(self._tensors(self._item.outputs))))
        inputs = self._item.inputs
        if op in _PARTLY_WRITTEN:  # the first input has the other channels of the result, in the same memory
            results = results * self.argument(7) // self.argument(len(inputs) - 1)
            inputs = inputs[1:]
        input_sizes = [self._nbytes(index) for index in dict.fromkeys(self._tensors(inputs))]
        return results + sum(min(nbytes, results) if op in _PARTLY_READ else nbytes for nbytes in input_sizes)

    def _tensors(self, indices: Sequence[int]) -> Iterator[int]:
        for index in indices:
            value = self._values[index] if index >= 0 else None
            if value is not None and value.tensor is not None:
                yield index
            elif value is not None and value.kind in ("tensor_list", "optional_tensor_list"):
                yield from self._tensors(value.value)

    def _sizes(self, index: int) -> tuple[int, ...]:
        if index in self._known:
            return tuple(self._known[index])
        tensor = self._tensor(index)
        if tensor.dynamism != "static":
            raise _UnknownShape
        return tuple(tensor.sizes)

    def _nbytes(self, index: int) -> int:
        tensor, sizes = self._tensor(index), self._sizes(index)
        stored = math.prod(tensor.sizes)
        return tensor.nbytes * math.prod(sizes) // stored if stored else 0

    def _tensor(self, index: int) -> TensorInfo:
        tensor = self._values[index].tensor
        if tensor is None:
            raise _UnknownShape
        return tensor


class _UnknownShape(Exception):
    """The shape of a tensor is only known during execution."""


# ---- formulas ----


def _arithmetic(call: _Call) -> int:
    """One operation per element; none for integers."""
    return math.prod(call.result) if call.is_floating else 0


def _product(position: int) -> Callable[[_Call], int]:
    """Matmul: each result element is the dot product of a row of this argument with a column."""
    return lambda call: 2 * math.prod(call.result) * call.sizes(position)[-1]


def _each(operations: int) -> Callable[[_Call], int]:
    """A fixed number of operations for each element of the result."""
    return lambda call: operations * math.prod(call.result)


def _window(call: _Call) -> int:
    """One operation for each element under the window; the second argument is the window."""
    kernel = call.argument(1)
    rank = len(call.result) - 2
    result: int = math.prod(call.result) * math.prod(kernel * rank if len(kernel) == 1 else kernel)
    return result


def _filters(more: int, *, of_part: bool = False) -> Callable[[_Call], int]:
    """A multiply-add per result and element of a packed filter; depthwise filters lack the panel dimension. `of_part`: the
    call computes a part of the channels of its result, and its first argument is their memory."""

    def count(call: _Call) -> int:
        filters, result = call.sizes(1 + of_part), call.result
        channels = call.argument(7) if of_part else result[-1]
        taps = math.prod(filters[len(filters) - len(result) + more : -1])
        operations: int = 2 * math.prod(result[:-1]) * channels * taps
        return operations

    return count


def _convolution(call: _Call) -> int:
    transposed = call.argument(6)
    return 2 * math.prod(call.sizes(0) if transposed else call.result) * math.prod(call.sizes(1)[1:])


def _transposed(call: _Call) -> int:
    """A multiply-add for each input element, each filter element and each output channel of its group."""
    groups, *kernel = call.sizes(1)[:-3]
    result: int = 2 * math.prod(call.sizes(0)) * math.prod(kernel) * call.argument(8) // groups
    return result


def _recurrent(gates: int) -> Callable[[_Call], int]:
    """The matmuls with both weights in each step; the cost of the gates is negligible."""

    def count(call: _Call) -> int:
        return 2 * gates * math.prod(call.result) * (call.sizes(0)[-1] + call.result[-1])

    return count


def _chain(call: _Call) -> int:
    """One operation for each instruction of the chain's program and each element of the broadcast shape."""
    words = re.findall(r"\b(?![icnv]\d+\b)\w+", call.argument(3))
    shapes = [*call.sizes_of_list(0), *call.sizes_of_list(1)]
    return len(words) * math.prod(_broadcast(shapes))


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    return [max(sizes) if min(sizes) else 0 for sizes in zip(*padded, strict=True)]


def _resize(call: _Call) -> int:
    """A multiply-add for each source pixel of a result: 2 (linear) or 4 (cubic) per direction."""
    near = {"linear": 2, "cubic": 4}.get(call.argument(3), 0)
    result: int = 2 * math.prod(call.result) * near ** (len(call.result) - 2)
    return result


def _attention(call: _Call) -> int:
    """Two matmuls; if causal, only the unmasked half."""
    batch, rows, heads, depth = call.sizes(0)
    columns = call.sizes(1)[2 if call.argument(6) else 1]
    scores = rows * columns
    if call.argument(5):
        scores = sum(min(row + 1, columns) for row in range(rows))
    return 2 * batch * heads * scores * (depth + call.sizes(2)[-1])


# Operator without its overload -> operations of a call. Weights of `cpu` operators are packed
# (torchette/backends/engine/pack.py).
FORMULAS: dict[str, Callable[[_Call], int]] = {
    "aten::mm": _product(0),
    "aten::bmm": _product(0),
    "aten::linear": _product(0),
    "aten::addmm": _product(1),
    "aten::baddbmm": _product(1),
    "aten::convolution": _convolution,
    "cpu::linear": _product(0),
    "cpu::convolution": _filters(0),
    "cpu::planar_convolution": _filters(-1),
    "cpu::depthwise": _filters(1),
    "cpu::convolution_into": _filters(0, of_part=True),
    "cpu::depthwise_into": _filters(1, of_part=True),
    "cpu::transposed_convolution": _transposed,
    "cpu::lstm": _recurrent(4),
    "cpu::gru": _recurrent(3),
    "cpu::chain": _chain,
    "cpu::resize": _resize,
    "cpu::attention": _attention,
    "cpu::bfloat16_attention": _attention,
    "cpu::rotary": _each(3),
    # mean 1, variance 3, result with weight and bias 4
    "aten::native_layer_norm": _each(8),
    "aten::native_group_norm": _each(8),
    "cpu::group_norm": _each(8),
    "cpu::layer_norm": _each(8),
    "cpu::rms_norm": _each(4),
    "aten::max_pool2d_with_indices": _window,
    "aten::avg_pool2d": _window,
    "cpu::max_pool": _window,
    "cpu::avg_pool": _window,
    "cpu::adaptive_avg_pool": lambda call: math.prod(call.sizes(0)),
    # maximum, differences, exponentials, their sum, and the quotients
    "aten::_softmax": _each(5),
    **{f"aten::{name}": _arithmetic for name in ("add", "sub", "mul", "div")},
}

# Operators that read only the part of an input that they write.
_PARTLY_READ = frozenset(
    f"aten::{name}"
    for name in ("embedding", "index", "index_select", "gather", "slice_copy", "select_copy", "split_copy")
)
_PARTLY_WRITTEN = frozenset({"cpu::convolution_into", "cpu::depthwise_into"})
# Operators that move no data.
_NO_WORK = frozenset({"executorch_prim::et_view"})


def work(
    method: MethodInfo, item: InstructionInfo, sizes: Mapping[int, Sequence[int]] | None = None
) -> Work | None:
    """Computes the cost of an instruction.

    Args:
        method: the method that contains the instruction.
        item: the instruction.
        sizes: sizes by index of the value; they replace those in the file. Required for dynamic shapes.

    Returns:
        The cost. None if the instruction is not a kernel call, moves no data, or uses a tensor with unknown shape.
    """
    name = item.op.partition(".")[0]
    if item.kind != "kernel" or name in _NO_WORK:
        return None
    call = _Call(method, item, sizes)
    try:
        nbytes = call.moved(name)
    except _UnknownShape:
        return None
    if not nbytes:
        return None
    formula = FORMULAS.get(name)
    try:
        return Work(formula(call) if formula else None, nbytes)
    except (
        IndexError,
        TypeError,
        ValueError,
    ):  # another compiler wrote the file; the arguments differ from ours
        return Work(None, nbytes)
