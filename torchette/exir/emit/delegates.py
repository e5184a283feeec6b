# SPDX-License-Identifier: BSD-3-Clause
# In: lowered modules. Out: their calls, their blobs and their named data.
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
    """The blobs of delegates, and their shared named data. Equal blobs are stored once."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        self._by_content: dict[bytes, int] = {}
        self._named = NamedDataStore()

    def add(self, module: LoweredBackendModule) -> int:
        """Returns the index of a delegate's blob."""
        if module.named_data_store_output is not None:
            self._named.merge_named_data_store(module.named_data_store_output)
        blob = bytes(module.processed_bytes)
        index = self._by_content.setdefault(blob, len(self.blobs))
        if index == len(self.blobs):
            self.blobs.append(blob)
        return index

    def named_data(self, output: EmitterOutput) -> None:
        """Sets the named data of the program and of data files. Keys with equal bytes share one object."""
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

    delegates: list[Any]  # one record per delegate
    delegate_map: dict[int, Any]  # instruction -> backend and debug handles
    delegate_data: Delegates


def call(method: Delegating, node: Node) -> None:
    """Appends the call of a delegate, and adds the delegate."""
    callee = node.args[0]
    module = getattr(node.graph.owning_module, str(getattr(callee, "target", "")), None)
    if not isinstance(module, LoweredBackendModule):
        raise Unsupported(f"the delegate {callee} is not a LoweredBackendModule")
    specs = specs_of(node)
    if None in specs:
        raise Unsupported("a result of a delegate is not a tensor")
    results = tuple(method.values.tensor(spec) for spec in specs if spec is not None)
    method.values.of_node[node] = results
    arguments = [method.values.argument(argument, "") for argument in node.args[1:]]
    at = len(method.code.instructions)
    method.delegate_map[at] = {"name": module.backend_id, "delegate_map": module.meta["debug_handle_map"]}
    method.code.append(pte.DelegateCall(len(method.delegates), [*arguments, *results]), node, len(results))
    handles = [each.meta.get("debug_handle") for each in calls(module.original_module)]
    method.code.debug_handles[at] = tuple(dict.fromkeys(handle for handle in handles if handle))
    # The file writer sets the location of the blob. The index refers to delegate_data.
    processed = pte.BackendDelegateDataReference(index=method.delegate_data.add(module))
    specs_given = [pte.CompileSpec(spec.key, bytes(spec.value)) for spec in module.compile_specs]
    method.delegates.append(pte.BackendDelegate(module.backend_id, processed, specs_given))
