# SPDX-License-Identifier: BSD-3-Clause
# In: what torch.export captured. Out: the same, each call with a number. All that the compiler makes of a call keeps its
# number, so that an instruction, an event of a device and a part of a backend lead back to the captured call.
"""Debug handles: `node.meta["debug_handle"]`, as ExecuTorch calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir.graph import calls


def number_calls(program: ExportedProgram) -> ExportedProgram:
    """Every call without a debug handle gets the next one, from 1."""
    number = max((node.meta.get("debug_handle") or 0 for node in calls(program)), default=0)
    for node in calls(program):
        if not node.meta.get("debug_handle"):
            number += 1
            node.meta["debug_handle"] = number
    return program


def numbers_of(program: ExportedProgram) -> Callable[[ExportedProgram], ExportedProgram]:
    """What carries the numbers of a program to the one that torch has traced from it: torch records for each node which
    nodes of which graphs it came from."""
    numbers = {(id(node.graph), node.name): node.meta.get("debug_handle") for node in calls(program)}

    def carry(traced: ExportedProgram) -> ExportedProgram:
        for node in calls(traced):
            source = next((numbers[key] for key in _sources(node) if numbers.get(key)), None)
            if source is not None:
                node.meta["debug_handle"] = source
        return number_calls(traced)

    return carry


def _sources(node: Node) -> list[tuple[int, str]]:
    """(graph, name) of the nodes that a node came from, the first one last."""
    found = []
    history: Any = node.meta.get("from_node")
    while history:
        found.append((history[-1].graph_id, history[-1].name))
        history = history[-1].from_node
    return found
