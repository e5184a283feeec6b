# SPDX-License-Identifier: BSD-3-Clause
# The parts of a dialect. In: a node or a program. Out: a message about a violation, with the source line of the user's
# model and a remedy.
"""`Check`, `ProgramCheck`, `Dialect` and `Violation`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir.graph import node_text, place

# Remedies of several rules.
EXPORT_AGAIN = "export the model again with torch.export.export; a pass left the graph in this state"
PASS_FAULT = "a pass produced this graph: compile with check_passes=True to find it"


@dataclass(frozen=True)
class Check:
    """A rule about a node. `run` returns a message about the violation of a node, or None."""

    code: str
    sentence: str
    remedy: str
    run: Callable[[Node], str | None]


@dataclass(frozen=True)
class ProgramCheck:
    """A rule about a whole program. `run` yields (node or None, message)."""

    code: str
    sentence: str
    remedy: str
    run: Callable[[ExportedProgram], Iterable[tuple[Node | None, str]]]


@dataclass(frozen=True)
class Dialect:
    """A named set of rules.

    Attributes:
        accepts: whether a call may have this target.
        refusal: (code, sentence, remedy) for a target that is not accepted.
        checks: rules about single nodes; each rule runs on all nodes.
        program_checks: rules about the whole program.
    """

    name: str
    sentence: str
    accepts: Callable[[Any], bool]
    refusal: tuple[str, str, str]
    checks: tuple[Check, ...]
    program_checks: tuple[ProgramCheck, ...] = ()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Violation:
    """A node that violates a rule."""

    code: str
    message: str
    remedy: str
    node: Node | None = field(compare=False)

    @property
    def place(self) -> str:
        """The source line of the user's model, if known."""
        return place(self.node) if self.node is not None else "the program"

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.message}", f"  at {self.place}"]
        if self.node is not None:
            lines += [f"  {mark} {node_text(node)}" for mark, node in _neighbours(self.node)]
        return "\n".join([*lines, f"  try: {self.remedy}"])


def _neighbours(node: Node) -> list[tuple[str, Node]]:
    nodes = list(node.graph.nodes)
    index = nodes.index(node)
    first = max(0, min(index - 2, len(nodes) - 5))
    return [(">" if neighbour is node else " ", neighbour) for neighbour in nodes[first : first + 5]]
