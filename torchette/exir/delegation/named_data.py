# SPDX-License-Identifier: BSD-3-Clause
# In: named blobs of the delegates of a program. Out: each blob once, for the program file or for a separate data file.
"""`NamedDataStore`: data that the delegates of a program share by name."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from torchette.errors import DelegationError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class DataEntry(NamedTuple):
    """A named blob: its index in `NamedDataStoreOutput.buffers`, and its required alignment in bytes."""

    buffer_index: int
    alignment: int


@dataclass
class NamedDataStoreOutput:
    """Named blobs for one file. `external_data` is file name -> key -> entry, for blobs in separate data files."""

    buffers: list[Any]
    pte_data: dict[str, DataEntry]
    external_data: dict[str, dict[str, DataEntry]] = field(default_factory=dict)


class NamedDataStore:
    """Collects named blobs that parts of a program share. Equal bytes are stored once."""

    def __init__(self) -> None:
        self._buffers: list[Any] = []
        self._keys: dict[str, DataEntry] = {}
        self._external: dict[str, dict[str, DataEntry]] = {}
        self._by_digest: dict[bytes, int] = {}

    def add_named_data(
        self,
        key: str,
        data: Buffer | torch.Tensor,
        alignment: int | None = 1,
        external_tag: str | None = None,
    ) -> None:
        """Adds data under a name.

        Args:
            key: the name.
            data: bytes-like, or a tensor.
            alignment: alignment in the file in bytes, a power of two.
            external_tag: the name of a data file (.ptd) that stores the data in place of the program.

        Raises:
            DelegationError: the name already refers to other bytes.
        """
        stored = row_major(data)
        digest = hashlib.sha256(stored).digest()
        index = self._by_digest.setdefault(digest, len(self._buffers))
        if index == len(self._buffers):
            self._buffers.append(stored)
        keys = self._keys if external_tag is None else self._external.setdefault(external_tag, {})
        known = keys.get(key)
        if known is not None and known.buffer_index != index:
            raise DelegationError(
                f"the named data {key!r} was added twice with different bytes",
                hints=["derive the key from the bytes, for example from their hash"],
                code="named-data-differ",
            )
        keys[key] = DataEntry(index, max(alignment or 1, known.alignment if known else 1))

    def holds(self, data: Buffer | torch.Tensor) -> bool:
        """Returns whether the store contains these bytes (bytes-like, or a tensor) under any name."""
        return hashlib.sha256(row_major(data)).digest() in self._by_digest

    def merge_named_data_store(self, other: NamedDataStoreOutput) -> None:
        """Adds all blobs of another store."""
        for tag, keys in ((None, other.pte_data), *other.external_data.items()):
            for key, entry in keys.items():
                self.add_named_data(key, other.buffers[entry.buffer_index], entry.alignment, tag)

    def get_named_data_store_output(self) -> NamedDataStoreOutput:
        """Returns the collected blobs."""
        external = {tag: dict(keys) for tag, keys in self._external.items()}
        return NamedDataStoreOutput(list(self._buffers), dict(self._keys), external)


def row_major(data: Buffer | torch.Tensor) -> Any:
    """Returns the bytes of a tensor in row-major order. Returns bytes-like data unchanged."""
    if isinstance(data, torch.Tensor):
        # A tensor with one element is contiguous for any strides, but `view` with another dtype rejects some strides.
        return data.detach().cpu().contiguous().as_strided((data.numel(),), (1,)).view(torch.uint8).numpy()
    return data
