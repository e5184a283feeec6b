# SPDX-License-Identifier: BSD-3-Clause
# In: a call of an elementwise operator on tensors of known sizes and types. Out: the call as a loop, without the
# kernel's checks, conversions and broadcasting. The arithmetic is the kernel library's.
"""Elementwise operators as loops: `loop_of` decides, `definitions` writes them in C++."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torchette.build import kernels
from torchette.format import pte

SOURCE = "torchette/kernels/elementwise.cpp"

# The types in which kernels compute without conversion.
_TYPES = {"FLOAT": "float", "DOUBLE": "double", "LONG": "int64_t"}
_STATIC = pte.TensorShapeDynamism.STATIC

# Operators whose kernels are written by hand: the arithmetic behind them, and the argument that must be 1.
_BY_HAND = {
    "aten::add.out": ("add", 2),
    "aten::sub.out": ("sub", 2),
    "aten::add.Scalar_out": ("add", 2),
    "aten::sub.Scalar_out": ("sub", 2),
    "aten::mul.out": ("mul", None),
    "aten::mul.Scalar_out": ("mul", None),
    "aten::div.out": ("div", None),
    "aten::div.Scalar_out": ("div", None),
    "aten::hardtanh.out": ("clamp", None),
}
# Kinds of lines in elementwise.def whose chunks are nothing but their arithmetic.
_KINDS = ("FLOAT", "SAME", "TEST", "BINARY", "REAL", "LOGICAL", "COMPARE")


class Loop(NamedTuple):
    """y[i] = arithmetic(a[i], b, ...): what it computes, in which type, into which type, and which operands vary."""

    arithmetic: str
    type: str
    result: str
    varying: tuple[bool, ...]

    @property
    def symbol(self) -> str:
        """The name of its function."""
        pattern = "".join("v" if varies else "s" for varies in self.varying)
        return f"loop_{self.arithmetic}_{self.type}_{self.result}_{pattern}"

    @property
    def declaration(self) -> str:
        """The head of its function."""
        operands = [
            f"const {self.type}* a{i}" if varies else f"{self.type} a{i}"
            for i, varies in enumerate(self.varying)
        ]
        return f"void {self.symbol}({self.result}* y, size_t n, {', '.join(operands)})"


@functools.cache
def _arithmetic() -> dict[str, tuple[str, int | None]]:
    """By operator, the arithmetic behind it and the argument that must be 1."""
    found = dict(_BY_HAND)
    lines = (kernels.KERNELS / "elementwise.def").read_text(encoding="utf-8")
    functions = {
        function.name: operator
        for operator, function in kernels.library().items()
        if function.source == "elementwise.cpp"
    }
    for kind, name in re.findall(r"^(\w+)\((\w+),", lines, re.M):
        for suffix in ("_out", "_scalar_out"):
            if kind in _KINDS and f"{name}{suffix}" in functions:
                found[functions[f"{name}{suffix}"]] = (name, None)
    return found


def loop_of(operator: str, operands: Sequence[Any], out: Any) -> Loop | None:
    """The call as a loop, or None if it needs its kernel.

    Args:
        operator: full name.
        operands: Tensor records, and the fixed numbers, in the order of the kernel's arguments.
        out: the result's record.
    """
    known = _arithmetic().get(operator)
    if known is None:
        return None
    arithmetic, one = known
    operands = list(operands)
    if one is not None and (isinstance(operands[one], bool) or operands.pop(one) != 1):
        return None
    first = operands[0]
    kind = first.scalar_type.name if hasattr(first, "scalar_type") else ""
    result = out.scalar_type.name
    # bools are stored as they are, so only comparisons produce them
    if kind not in _TYPES or result not in (kind, "BOOL") or not out.sizes:
        return None
    varying = []
    for operand in (out, *operands):
        if not hasattr(operand, "scalar_type"):
            if kind == "LONG" and isinstance(operand, float):
                return None
            varying.append(False)
            continue
        same = list(operand.sizes) == list(out.sizes) and list(operand.dim_order) == list(out.dim_order)
        if operand.shape_dynamism != _STATIC or (operand is not out and operand.scalar_type.name != kind):
            return None
        if not same and operand.sizes:
            return None
        varying.append(same)
    if not varying[1]:
        return None
    return Loop(arithmetic, _TYPES[kind], _TYPES.get(result, "bool"), tuple(varying[1:]))


def definitions(loops: Iterable[Loop]) -> list[str]:
    """The functions of loops, which follow elementwise.cpp in its namespace."""
    lines = []
    for loop in loops:
        operands = [f"a{i}[i]" if varies else f"a{i}" for i, varies in enumerate(loop.varying)]
        operands += operands[:1] * (4 - len(operands))
        lines += [
            f"{loop.declaration} {{",
            "  TORCHETTE_IVDEP",
            f"  for (size_t i = 0; i < n; ++i) y[i] = static_cast<{loop.result}>(",
            f"      {loop.arithmetic}_op::of<{loop.type}>({', '.join(operands)}));",
            "}",
            "",
        ]
    return lines
