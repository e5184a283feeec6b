# SPDX-License-Identifier: BSD-3-Clause
# In: calls in sequence. Out: the chains of an ExecutionPlan, and the debug data of each instruction.
"""The instructions of one method."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node

from torchette.format import pte


class Instructions:
    """The instructions emitted so far, and the chain of the next instruction."""

    def __init__(self, lines_of: Callable[[Node], Any] | None) -> None:
        self.instructions: list[Any] = []
        self.debug_handles: dict[int, Any] = {}
        self.nodes: list[Node] = []  # node of each instruction
        self.results_written: dict[int, int] = {}
        self.operators: dict[tuple[str, str], int] = {}
        self.stacktrace: list[Any] = []  # a record per instruction, if `lines_of` is given
        self._lines_of = lines_of
        self.chain: Any = None  # chain of the current node
        self._chain_of: list[Any] = []  # chain of each instruction

    def kernel(self, name: tuple[str, str], arguments: list[int], node: Node, results: int) -> None:
        """Appends a call of a kernel with this name and overload."""
        index = self.operators.setdefault(name, len(self.operators))
        self.append(pte.KernelCall(index, arguments), node, results)

    def append(self, call: object, node: Node, results: int = 0) -> None:
        """Appends an instruction of a node. `results` is the number of tensors that it writes."""
        at = len(self.instructions)
        self.instructions.append(pte.Instruction(call))
        self._chain_of.append(self.chain)
        self.nodes.append(node)
        handle = node.meta.get("debug_handle")
        if handle is not None:
            self.debug_handles[at] = handle
        self.results_written[at] = results
        if self._lines_of is not None:
            self.stacktrace.append(self._lines_of(node))

    def chains(self, values: Sequence[Any], inputs: Sequence[int], outputs: Sequence[int]) -> list[Any]:
        """Returns the instructions as chains. Values that a chain shares with other chains are its inputs and
        outputs."""
        starts = [at for at, chain in enumerate(self._chain_of) if at == 0 or chain != self._chain_of[at - 1]]
        cuts = [*starts, len(self.instructions)] if starts else [0, 0]
        touched = [_touched(values, self.instructions[start:end]) for start, end in itertools.pairwise(cuts)]
        chains = []
        for number, (start, end) in enumerate(itertools.pairwise(cuts)):
            before = set(inputs).union(*touched[:number])
            after = set(outputs).union(*touched[number + 1 :])
            chains.append(
                pte.Chain(
                    inputs=sorted(touched[number] & before) if len(touched) > 1 else [],
                    outputs=sorted((touched[number] - before) & after) if len(touched) > 1 else [],
                    instructions=self.instructions[start:end],
                    stacktrace=self.stacktrace[start:end],
                )
            )
        return chains


def _touched(values: Sequence[Any], instructions: Sequence[Any]) -> set[int]:
    """Returns the values that calls read or write, except constants."""
    found: set[int] = set()
    stack = [index for each in instructions for index in getattr(each.instr_args, "args", ())]
    while stack:
        index = stack.pop()
        record = values[index].val if index >= 0 else None
        if isinstance(record, (pte.TensorList, pte.OptionalTensorList)):
            stack += record.items
        elif isinstance(record, pte.Tensor) and (record.allocation_info or not record.data_buffer_idx):
            found.add(index)
    return found
