# SPDX-License-Identifier: BSD-3-Clause
# The result of emission, which its files fill in.
"""`EmitterOutput`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from torchette.format import ptd


@dataclass
class EmitterOutput:
    """A program's records and the bytes beside them.

    Attributes:
        program: a `pte.Program` without its weights.
        constants: one buffer per `Tensor.data_buffer_idx` of constants; [0] is reserved and empty.
        mutable_data: the same for the initial bytes of state; empty if all state starts as zeros.
        delegate_data: blobs of delegates; equal blobs are stored once.
        named_data: blobs that delegates find by name.
        named_alignment: the greatest alignment that one of them requires, in bytes.
        data_files: name of a file, without its suffix -> its named bytes: constants outside of the program.
        debug_handle_map: method -> instruction -> the `debug_handle` of the node that it came from.
        nodes: method -> the node that each instruction came from.
        values: method -> node -> the value of the method, or the tuple of values, that it yields.
        instruction_id_to_num_outs_map: method -> instruction -> number of tensors that it writes.
        delegate_map: method -> instruction -> {"name": the backend, "delegate_map": its own debug handles}.
    """

    program: Any
    constants: list[Any]
    mutable_data: list[Any]
    delegate_data: list[Any] = field(default_factory=list)
    named_data: dict[str, Any] = field(default_factory=dict)
    named_alignment: int = 1
    data_files: dict[str, dict[str, ptd.NamedBytes]] = field(default_factory=dict)
    debug_handle_map: dict[str, dict[int, Any]] = field(default_factory=dict)
    nodes: dict[str, list[Node]] = field(default_factory=dict)
    values: dict[str, dict[Node, int | tuple[int, ...]]] = field(default_factory=dict)
    instruction_id_to_num_outs_map: dict[str, dict[int, int]] = field(default_factory=dict)
    delegate_map: dict[str, dict[int, Any]] = field(default_factory=dict)

    @property
    def method_to_delegate_debug_id_map(self) -> dict[str, dict[int, Any]]:
        """`delegate_map`, by ExecuTorch's name."""
        return self.delegate_map
