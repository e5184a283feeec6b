# SPDX-License-Identifier: BSD-3-Clause
# Methods at Edge and what a device has come in; a program that fits goes out, or an error that says what is missing, to
# the byte, and what would make it fit.
"""Compile to a budget: the bill of each try is read from the file that it gives, so what is promised is what is needed."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from torchette.devtools.memory import Bill, bills, target_named
from torchette.errors import InputError, PlanError
from torchette.exir.fit.propose import Proposal, propose
from torchette.exir.graph import outputs, placeholders
from torchette.exir.memory import byte_count
from torchette.exir.program import EdgeProgramManager, ExecutorchBackendConfig, ExecutorchProgramManager
from torchette.format import pte

# A change that saves less of what is missing is not worth telling.
_LEAST_GAIN = 0.01
_MOST_CHANGES = 8
_TRIES = 4


@dataclass(frozen=True)
class Budget:
    """What the device has for a model, in bytes; None: as much as it takes.

    Attributes:
        ram: for planned, method and temp memory together, of the method that needs most.
        flash: for the .pte file. The runtime's code is not in it.
        target: as `torchette memory --target` takes it.
    """

    ram: int | None = None
    flash: int | None = None
    target: str = "native"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Budget:
        """From ``{"ram": "64K", "flash": 262144, "target": "cortex-m4"}``, each of which may be missing.

        Raises:
            InputError: an unknown name, a size that is no number of bytes, an unknown target.
        """
        names = [item.name for item in dataclasses.fields(cls)]
        values = dict(given)
        for name, value in values.items():
            if name not in names:
                raise InputError(f"a budget has no {name!r}", hints=[f"it has {', '.join(names)}"])
            if name != "target" and value is not None:
                try:
                    values[name] = byte_count(value) if isinstance(value, str) else operator.index(value)
                except (ValueError, TypeError) as error:
                    raise InputError(f"budget {name}: {error}") from None
        budget = cls(**values)
        target_named(budget.target)
        return budget


def fit(
    edge: EdgeProgramManager, config: ExecutorchBackendConfig, budget: Budget, apply: bool, **hooks: Any
) -> ExecutorchProgramManager:
    """The program, changed so that it fits where that is asked for.

    Args:
        edge: the methods.
        config: how they are lowered.
        budget: what there is.
        apply: make the changes that it takes; otherwise they are only told.
        hooks: fields of `pipeline.Options`.

    Raises:
        PlanError: code "over-budget"; says what is missing and which changes help.
    """
    program = edge._to_executorch(config, **hooks)
    over = _over(program, budget)
    if over is None:
        return program
    fewer, changes = _with_splits(edge, config, budget, program)
    if apply and _over(fewer, budget) is None:
        return fewer
    left = _over(fewer, budget)
    hints = [f"{text}: {saved:,} bytes less" for text, saved in changes]
    if changes and left is None:
        hints.append("fit=True makes these changes, and the model fits")
    elif changes and left is not None:
        hints.append(f"with all of them, still {left[0]}")
    if "flash" in over[0]:
        hints.append("store less: a smaller model, or weights shared between methods")
    if not hints:
        hints.append(
            "no split of layers helps: make smaller what lives at the fullest moment, which `torchette memory` draws"
        )
    raise PlanError(f"the model does not fit: {over[0]}", where=over[1], hints=hints, code="over-budget")


def _over(program: ExecutorchProgramManager, budget: Budget) -> tuple[str, list[str]] | None:
    """What is too much, in a line and in detail; None if all fits."""
    size = len(program.buffer)
    if budget.flash is not None and size > budget.flash:
        stored = sorted({(tensor.nbytes, name) for name, tensor in _constants(program).items()}, reverse=True)
        detail = [f"{count:,} bytes: {name}" for count, name in stored[:5]]
        return (
            f"flash has {budget.flash:,} bytes, the file has {size:,}, {size - budget.flash:,} more",
            detail,
        )
    bill = _largest(program, budget)
    if budget.ram is None or bill is None or bill.ram <= budget.ram:
        return None
    text = (
        f"RAM has {budget.ram:,} bytes, {bill.method_name} needs {bill.ram:,}, {bill.ram - budget.ram:,} more"
    )
    return text, [
        f"{what}: {count if isinstance(count, str) else f'{count:,} bytes'}" for what, count, _ in bill.rows()
    ]


def _constants(program: ExecutorchProgramManager) -> dict[str, Any]:
    return {
        name: tensor
        for method in program.methods
        for name, tensor in program.exported_program(method).state_dict.items()
    }


def _largest(program: ExecutorchProgramManager, budget: Budget) -> Bill | None:
    """The bill of the method that needs most RAM."""
    if budget.ram is None:
        return None
    found = bills(pte.read(program.buffer), budget.target)
    return max(found, key=lambda bill: bill.ram)


def _with_splits(
    edge: EdgeProgramManager,
    config: ExecutorchBackendConfig,
    budget: Budget,
    program: ExecutorchProgramManager,
) -> tuple[ExecutorchProgramManager, list[tuple[str, int]]]:
    """The program that needs least, and what was done to it: in words, with the bytes that it saves."""
    changes: list[tuple[str, int]] = []
    splits: dict[str, list[Any]] = {name: list(given) for name, given in config.row_splits.items()}
    while len(changes) < _MOST_CHANGES:
        bill = _largest(program, budget)
        if (
            bill is None
            or budget.ram is None
            or bill.ram <= budget.ram
            or bill.method_name not in edge.methods
        ):
            break
        excess, best = bill.ram - budget.ram, None
        # An estimate may be a little short, and a split itself takes method memory: ask for more where that misses.
        for _ in range(_TRIES):
            found = _propose(edge, config, splits, bill, excess)
            if found is None:
                break
            wanted = {**splits, bill.method_name: [*splits.get(bill.method_name, ()), found.split]}
            less = edge._to_executorch(dataclasses.replace(config, row_splits=wanted))
            after = _largest(less, budget)
            assert after is not None
            if best is None or after.ram < best[0].ram:
                best = (after, less, wanted, found.text)
            if after.ram <= budget.ram:
                break
            excess += after.ram - budget.ram
        if best is None or bill.ram - best[0].ram < _LEAST_GAIN * bill.ram:
            break
        after, program, splits, text = best
        changes.append((text, bill.ram - after.ram))
    return program, changes


def _propose(
    edge: EdgeProgramManager, config: ExecutorchBackendConfig, splits: Any, bill: Bill, excess: int
) -> Proposal | None:
    graph = edge._optimized(bill.method_name, dataclasses.replace(config, row_splits=splits))
    planner = config.memory_planning_pass
    lent: list[Node] = []
    if not getattr(planner, "alloc_graph_input", True):
        names = set(graph.graph_signature.user_inputs)
        lent += [node for node in placeholders(graph) if node.name in names]
    if not getattr(planner, "alloc_graph_output", True):
        lent += [node for node in outputs(graph) if isinstance(node, Node)]
    return propose(graph, sum(bill.planned) - excess, lent)
