# SPDX-License-Identifier: BSD-3-Clause
# A lowered program comes in; where each of its calls runs, what it costs and why it is not elsewhere goes out.
"""Who runs what: the delegation report.

The cost of a call is estimated as its multiply-adds plus the elements that it reads and writes. That is no time, but
it ranks: what has half of the cost is never what to leave behind.
"""

from __future__ import annotations

import dataclasses
import operator
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from torchette import notebook
from torchette.errors import DelegationError, DelegationWarning
from torchette.exir.delegation.cost import cost, multiply_adds
from torchette.exir.delegation.delegate import LoweredBackendModule, is_delegate_call
from torchette.exir.graph import calls, graph_modules, place
from torchette.exir.ops import is_symbolic

EXPENSIVE = 0.01  # share of the whole cost from which on a call that stays behind is worth a warning


_COLUMNS = ("node", "operator", "runs on", "MACs", "cost", "why not, and where")


@dataclass(frozen=True)
class Placement:
    """Where one call runs.

    Attributes:
        node: its name in the graph.
        op: the operator.
        place: the line of the user's model.
        backend: the backend's name, None for the portable kernels.
        reasons: partitioner -> why it did not take the call; empty where it runs on a backend.
        macs: multiply-adds.
        share: its part of the program's estimated cost, 0 to 1.
    """

    node: str
    op: str
    place: str
    backend: str | None
    reasons: dict[str, tuple[str, ...]]
    macs: int
    share: float


@dataclass(frozen=True)
class Delegation:
    """All calls of a program, in order; prints as a table."""

    placements: tuple[Placement, ...]

    @property
    def delegated_share(self) -> float:
        """The part of the estimated cost that runs on backends, 0 to 1."""
        return sum(p.share for p in self.placements if p.backend is not None)

    @property
    def left_behind(self) -> tuple[Placement, ...]:
        """Expensive calls that no backend runs, the dearest first."""
        found = [p for p in self.placements if p.backend is None and p.macs and p.share >= EXPENSIVE]
        return tuple(sorted(found, key=lambda p: -p.share))

    def to_dict(self) -> dict[str, Any]:
        """The placements and their sum as dicts, lists, strings, numbers and None."""
        return {
            "delegated_share": self.delegated_share,
            "placements": [
                {
                    **dataclasses.asdict(item),
                    "reasons": {name: list(texts) for name, texts in item.reasons.items()},
                }
                for item in self.placements
            ],
        }

    def _repr_html_(self) -> str:
        ranked = sorted(self.placements, key=lambda item: -item.share)
        heading = f"{self.delegated_share:.1%} of the estimated cost runs on backends"
        return notebook.tables([("the most expensive calls first", _COLUMNS, [*map(_row, ranked)])], heading)

    def __str__(self) -> str:
        header = _COLUMNS
        rows = [header, *map(_row, self.placements)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(header) - 1)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + "  " + row[-1]
            for row in rows
        ]
        return "\n".join([*lines, f"{self.delegated_share:.1%} of the estimated cost runs on backends"])


def _row(item: Placement) -> tuple[str, ...]:
    reasons = "; ".join(f"{name}: {', '.join(texts)}" for name, texts in item.reasons.items())
    where = f"{reasons} ({item.place})" if reasons else item.place
    return (item.node, item.op, item.backend or "kernels", str(item.macs), f"{item.share:.1%}", where)


def explain(program: ExportedProgram) -> Delegation:
    """Where every call of a program in the Edge dialect runs, those inside of delegates and branches included."""
    found = list(_calls(program, None))
    total = sum(cost(node) for node, _ in found) or 1
    return Delegation(
        tuple(
            Placement(
                node.name,
                _name(node.target),
                place(node),
                backend,
                {} if backend else node.meta.get("not_delegated", {}),
                multiply_adds(node),
                cost(node) / total,
            )
            for node, backend in found
        )
    )


def keep_reasons(before: ExportedProgram, after: ExportedProgram) -> ExportedProgram:
    """Give the calls of a program that was traced anew the reasons that those had from which they come: the same operator
    of the same line of the model, else any of that line."""
    known: dict[Any, dict[str, tuple[str, ...]]] = {}
    for node in calls(before):
        trace, reasons = node.meta.get("stack_trace"), node.meta.get("not_delegated")
        if trace and reasons:
            known.setdefault((trace, node.target), reasons)
            known.setdefault(trace, reasons)
    for node in calls(after):
        trace = node.meta.get("stack_trace")
        reasons = known.get((trace, node.target)) or known.get(trace)
        if reasons and not is_delegate_call(node):
            node.meta.setdefault("not_delegated", reasons)
    return after


def warn(delegation: Delegation, strict: bool) -> None:
    """A DelegationWarning for what is expensive and stays behind; with `strict` a DelegationError."""
    left = delegation.left_behind
    if not left:
        return
    places = [
        f"{item.op}, {item.share:.0%} of the cost: {item.place}"
        + "".join(f"\n{name}: {', '.join(texts)}" for name, texts in item.reasons.items())
        for item in left
    ]
    message = f"{len(left)} expensive calls run on no backend"
    if strict:
        raise DelegationError(
            message,
            where=places,
            hints=["change the model at these lines, add a partitioner that takes them, or leave strict out"],
            code="not-delegated",
        )
    warnings.warn("\n  ".join([message, *places]), DelegationWarning, stacklevel=3)


def _calls(program: ExportedProgram, backend: str | None) -> Iterator[tuple[Node, str | None]]:
    for module in graph_modules(program):
        for node in module.graph.nodes:
            if node.op != "call_function" or node.target is operator.getitem or is_symbolic(node.target):
                continue
            if is_delegate_call(node):
                callee = getattr(module, str(node.args[0].target))
                assert isinstance(callee, LoweredBackendModule)
                yield from _calls(callee.original_module, callee.backend_id)
            else:
                yield node, backend


def _name(target: Any) -> str:
    return str((getattr(target, "_schema", None) and target) or getattr(target, "__name__", target))
