# SPDX-License-Identifier: BSD-3-Clause
# In: a lowered program. Out: the backend and the cost of each call, and the reasons why backends rejected it.
"""The delegation report.

The estimated cost of a call is its multiply-adds plus the elements that it reads and writes. The estimate is not a
time, but it ranks calls: a call with half of the cost should run on a backend.
"""

from __future__ import annotations

import dataclasses
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette import notebook
from torchette.errors import DelegationError, DelegationWarning
from torchette.exir.delegation.cost import cost, multiply_adds
from torchette.exir.delegation.delegate import LoweredBackendModule, is_delegate_call, keep_rejections
from torchette.exir.dialects._ops import BackendOpOverload
from torchette.exir.dialects.backend._ops import dialect_operator
from torchette.exir.graph import REORDERINGS, Origin, calls, graph_modules, is_reordering, place
from torchette.exir.ops import is_symbolic
from torchette.units import counted

EXPENSIVE = 0.01  # minimum share of the total cost for a warning about a call that no backend runs


_REORDERING_NAMES = frozenset(map(str, REORDERINGS))
_COLUMNS = ("node", "operator", "runs on", "MACs", "cost", "why not, and where")


@dataclass(frozen=True)
class Placement:
    """The backend of one call, and its cost.

    Attributes:
        node: the name of the node in the graph.
        op: the operator.
        place: the source line of the user's model.
        backend: the backend's name, or None for the portable kernels.
        reasons: partitioner -> reasons why it did not accept the call; empty if a backend runs the call.
        macs: multiply-adds.
        share: fraction of the program's estimated cost, 0 to 1.
        stands_for: for an operator of a target, the calls that it replaced.
    """

    node: str
    op: str
    place: str
    backend: str | None
    reasons: dict[str, tuple[str, ...]]
    macs: int
    share: float
    stands_for: tuple[str, ...] = ()

    @property
    def is_reordering(self) -> bool:
        """Whether the call only changes the shape or order of a tensor."""
        return self.op in _REORDERING_NAMES


