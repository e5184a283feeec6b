# SPDX-License-Identifier: BSD-3-Clause
# Lowered modules come in; their calls, their blobs and their named data go out.
"""Calls of delegates, and their bytes."""

from __future__ import annotations

from typing import Any, Protocol

from torch.fx import Node

from torchette.exir.delegation.delegate import LoweredBackendModule
from torchette.exir.delegation.named_data import NamedDataStore
from torchette.exir.emit.output import EmitterOutput
from torchette.exir.emit.records import Unsupported
from torchette.exir.emit.tables import Tables
from torchette.exir.graph import calls
from torchette.exir.interface import specs_of
from torchette.format import ptd, pte


class Delegates:
    """The blobs of delegates, and the data that they share by name. Equal blobs are kept once."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        self._by_content: dict[bytes, int] = {}
        self._named = NamedDataStore()

    def add(self, module: LoweredBackendModule) -> int:
        """The index of a delegate's blob."""
        if module.named_data_store_output is not None:
            self._named.merge_named_data_store(module.named_data_store_output)
        blob = bytes(module.processed_bytes)
        index = self._by_content.setdefault(blob, len(self.blobs))
        if index == len(self.blobs):
            self.blobs.append(blob)
        return index

    def named_data(self, output: EmitterOutput) -> None:
        """Fill in the named data of the program and of data files; keys of the same bytes have the same object."""
        found = self._named.get_named_data_store_output()
        output.named_data = {key: found.buffers[e.buffer_index] for key, e in found.pte_data.items()}
        output.named_alignment = max((entry.alignment for entry in found.pte_data.values()), default=1)
        for tag, keys in sorted(found.external_data.items()):
            file = output.data_files.setdefault(tag.removesuffix(".ptd"), {})
            file.update(
                (key, ptd.NamedBytes(found.buffers[e.buffer_index])) for key, e in sorted(keys.items())
            )


class Delegating(Tables, Protocol):
    """Tables, and the delegates of a method."""

    delegates: list[Any]  # a record of each
    delegate_map: dict[int, Any]  # instruction -> backend and debug handles
    delegate_data: Delegates


def call(method: Delegating, node: Node) -> None:
    """The instruction for a call of a delegate, and the delegate itself."""
    callee = node.args[0]
    module = getattr(node.graph.owning_module, str(getattr(callee, "target", "")), None)
    if not isinstance(module, LoweredBackendModule):
        raise Unsupported(f"the delegate {callee} is no LoweredBackendModule")
    specs = specs_of(node)
    if None in specs:
        raise Unsupported("a delegate's result is no tensor")
    results = tuple(method.values.tensor(spec) for spec in specs if spec is not None)
    method.values.of_node[node] = results
    arguments = [method.values.argument(argument, "") for argument in node.args[1:]]
    at = len(method.code.instructions)
    method.delegate_map[at] = {"name": module.backend_id, "delegate_map": module.meta["debug_handle_map"]}
    method.code.append(pte.DelegateCall(len(method.delegates), [*arguments, *results]), node, len(results))
    handles = [each.meta.get("debug_handle") for each in calls(module.original_module)]
    method.code.debug_handles[at] = tuple(dict.fromkeys(handle for handle in handles if handle))
    # The location of the blob is filled in when the file is written; the index is that into delegate_data.
    processed = pte.BackendDelegateDataReference(index=method.delegate_data.add(module))
    specs_given = [pte.CompileSpec(spec.key, bytes(spec.value)) for spec in module.compile_specs]
    method.delegates.append(pte.BackendDelegate(module.backend_id, processed, specs_given))
