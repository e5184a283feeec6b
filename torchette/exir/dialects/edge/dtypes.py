# SPDX-License-Identifier: BSD-3-Clause
# In: dtypes.txt, which tests/exir/probe_dtypes.py measures: the dtypes that eager mode and the kernels support. Out:
# the supported combinations of dtypes of each operator.
"""The dtypes that operators support."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from torchette.exir import ops

# Letters of dtypes in the file: those of NumPy, and `g` for bfloat16, which NumPy lacks.
DTYPES: dict[str, torch.dtype] = {
    "?": torch.bool, "B": torch.uint8, "b": torch.int8, "h": torch.int16, "i": torch.int32, "l": torch.int64,
    "H": torch.uint16, "L": torch.uint64, "e": torch.float16, "g": torch.bfloat16, "f": torch.float32, "d": torch.float64,
}  # fmt: skip
LETTERS = {dtype: letter for letter, dtype in DTYPES.items()}
# An absent tensor, a list with several dtypes, a dtype that no program supports.
ABSENT, SEVERAL, FOREIGN = "-", "*", "!"


def tensor_names(schema: torch.FunctionSchema) -> tuple[str, ...]:
    """Returns the names of a schema's tensors and tensor lists: its arguments, then its results as `__ret_0`, ..."""
    arguments = (a.name for a in schema.arguments if "Tensor" in str(a.type) and not ops.writes(a))
    results = (f"__ret_{i}" for i, r in enumerate(schema.returns) if "Tensor" in str(r.type))
    return (*arguments, *results)


class FunctionDtypeConstraint:
    """The supported combinations of dtypes of an operator.

    Attributes:
        names: the names that the letters of a row refer to; see `tensor_names`.
        rows: the combinations that eager mode supports: a letter per name, `-` for an absent tensor.
        kernel_rows: the combinations that a kernel of the runtime also supports.
    """

    def __init__(self, names: tuple[str, ...], rows: Iterable[str], kernel_rows: Iterable[str]) -> None:
        self.names = names
        self.kernel_rows = frozenset(kernel_rows)
        self.rows = frozenset(rows) | self.kernel_rows
        # Without results, because their dtypes may depend on scalar arguments, of which not all values were measured.
        self._arguments = sum(not name.startswith("__ret_") for name in names)
        self._given = frozenset(row[: self._arguments] for row in self.rows)
        self._given_kernel = frozenset(row[: self._arguments] for row in self.kernel_rows)

    def validate(self, types: Mapping[str, torch.dtype | None]) -> bool:
        """Returns whether this combination of dtypes is supported. None, or a missing name, represents an absent
        tensor."""
        if any(name not in self.names for name in types):
            return False
        row = "".join(_letter(types.get(name)) for name in self.names)
        return _fits(row, self.rows)

    def takes(self, row: str) -> bool:
        """Returns whether eager mode supports the argument dtypes in a row of `row_of`."""
        return _fits(row[: self._arguments], self._given)

    def runs(self, row: str) -> bool:
        """Returns whether a kernel supports them and writes results of these dtypes."""
        if _fits(row, self.kernel_rows):
            return True
        return not _fits(row, self.rows) and _fits(row[: self._arguments], self._given_kernel)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> frozenset[torch.dtype]:
        """Returns the dtypes of a tensor in all combinations; empty if there is no tensor with this name."""
        return self._at(name, self.rows)

    def _at(self, name: str, rows: frozenset[str]) -> frozenset[torch.dtype]:
        if name not in self.names:
            return frozenset()
        at = self.names.index(name)
        return frozenset(DTYPES[row[at]] for row in rows if row[at] in DTYPES)

    def fault(self, row: str, kernels: bool = False) -> str:
        """Describes an unsupported combination: the tensor, its dtype, and the supported dtypes."""
        rows = self.kernel_rows if kernels else self.rows
        for name, letter in zip(self.names, row, strict=True):
            allowed = self._at(name, rows)
            if letter in DTYPES and DTYPES[letter] not in allowed and allowed:
                return f"{_described(name)} is {_text(letter)}; supported: {dtypes_text(allowed)}"
        combination = ", ".join(
            f"{_described(name)} is {_text(letter)}"
            for name, letter in zip(self.names, row, strict=True)
            if letter in DTYPES
        )
        # Suggest the combinations with the fewest differences.
        near = sorted(
            rows, key=lambda candidate: (sum(a != b for a, b in zip(row, candidate, strict=True)), candidate)
        )[:3]
        options = "; or ".join(
            ", ".join(
                f"{_described(n)} {_text(letter)}"
                for n, letter in zip(self.names, candidate, strict=True)
                if letter in DTYPES
            )
            for candidate in near
        )
        return f"{combination}: this combination is not supported; the closest ones are {options or 'none'}"

    def __repr__(self) -> str:
        return f"FunctionDtypeConstraint({', '.join(self.names)}: {' '.join(sorted(self.rows))})"


