# SPDX-License-Identifier: BSD-3-Clause
# In: methods at Edge and the memory of a device. Out: a program that fits, or an error with the excess in bytes and the
# changes that would make the program fit.
"""Compiles to the memory size of a device.

The memory of each attempt is computed from its file, so the result is exact.
"""

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

# Minimum relative saving of a change.
_MIN_GAIN = 0.01
_MAX_CHANGES = 8
_TRIES = 4


def fit(
    edge: EdgeProgramManager, config: ExecutorchBackendConfig, device: Device
) -> ExecutorchProgramManager:
    """Compiles a program for a device, and changes it so that it fits if `device.fit` is set.

    Args:
        edge: the methods.
        config: the options of the lowering.
        device: the available memory. If `fit` is set, layers are split; otherwise the error only suggests the splits.

    Returns:
        The program, within the limits of the device.

    Raises:
        PlanError: code "over-budget": the program does not fit. The error contains the excess and the useful changes.
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
        hints.append(f"with all changes, the model does not fit: {left[0]}")
    if "flash" in over[0]:
        hints.append("reduce the stored bytes: use a smaller model, or share weights between methods")
    if not hints:
        hints.append(
            "no split of layers helps: reduce the tensors that are live at the peak; `torchette memory` shows them"
        )
    raise PlanError(f"the model does not fit: {over[0]}", where=over[1], hints=hints, code="over-budget")


def _over(program: ExecutorchProgramManager, device: Device) -> tuple[str, list[str]] | None:
    """Returns the exceeded limit as a summary and details, or None if the program fits."""
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
        f"{label}: {count if isinstance(count, str) else f'{count:,} bytes'}"
        for label, count, _ in bill.rows()
    ]


def _constants(program: ExecutorchProgramManager) -> dict[str, torch.Tensor]:
    """Returns the stored tensors of all methods by name."""
    constants: dict[str, torch.Tensor] = {}
    for method in program.methods:
        exported = program.exported_program(method)
        for spec in exported.graph_signature.input_specs:
            tensor = tensor_of(exported, spec)
            if tensor is not None and spec.target is not None:
                constants[spec.target] = tensor
    return constants


def _largest(program: ExecutorchProgramManager, device: Device) -> Bill | None:
    """Returns the bill of the method that requires the most RAM."""
    if device.ram_bytes is None:
        return None
    method_bills = bills(pte.read(program.buffer), device.target)
    return max(method_bills, key=lambda bill: bill.ram)


def _with_splits(
    edge: EdgeProgramManager,
    config: ExecutorchBackendConfig,
    device: Device,
    program: ExecutorchProgramManager,
) -> tuple[ExecutorchProgramManager, list[tuple[str, int]]]:
    """Splits layers until the program fits or no split helps.

    Returns the program, and the changes with the saved bytes.
    """
    changes: list[tuple[str, int]] = []
    splits: dict[str, list[Any]] = {name: list(ranges) for name, ranges in config.row_splits.items()}
    while len(changes) < _MAX_CHANGES:
        bill = _largest(program, device)
        if (
            bill is None
            or device.ram_bytes is None
            or bill.ram <= device.ram_bytes
            or bill.method_name not in edge.methods
        ):
            break
        excess, best = bill.ram - device.ram_bytes, None
        # The estimate may be too low, and a split itself needs method memory. Retry with a larger excess.
        for _ in range(_TRIES):
            proposal = _propose(edge, config, splits, bill, excess)
            if proposal is None:
                break
            new_splits = {**splits, bill.method_name: [*splits.get(bill.method_name, ()), proposal.split]}
            less = edge.to_executorch(dataclasses.replace(config, row_splits=new_splits))
            after = _largest(less, device)
            assert after is not None
            if best is None or after.ram < best[0].ram:
                best = (after, less, new_splits, proposal.text)
            if after.ram <= device.ram_bytes:
                break
            excess += after.ram - device.ram_bytes
        if best is None or bill.ram - best[0].ram < _MIN_GAIN * bill.ram:
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
