# SPDX-License-Identifier: BSD-3-Clause
# Methods at Edge and what a device has come in; a program that fits goes out, or an error that says what is missing, to
# the byte, and what would make it fit.
"""Compile to the size of a device: the bill of each try is read from the file that it gives, so what is promised is what is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from torchette.device import Device
from torchette.devtools.device_memory import Bill, bills
from torchette.errors import PlanError
from torchette.exir.graph import outputs, placeholders, tensor_of
from torchette.exir.program import EdgeProgramManager, ExecutorchBackendConfig, ExecutorchProgramManager
from torchette.fit.propose import Proposal, propose
from torchette.format import pte

if TYPE_CHECKING:
    from torchette.exir.passes.split_rows import Split

# A change that saves less of what is missing is not worth telling.
_LEAST_GAIN = 0.01
_MOST_CHANGES = 8
_TRIES = 4


def fit(
    edge: EdgeProgramManager, config: ExecutorchBackendConfig, device: Device
) -> ExecutorchProgramManager:
    """The program for a device, changed so that it fits where that is asked for.

    Args:
        edge: the methods.
        config: how they are lowered.
        device: what there is; with `fit`, layers are changed, otherwise the changes are only named.

    Raises:
        PlanError: code "over-budget"; says what is missing and which changes help.
    """
    program = edge.to_executorch(config)
    over = _over(program, device)
    if over is None:
        return program
    fewer, changes = _with_splits(edge, config, device, program)
    if device.fit and _over(fewer, device) is None:
        return fewer
    left = _over(fewer, device)
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


def _over(program: ExecutorchProgramManager, device: Device) -> tuple[str, list[str]] | None:
    """What is too much, in a line and in detail; None if all fits."""
    size = len(program.buffer)
    if device.flash_bytes is not None and size > device.flash_bytes:
        stored = sorted({(tensor.nbytes, name) for name, tensor in _constants(program).items()}, reverse=True)
        detail = [f"{count:,} bytes: {name}" for count, name in stored[:5]]
        return (
            f"flash has {device.flash_bytes:,} bytes, the file has {size:,}, {size - device.flash_bytes:,} more",
            detail,
        )
    bill = _largest(program, device)
    if device.ram_bytes is None or bill is None or bill.ram <= device.ram_bytes:
        return None
    text = f"RAM has {device.ram_bytes:,} bytes, {bill.method_name} needs {bill.ram:,}, {bill.ram - device.ram_bytes:,} more"
    return text, [
        f"{what}: {count if isinstance(count, str) else f'{count:,} bytes'}" for what, count, _ in bill.rows()
    ]


def _constants(program: ExecutorchProgramManager) -> dict[str, torch.Tensor]:
    """What the methods store, by name."""
    found: dict[str, torch.Tensor] = {}
    for method in program.methods:
        exported = program.exported_program(method)
        for spec in exported.graph_signature.input_specs:
            tensor = tensor_of(exported, spec)
            if tensor is not None and spec.target is not None:
                found[spec.target] = tensor
    return found


def _largest(program: ExecutorchProgramManager, device: Device) -> Bill | None:
    """The bill of the method that needs most RAM."""
    if device.ram_bytes is None:
        return None
    found = bills(pte.read(program.buffer), device.target)
    return max(found, key=lambda bill: bill.ram)


def _with_splits(
    edge: EdgeProgramManager,
    config: ExecutorchBackendConfig,
    device: Device,
    program: ExecutorchProgramManager,
) -> tuple[ExecutorchProgramManager, list[tuple[str, int]]]:
    """The program that needs least, and what was done to it: in words, with the bytes that it saves."""
    changes: list[tuple[str, int]] = []
    splits: dict[str, list[Any]] = {name: list(given) for name, given in config.row_splits.items()}
    while len(changes) < _MOST_CHANGES:
        bill = _largest(program, device)
        if (
            bill is None
            or device.ram_bytes is None
            or bill.ram <= device.ram_bytes
            or bill.method_name not in edge.methods
        ):
            break
        excess, best = bill.ram - device.ram_bytes, None
        # An estimate may be a little short, and a split itself takes method memory: ask for more where that misses.
        for _ in range(_TRIES):
            found = _propose(edge, config, splits, bill, excess)
            if found is None:
                break
            wanted = {**splits, bill.method_name: [*splits.get(bill.method_name, ()), found.split]}
            less = edge.to_executorch(dataclasses.replace(config, row_splits=wanted))
            after = _largest(less, device)
            assert after is not None
            if best is None or after.ram < best[0].ram:
                best = (after, less, wanted, found.text)
            if after.ram <= device.ram_bytes:
                break
            excess += after.ram - device.ram_bytes
        if best is None or bill.ram - best[0].ram < _LEAST_GAIN * bill.ram:
            break
        after, program, splits, text = best
        changes.append((text, bill.ram - after.ram))
    return program, changes


def _propose(
    edge: EdgeProgramManager,
    config: ExecutorchBackendConfig,
    splits: Mapping[str, Sequence[Split]],
    bill: Bill,
    excess: int,
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
