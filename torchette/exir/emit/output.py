# SPDX-License-Identifier: BSD-3-Clause
# The result of emission.
"""`EmitterOutput`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from torchette.format import ptd


@dataclass
class EmitterOutput:
    """The records of a program, and the bytes that they refer to.

    Attributes:
        program: a `pte.Program` without its weights.
        constants: one buffer per `Tensor.data_buffer_idx` of constants; [0] is reserved and empty.
        mutable_data: the initial bytes of state in the same form; empty if all state starts with zeros.
        delegate_data: blobs of delegates; equal blobs are stored once.
        named_data: blobs that delegates look up by name.
        named_alignment: the maximum alignment of named blobs in bytes.
        data_files: file name without suffix -> its named bytes: constants outside the program.
        debug_handle_map: method -> instruction -> `debug_handle` of its node.
        nodes: method -> node of each instruction.
        values: method -> node -> index, or tuple of indices, of the values that it yields.
        instruction_id_to_num_outs_map: method -> instruction -> number of tensors that it writes.
        delegate_map: method -> instruction -> {"name": backend, "delegate_map": debug handles of the backend}.
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
        """`delegate_map`, under ExecuTorch's name."""
        return self.delegate_map