@dataclass(frozen=True)
class Delegation:
    """All calls of a program, in order. `str()` returns a table."""

    placements: tuple[Placement, ...]

    @property
    def delegated_share(self) -> float:
        """The fraction of the estimated cost that runs on backends, 0 to 1."""
        return sum(p.share for p in self.placements if p.backend is not None)

    @property
    def left_behind(self) -> tuple[Placement, ...]:
        """Expensive calls that no backend runs, most expensive first."""
        placements = [p for p in self.placements if p.backend is None and p.macs and p.share >= EXPENSIVE]
        return tuple(sorted(placements, key=lambda p: -p.share))

    def to_dict(self) -> dict[str, Any]:
        """Returns the placements and their total as dicts, lists, strings, scalars and None."""
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
        lines = _aligned([_COLUMNS, *map(_row, self.placements)])
        return "\n".join([*lines, f"{self.delegated_share:.1%} of the estimated cost runs on backends"])

    def tables(self) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
        """Returns title, columns and rows of two tables: the patterns that were replaced, and the calls that stay on
        the portable kernels with their reasons. Equal calls share a row; the rows are sorted by descending cost."""
        replacements = [item for item in self.placements if item.stands_for]
        became = _grouped(replacements, lambda item: (_pattern(item.stands_for), _short(item.op)))
        # Omit calls that only reorder a tensor: they become views or copies, and are not listed as operators.
        left = [item for item in self.placements if item.backend is None and not item.is_reordering]
        stayed = _grouped(
            left, lambda item: (_short(item.op), _reasons(item, named=False) or "no operator matches it")
        )
        result: list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]] = []
        if became:
            title = f"{len(replacements)} operators replace patterns, {sum(item.share for item in replacements):.1%} of the estimated cost"
            result.append((title, ("pattern", "became", "calls", "cost", "lines"), became))
        if stayed:
            title = f"{counted(len(left), 'call')} {'stays' if len(left) == 1 else 'stay'} on the portable kernels"
            columns = ("operator", "why", "calls", "cost", "lines")
            result.append((title, columns, stayed))
        return result

    def summary(self) -> str:
        """Returns `tables` as text."""
        parts = [[title, *_aligned([columns, *rows])] for title, columns, rows in self.tables()]
        return "\n\n".join("\n  ".join(lines) for lines in parts)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _grouped(
    items: Sequence[Placement], key: Callable[[Placement], tuple[str, str]]
) -> list[tuple[str, ...]]:
    groups: dict[tuple[str, str], list[Placement]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    ranked = sorted(groups.items(), key=lambda group: -sum(item.share for item in group[1]))
    return [
        (*names, str(len(group)), f"{sum(item.share for item in group):.1%}", _lines(group))
        for names, group in ranked
    ]


def _lines(items: Sequence[Placement]) -> str:
    """Returns source lines, such as `net.py:12, net.py:15 and 3 more`."""
    names = dict.fromkeys(item.place.partition(", in ")[0].rpartition("/")[2] for item in items)
    more = len(names) - 2
    return ", ".join([*names][:2]) + (f" and {more} more" if more > 0 else "")


def _pattern(ops: Sequence[str]) -> str:
    """Returns the operators of a pattern: `convolution, add, relu`, or `mul 3` for three multiplications."""
    counts = Counter(map(_short, ops))
    return ", ".join(name if count == 1 else f"{name} {count}" for name, count in counts.items())


def _short(op: str) -> str:
    """Returns a short name: `aten.linear.default` -> `linear`, `cpu.linear.default` -> `cpu::linear`."""
    namespace, _, name = op.partition(".")
    name = name.partition(".")[0]
    return name if namespace == "aten" else f"{namespace}::{name}"


def _reasons(item: Placement, named: bool = True) -> str:
    """Returns the reasons, each with the name of its partitioner. `named=False` omits the name if there is only one."""
    if len(item.reasons) == 1 and not named:
        return ", ".join(*item.reasons.values())
    return "; ".join(f"{name}: {', '.join(texts)}" for name, texts in item.reasons.items())


def _row(item: Placement) -> tuple[str, ...]:
    reasons = _reasons(item)
    where = f"{reasons} ({item.place})" if reasons else item.place
    return (item.node, item.op, item.backend or "kernels", str(item.macs), f"{item.share:.1%}", where)


def explain(program: ExportedProgram) -> Delegation:
    """Returns the placement of every call of an Edge program, including calls in delegates and branches."""
    calls_and_backends = list(_calls(program, None))
    # If several operators replaced the same call, each receives an equal share of its cost.
    shared = Counter(
        name for node, _ in calls_and_backends if _target_of(node) for name in node.meta.get("origins", ())
    )
    sums = [_sums(node, shared) for node, _ in calls_and_backends]
    total = sum(cost for _, cost in sums) or 1
    return Delegation(
        tuple(
            Placement(
                node.name,
                _name(node.target),
                place(node),
                backend or _target_of(node),
                {} if backend or _target_of(node) else node.meta.get("not_delegated", {}),
                macs,
                cost / total,
                tuple(origin.op for origin in _origins(node)) if _target_of(node) else (),
            )
            for (node, backend), (macs, cost) in zip(calls_and_backends, sums, strict=True)
        )
    )


def _target_of(node: Node) -> str | None:
    """Returns the namespace if the node calls an operator of a target, otherwise None."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    return node.target.namespace if isinstance(dialect_operator(node.target), BackendOpOverload) else None


def _origins(node: Node) -> list[Origin]:
    return list(node.meta.get("origins", {}).values())


def _sums(node: Node, shared: Counter[str]) -> tuple[int, float]:
    """Returns multiply-adds and cost of a call. For an operator of a target, these are the sums of the replaced
    calls."""
    origins = node.meta.get("origins", {})
    if not _target_of(node) or not origins:
        return multiply_adds(node), cost(node)
    macs = sum(origin.macs // shared[name] for name, origin in origins.items())
    return macs, sum(origin.cost / shared[name] for name, origin in origins.items())


# ---- target passes: the calls that they replaced, and the calls that remain ----


def mark_origins(program: ExportedProgram) -> ExportedProgram:
    """Record an origin on each call, so that the operator that replaces the call inherits it."""
    for node in calls(program):
        if not is_reordering(node.target) and not is_symbolic(node.target):
            node.meta["origins"] = {node.name: Origin(_name(node.target), multiply_adds(node), cost(node))}
    return program


def explain_target(program: ExportedProgram) -> ExportedProgram:
    """Store the placement of each call for the report."""
    program.graph_module.meta["delegation"] = explain(program)
    return program


def keeping_rejections(name: str) -> Callable[[ExportedProgram], ExportedProgram]:
    """Returns a pass that stores the rejections of a partitioner's passes under its name."""

    def run(program: ExportedProgram) -> ExportedProgram:
        """Store the reasons for rejected calls for the report."""
        return keep_rejections(program, name)

    run.__name__ = "keep_rejections"
    return run


def keep_reasons(before: ExportedProgram, after: ExportedProgram) -> ExportedProgram:
    """Copies the rejection reasons to the calls of a retraced program: from the call of the same operator at the same
    source line, or from any call of that line."""
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


def warn(delegation: Delegation, strict: bool, *, rejected: bool = False) -> None:
    """Issues a DelegationWarning, or with `strict` a DelegationError, if expensive calls run on no backend. With
    `rejected`, considers only the calls that a pass rejected."""
    left = [item for item in delegation.left_behind if item.reasons or not rejected]
    if not left:
        return
    places = [
        f"{item.op}, {item.share:.0%} of the cost: {item.place}"
        + "".join(f"\n{name}: {', '.join(texts)}" for name, texts in item.reasons.items())
        for item in left
    ]
    stay = "stay on the portable kernels" if rejected else "run on no backend"
    message = f"{len(left)} expensive calls {stay}"
    if strict:
        raise DelegationError(
            message,
            where=places,
            hints=[
                "change the model at these lines, add a partitioner that accepts them, or set strict=False"
            ],
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


def _name(target: object) -> str:
    return str((getattr(target, "_schema", None) and target) or getattr(target, "__name__", target))
