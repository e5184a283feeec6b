# SPDX-License-Identifier: BSD-3-Clause
# In: tensors of weights and state. Out: the buffers of the program, and those of data files by name.
"""Storage of the bytes of constants and state."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchette.exir.emit.records import scalar_type
from torchette.exir.tensor import TensorSpec
from torchette.format import ptd


class Store:
    """Deduplicated buffers. The same memory is recognized by its address, equal bytes by comparison."""

    def __init__(self) -> None:
        self.buffers: list[Any] = [b""]
        self._by_memory: dict[tuple[Any, ...], int] = {}
        self._by_sample: dict[tuple[Any, ...], list[int]] = {}
        self._kept: list[torch.Tensor] = []  # bytes of buffers[1:]
        self._alive: list[torch.Tensor] = []  # keeps the addresses in `_by_memory` valid

    def add(self, tensor: torch.Tensor, dim_order: Sequence[int]) -> int:
        """Returns the index of a tensor's bytes in this dimension order."""
        memory = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tuple(dim_order))
        known = self._by_memory.get(memory)
        if known is not None:
            return known
        data = (
            tensor.detach()
            .cpu()
            .permute(tuple(dim_order))
            .contiguous()
            .as_strided((tensor.numel(),), (1,))
            .view(torch.uint8)
        )
        # Comparing all pairs would read the weights many times, and hashing reads them once. Few buffers have the same
        # length and samples; only those are compared.
        array = data.numpy()
        sample = (
            array.nbytes,
            array[:64].tobytes(),
            array[-64:].tobytes(),
            array[:: array.nbytes // 64 + 1].tobytes(),
        )
        candidates = self._by_sample.setdefault(sample, [])
        for index in candidates:
            if torch.equal(self._kept[index - 1], data):
                break
        else:
            index = len(self.buffers)
            self.buffers.append(array)
            self._kept.append(data)
            candidates.append(index)
        self._by_memory[memory] = index
        self._alive.append(tensor)
        return index


class DataFiles:
    """Constants in data files, by file and name. A name refers to the same bytes in all files, because the runtime
    looks up names without a file."""

    def __init__(
        self, file_of: Callable[[Node], str | None] | None, file_of_trained: str | None = None
    ) -> None:
        self.files: dict[str, dict[str, ptd.NamedBytes]] = {}
        self.file_of = file_of or (lambda node: None)
        self.file_of_trained = file_of_trained
        self.store = Store()
        self.location_of: dict[TensorSpec, tuple[str, str, int]] = {}  # (file, name, buffer index)
        self._meanings: dict[str, tuple[Any, ...]] = {}

    def add(self, file: str, name: str, buffer: int, spec: TensorSpec) -> str:
        """Adds a tensor and returns its name for the runtime: `name`, with a suffix if the name refers to other
        bytes."""
        meaning = (file, buffer, spec.dtype, tuple(spec.shape), tuple(spec.dim_order))
        names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(1)))
        found = next(given for given in names if self._meanings.setdefault(given, meaning) == meaning)
        layout = ptd.layout(scalar_type(spec.dtype), list(spec.shape), bytes(spec.dim_order))
        self.files.setdefault(file, {})[found] = ptd.NamedBytes(self.store.buffers[buffer], layout)
        return found


@dataclass(frozen=True)
class Storage:
    """The stores for the tensors of all methods of a program.

    Attributes:
        constants: the constants of the program.
        mutable_data: the initial bytes of state.
        outside: the constants in data files.
        names_state: store the fully qualified names of state; state may then be unplanned.
    """

    constants: Store
    mutable_data: Store
    outside: DataFiles
    names_state: bool = False
