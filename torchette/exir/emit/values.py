# SPDX-License-Identifier: BSD-3-Clause
# In: arguments of calls. Out: indices into a method's table of values. Equal scalars and lists are stored once, and a
# tensor once per spec.
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
    """The table of values, with the indices of nodes, specs and scalars."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.of_node: dict[Node, int | tuple[int, ...]] = {}
        self.of_spec: dict[TensorSpec, int] = {}
        self.chain: Any = None  # chain of the current node
        self._of_scalar: dict[tuple[Any, ...], int] = {}

    def add(self, record: Record) -> int:
        """Adds a value and returns its index."""
        self.records.append(pte.EValue(record))
        return len(self.records) - 1

    def tensor(
        self, spec: TensorSpec, data_buffer_idx: int = 0, name: str | None = None, outside: bool = False
    ) -> int:
        """Returns the index of a spec's value. The first call adds the value."""
        index = self.of_spec.get(spec)
        if index is None:
            index = self.of_spec[spec] = self.add(tensor_record(spec, data_buffer_idx, name, outside))
        return index

    def scalar(self, value: object) -> int:
        """Returns the index of a scalar, string or None. Equal values are stored once."""
        key = (type(value), struct.pack("<d", value) if isinstance(value, float) else value)
        index = self._of_scalar.get(key)
        if index is None:
            index = self._of_scalar[key] = self.add(scalar_record(value))
        return index

    def argument(self, given: object, kind: str, length: int | None = None) -> int:
        """Returns the index of an argument's value. `kind` is its type in the schema, or "" if it has none."""
        if isinstance(given, Node):
            index = self.of_node.get(given)
            if not isinstance(index, int):
                raise Unsupported(f"{given.name} is not a single value")
            if kind.startswith("["):
                return self._elements([given], kind)
            return index
        if kind.startswith("[") and given is not None:
            items = list(given) if isinstance(given, (list, tuple)) else [given] * (length or 1)
            return self._elements(items, kind)
        if isinstance(given, (list, tuple)):
            raise Unsupported(f"expected {kind or 'a value'}, not a list")
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
        # The runtime materializes the elements of a list in one array, so that concurrent chains need separate lists.
        key = (
            kind,
            self.chain,
            tuple(struct.pack("<d", item) if kind == "DoubleList" else item for item in items),
        )
        index = self._of_scalar.get(key)
        if index is None:
            index = self._of_scalar[key] = self.add(make(items))
        return index
