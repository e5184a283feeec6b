# SPDX-License-Identifier: BSD-3-Clause
# In: a call of an element-wise operator on tensors with static shapes and known dtypes. Out: the call as a loop,
# without the kernel's checks, conversions and broadcasting. The loop uses the arithmetic of the kernel library.
"""Converts element-wise operators to loops: `loop_of` selects them, `definitions` writes them in C++."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torchette.build import kernels
from torchette.format import pte
from torchette.format.schema import Record

# The families of element-wise operators. FAMILY.def contains their arithmetic, FAMILY.cpp compiles it.
_FAMILIES = ("arithmetic", "comparison", "functions")
# The dtypes in which kernels compute without conversion.
_TYPES = {"FLOAT": "float", "DOUBLE": "double", "LONG": "int64_t"}
_STATIC = pte.TensorShapeDynamism.STATIC

# Operators with hand-written kernels: their arithmetic, and the index of the argument that must be 1.
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
# Kinds of lines in the .def files whose chunks only apply the arithmetic to each element.
_KINDS = ("FLOAT", "SAME", "TEST", "BINARY", "REAL", "LOGICAL", "COMPARE")


class Loop(NamedTuple):
    """y[i] = arithmetic(a[i], b, ...): the arithmetic, the types of operands and result, and the operands that are
    arrays."""

    source: str  # path of the file that compiles the arithmetic
    arithmetic: str
    type: str
    result: str
    varying: tuple[bool, ...]

    @property
    def symbol(self) -> str:
        """The name of the C++ function."""
        pattern = "".join("v" if varies else "s" for varies in self.varying)
        return f"loop_{self.arithmetic}_{self.type}_{self.result}_{pattern}"

    @property
    def declaration(self) -> str:
        """The declaration of the C++ function."""
        operands = [
            f"const {self.type}* a{i}" if varies else f"{self.type} a{i}"
            for i, varies in enumerate(self.varying)
        ]
        return f"void {self.symbol}({self.result}* y, size_t n, {', '.join(operands)})"


class _Arithmetic(NamedTuple):
    """The arithmetic of an operator: source file, name, and index of the argument that must be 1."""

    source: str
    name: str
    one: int | None


@functools.cache
def _arithmetic() -> dict[str, _Arithmetic]:
    """Returns the arithmetic of each operator that can be a loop."""
    library = kernels.library()
    found = {
        operator: _Arithmetic(library[operator].source, name, one)
        for operator, (name, one) in _BY_HAND.items()
    }
    functions = {(function.source, function.name): operator for operator, function in library.items()}
    for family in _FAMILIES:
        lines = (kernels.KERNELS / f"{family}.def").read_text(encoding="utf-8")
        for kind, name in re.findall(r"^(\w+)\((\w+),", lines, re.M):
            for suffix in ("_out", "_scalar_out"):
                operator = functions.get((f"{family}.cpp", f"{name}{suffix}"))
                if kind in _KINDS and operator is not None:
                    found[operator] = _Arithmetic(f"{family}.cpp", name, None)
    return found


def loop_of(operator: str, operands: Sequence[Any], out: Record) -> Loop | None:
    """Returns the call as a loop, or None if it needs its kernel.

    Args:
        operator: full name.
        operands: Tensor records and constant scalars, in the order of the kernel's arguments.
        out: the record of the result.
    """
    known = _arithmetic().get(operator)
    if known is None:
        return None
    operands = list(operands)
    if known.one is not None and (isinstance(operands[known.one], bool) or operands.pop(known.one) != 1):
        return None
    first = operands[0]
    kind = first.scalar_type.name if hasattr(first, "scalar_type") else ""
    result = out.scalar_type.name
    # A bool operand may contain any byte value, so only comparisons may use the type.
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
    source = f"torchette/kernels/{known.source}"
    return Loop(source, known.name, _TYPES[kind], _TYPES.get(result, "bool"), tuple(varying[1:]))


def definitions(loops: Iterable[Loop]) -> list[str]:
    """Returns the functions of loops. They are compiled after the source of their arithmetic, in its namespace."""
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
