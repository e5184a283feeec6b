# SPDX-License-Identifier: BSD-3-Clause
# Arguments of a graph's calls come in, indices into a method's table of values go out. Equal numbers and lists stand there
# once; a tensor stands there once for each spec.
"""The values of one method."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from torch.fx import Node

from torchette.exir.emit.records import Unsupported, plain, scalar_record, tensor_record
from torchette.exir.tensor import TensorSpec
from torchette.format import pte
from torchette.format.schema import Record


class Values:
    """The table of values, and what stands for which node, spec and number."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.of_node: dict[Node, int | tuple[int, ...]] = {}
        self.of_spec: dict[TensorSpec, int] = {}
        self.chain: Any = None  # of the node that is emitted
        self._of_scalar: dict[tuple[Any, ...], int] = {}

    def add(self, record: Record) -> int:
        """The index of a new value."""
        self.records.append(pte.EValue(record))
        return len(self.records) - 1

    def tensor(
        self, spec: TensorSpec, data_buffer_idx: int = 0, name: str | None = None, outside: bool = False
    ) -> int:
        """The value of a spec, made when it is first asked for."""
        index = self.of_spec.get(spec)
        if index is None:
            index = self.of_spec[spec] = self.add(tensor_record(spec, data_buffer_idx, name, outside))
        return index

    def scalar(self, value: object) -> int:
        """The value of a plain number, string or None; equal ones are stored once."""
        key = (type(value), struct.pack("<d", value) if isinstance(value, float) else value)
        index = self._of_scalar.get(key)
        if index is None:
            index = self._of_scalar[key] = self.add(scalar_record(value))
        return index

    def argument(self, given: object, kind: str, length: int | None = None) -> int:
        """The index of the value that holds an argument; `kind` is its type in the schema, "" where there is none."""
        if isinstance(given, Node):
            index = self.of_node.get(given)
            if not isinstance(index, int):
                raise Unsupported(f"{given.name} is no single value")
            if kind.startswith("["):
                return self._elements([given], kind)
            return index
        if kind.startswith("[") and given is not None:
            items = list(given) if isinstance(given, (list, tuple)) else [given] * (length or 1)
            return self._elements(items, kind)
        if isinstance(given, (list, tuple)):
            raise Unsupported(f"a list where {kind or 'a value'} is due")
        return self.scalar(plain(given, kind))

    def _elements(self, items: list[Any], kind: str) -> int:
        element = kind[1:-1]
        if element == "int":
            return self._list("IntList", [self.argument(item, "int") for item in items], pte.IntList)
        if element == "float":
            return self._list("DoubleList", [plain(item, "float") for item in items], pte.DoubleList)
        if element == "bool":
            return self._list("BoolList", [bool(item) for item in items], pte.BoolList)
        if element == "Tensor":
            return self._list("TensorList", [self.argument(item, "Tensor") for item in items], pte.TensorList)
        if element == "?Tensor":
            places = [-1 if item is None else self.argument(item, "Tensor") for item in items]
            return self._list("OptionalTensorList", places, pte.OptionalTensorList)
        raise Unsupported(f"a list of {element}")

    def _list(self, kind: str, items: list[Any], make: Callable[..., Any]) -> int:
        # The runtime gathers a list's elements in one place: chains that may run at the same time have their own.
        key = (
            kind,
            self.chain,
            tuple(struct.pack("<d", item) if kind == "DoubleList" else item for item in items),
        )
        index = self._of_scalar.get(key)
        if index is None:
            index = self._of_scalar[key] = self.add(make(items))
        return index
