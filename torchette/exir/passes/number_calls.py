# SPDX-License-Identifier: BSD-3-Clause
# In: the program that torch.export captured. Out: the same program with a debug handle on each call. All nodes that the
# compiler derives from a call keep its handle. It maps instructions, events and backend data to the captured call.
"""Debug handles: `node.meta["debug_handle"]`, under ExecuTorch's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir.graph import calls


def number_calls(program: ExportedProgram) -> ExportedProgram:
    """Assign debug handles, from 1, to calls without one."""
    number = max((node.meta.get("debug_handle") or 0 for node in calls(program)), default=0)
    for node in calls(program):
        if not node.meta.get("debug_handle"):
            number += 1
            node.meta["debug_handle"] = number
    return program


def numbers_of(program: ExportedProgram) -> Callable[[ExportedProgram], ExportedProgram]:
    """Returns a function that copies the debug handles of a program to the program that torch traced from it. torch
    records the source nodes and graphs of each node."""
    numbers = {(id(node.graph), node.name): node.meta.get("debug_handle") for node in calls(program)}

    def carry(traced: ExportedProgram) -> ExportedProgram:
        for node in calls(traced):
            source = next((numbers[key] for key in _sources(node) if numbers.get(key)), None)
            if source is not None:
                node.meta["debug_handle"] = source
        return number_calls(traced)

    return carry


def _sources(node: Node) -> list[tuple[int, str]]:
    """Returns (graph, name) of the source nodes of a node, the original one last."""
    sources = []
    history: Any = node.meta.get("from_node")
    while history:
        sources.append((history[-1].graph_id, history[-1].name))
        history = history[-1].from_node
    return sources