def _fits(row: str, rows: frozenset[str]) -> bool:
    # An absent tensor matches any dtype. Another check handles lists with several dtypes.
    return row in rows or any(
        all(a == b or a in (ABSENT, SEVERAL) for a, b in zip(row, supported, strict=True))
        for supported in rows
    )


def _letter(dtype: torch.dtype | None) -> str:
    return ABSENT if dtype is None else LETTERS.get(dtype, FOREIGN)


def _text(letter: str) -> str:
    return str(DTYPES[letter]).removeprefix("torch.")


def _described(name: str) -> str:
    return f"result {name.removeprefix('__ret_')}" if name.startswith("__ret_") else f"argument {name}"


def dtypes_text(dtypes: Iterable[torch.dtype]) -> str:
    """Returns dtypes in the order of this file: `bool, int32, float32`."""
    return ", ".join(_text(letter) for letter, dtype in DTYPES.items() if dtype in set(dtypes))


@functools.cache
def _table() -> dict[str, tuple[list[str], list[str]]]:
    """Returns operator -> (combinations that kernels support, combinations that only eager mode supports)."""
    table = {}
    for line in Path(__file__).with_name("dtypes.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            names, _, combinations = line.partition(" = ")
            kernels, _, eager = combinations.partition("/")
            table.update(dict.fromkeys(names.split(), (kernels.split(), eager.split())))
    return table


def operators() -> dict[str, bool]:
    """Returns operator -> whether its dtypes are known. They are unknown if no example call exists."""
    return {name: any(rows) for name, rows in _table().items()}


@functools.cache
def constraint_of(name: str, overload: str) -> FunctionDtypeConstraint | None:
    """Returns the dtypes of the operator with this name and overload; None if they are unknown."""
    rows = _table().get(f"{name}.{overload}" if overload else name)
    if rows is None or not any(rows):
        return None
    namespace, _, short = name.partition("::")
    schema = getattr(getattr(getattr(torch.ops, namespace), short), overload or "default")._schema
    return FunctionDtypeConstraint(tensor_names(schema), rows[1], rows[0])


def constraint(schema: torch.FunctionSchema) -> FunctionDtypeConstraint | None:
    """Returns the dtypes of the operator of a schema; None if they are unknown."""
    return constraint_of(schema.name, schema.overload_name)


def row_of(node: Node, op: OpOverload) -> str:
    """Returns the dtypes of a call in a graph, as a call of the functional operator `op`."""
    return row(op._schema, node.args, node.kwargs, node.meta.get("val"))


def row(schema: torch.FunctionSchema, args: Sequence[Any], kwargs: Mapping[str, Any], results: object) -> str:
    """Returns the dtypes of a call, a letter per name of `tensor_names`. Values are tensors or nodes that yield
    them."""
    letters = []
    for position, argument in enumerate(schema.arguments):
        if "Tensor" not in str(argument.type):
            continue
        if not argument.kwarg_only and position < len(args):
            letters.append(_letter_of(args[position]))
        else:
            letters.append(_letter_of(kwargs.get(argument.name)))
    values = results if len(schema.returns) > 1 and isinstance(results, (list, tuple)) else [results]
    for value, returned in zip(values, schema.returns, strict=False):
        if "Tensor" in str(returned.type):
            letters.append(_letter_of(value[:1] if isinstance(value, (list, tuple)) else value))
    return "".join(letters)


def _letter_of(value: object) -> str:
    if isinstance(value, (list, tuple)):
        letters = list(dict.fromkeys(letter for letter in map(_letter_of, value) if letter != ABSENT))
        # If the dtypes of a list differ, the operator promotes them. Its table cannot describe this.
        return ABSENT if not letters else letters[0] if len(letters) == 1 else SEVERAL
    val = value.meta.get("val") if isinstance(value, Node) else value
    return _letter(val.dtype) if isinstance(val, torch.Tensor) else ABSENT
