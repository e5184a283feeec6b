# SPDX-License-Identifier: BSD-3-Clause
# In: the memories of a device, and specs with lifetimes. Out: a memory and an offset for each spec. The names are those
# of executorch.exir.banked_memory_planning; `MemoryPlanningPass(arenas=...)` is a shorter way to the same plans.
"""Memory planning over several memories with given ids and sizes.

>>> banks = TargetMemoryMap([Bank("sram", 64 * 1024, mem_id=1), Bank("dram", 1 << 20, mem_id=2)])
>>> ExecutorchBackendConfig(memory_planning_pass=banked_memory_planning_pass(banks))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.export.graph_signature import ExportGraphSignature
from torch.fx import GraphModule

from torchette.errors import PlanError
from torchette.exir import memory
from torchette.exir.memory.algorithms import (
    MemoryAlgoResult,
    MemoryPlanningAlgorithmSuite,
    SpecAllocResult,
    interval,
)
from torchette.exir.memory.plan_memory import MemoryPlanningPass
from torchette.exir.tensor import ALIGNMENT, TensorSpec


class BankPlacementError(PlanError):
    """The tensors do not fit into the banks."""


@dataclass(frozen=True)
class Bank:
    """A memory of a device.

    Attributes:
        name: the name in messages.
        size: bytes that the model may use.
        mem_id: the memory id in the file, 1 or greater.
        alignment: alignment of all offsets in bytes, a multiple of the plan's alignment; None: the plan's alignment.
    """

    name: str
    size: int
    mem_id: int
    alignment: int | None = None


class TargetMemoryMap:
    """The banks of a device, the best first. Specs may name memory ids that belong to no bank; they are not managed.

    Raises:
        ValueError: if there is no bank, two banks have the same name or id, or a size, id or alignment is less than 1.
    """

    def __init__(self, banks: Sequence[Bank]) -> None:
        self.banks = list(banks)
        if not self.banks:
            raise ValueError("a device needs at least one bank")
        for key in ("name", "mem_id"):
            values = [getattr(bank, key) for bank in self.banks]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"banks have the same {key}: {', '.join(map(str, twice))}")
        for bank in self.banks:
            for key in ("size", "mem_id", "alignment"):
                value = getattr(bank, key)
                if value is not None and value < 1:
                    raise ValueError(f"bank {bank.name}: {key} {value} is less than 1")

    def mem_ids(self) -> list[int]:
        """The memory ids, that of the best bank first."""
        return [bank.mem_id for bank in self.banks]

    def manages(self, mem_id: int) -> bool:
        """Whether a bank has this memory id."""
        return mem_id in self.mem_ids()

    def bank(self, mem_id: int) -> Bank:
        """Returns the bank with this memory id.

        Raises:
            ValueError: if there is none.
        """
        return self._where("mem_id", mem_id)

    def mem_id(self, name: str) -> int:
        """Returns the memory id of the bank with this name.

        Raises:
            ValueError: if there is none.
        """
        return self._where("name", name).mem_id

    def _where(self, key: str, value: object) -> Bank:
        for bank in self.banks:
            if getattr(bank, key) == value:
                return bank
        raise ValueError(f"no bank has {key} {value!r}; the banks are {self.describe()}")

    def describe(self) -> str:
        """Returns a description of all banks in one line."""
        return ", ".join(f"{bank.name}(mem_id={bank.mem_id}, size={bank.size})" for bank in self.banks)


class BankedGreedy:
    """An algorithm for `MemoryPlanningPass` that assigns large tensors to the best bank with room.

    Specs that already have a memory id keep it.

    Args:
        target: the banks.
        allow_overlapping_allocations: see `torchette.exir.memory.algorithms.greedy`.

    Raises:
        BankPlacementError: when called, if the tensors do not fit, or if a bank's alignment is not a multiple of the
            plan's alignment.
    """

    __name__ = "banked_greedy"

    def __init__(self, target: TargetMemoryMap, allow_overlapping_allocations: bool = True) -> None:
        self.target = target
        self._plan = memory.plan if allow_overlapping_allocations else memory.naive

    def __call__(
        self,
        alignment: int,
        specs: Iterable[TensorSpec],
        graph_module: GraphModule,
        graph_signature: ExportGraphSignature | None,
        extra_padding: int = 0,
    ) -> MemoryAlgoResult:
        """Returns the memory id and offset of each spec."""
        alignments = {bank.mem_id: bank.alignment or alignment for bank in self.target.banks}
        for bank in self.target.banks:
            if alignments[bank.mem_id] % alignment:
                raise BankPlacementError(
                    f"bank {bank.name} has the alignment {bank.alignment}, which is not a multiple of the plan's alignment, {alignment}"
                )
        reserved = list(getattr(graph_module, "input_mem_buffer_sizes", None) or [])
        reserved += [0] * (1 + max(self.target.mem_ids()) - len(reserved))
        groups: dict[int, list[TensorSpec]] = {}
        for spec, mem_id in self._chosen(list(specs), reserved, max(alignments.values()), extra_padding):
            groups.setdefault(mem_id, []).append(spec)
        sizes = reserved + [0] * (1 + max(groups, default=0) - len(reserved))
        placed: dict[TensorSpec, SpecAllocResult] = {}
        for mem_id, group in sorted(groups.items()):
            step = alignments.get(mem_id, alignment)
            plan = self._plan([interval(spec) for spec in group], step)
            start = memory.align(sizes[mem_id], step)
            slots: dict[int, int] = {}
            for spec, offset in zip(group, plan.offsets, strict=True):
                slot = slots.setdefault(offset, len(slots))
                placed[spec] = SpecAllocResult(mem_id, slot, start + offset)
            sizes[mem_id] = start + plan.size + extra_padding
        for bank in self.target.banks:
            if sizes[bank.mem_id] > bank.size:
                raise BankPlacementError(
                    f"the tensors do not fit: bank {bank.name} has {bank.size:,} bytes, {sizes[bank.mem_id]:,} are needed",
                    hints=[f"the banks: {self.target.describe()}"],
                    code="does-not-fit",
                )
        return MemoryAlgoResult(placed, sizes)

    def _chosen(
        self, specs: list[TensorSpec], reserved: Sequence[int], alignment: int, padding: int
    ) -> list[tuple[TensorSpec, int]]:
        """Returns the memory id of each spec."""
        ids = self.target.mem_ids()
        ours = [spec for spec in specs if spec.mem_id is None or spec.mem_id in ids]
        room = [
            max(0, b.size - memory.align(reserved[b.mem_id], alignment) - padding) for b in self.target.banks
        ]
        # If the traffic is unknown, larger tensors have priority.
        chosen = memory.place(
            [interval(spec) for spec in ours],
            [spec.nbytes() for spec in ours],
            room,
            alignment,
            [None if spec.mem_id is None else ids.index(spec.mem_id) for spec in ours],
        )
        placed = [(spec, ids[number]) for spec, number in zip(ours, chosen, strict=True)]
        apart = [(s, s.mem_id) for s in specs if s.mem_id is not None and s.mem_id not in ids]
        return [*placed, *apart]


def banked_memory_planning_pass(
    target: TargetMemoryMap,
    alignment: int = ALIGNMENT,
    allow_overlapping_allocations: bool = True,
    **kwargs: Any,
) -> MemoryPlanningPass:
    """Returns a pass that plans over the banks.

    Args:
        target: the banks.
        alignment: alignment of the tensors in bytes.
        allow_overlapping_allocations: see `BankedGreedy`.
        **kwargs: arguments of `MemoryPlanningPass`.

    Raises:
        ValueError: for `share_mutable_buffers`, which requires memory id 2 for the state.
    """
    if kwargs.get("share_mutable_buffers"):
        raise ValueError(
            "share_mutable_buffers stores the state in memory id 2, which conflicts with the banks"
        )
    planner = BankedGreedy(target, allow_overlapping_allocations)
    return MemoryPlanningPass(MemoryPlanningAlgorithmSuite([planner]), alignment=alignment, **kwargs)


def planned_mem_ids(graph_module: GraphModule) -> list[int]:
    """Returns the memory id of each planned tensor of a graph."""
    mem_ids: dict[TensorSpec, int] = {}
    for node in graph_module.graph.nodes:
        spec = node.meta.get("spec")
        for one in spec if isinstance(spec, (tuple, list)) else (spec,):
            if isinstance(one, TensorSpec) and one.mem_id is not None and one.base is None and not one.const:
                mem_ids[one] = one.mem_id
    return list(mem_ids.values())


def format_placement_report(
    target: TargetMemoryMap, bufsizes: Sequence[int], mem_ids: Iterable[int] = ()
) -> str:
    """Formats the usage of each bank as a table.

    Args:
        target: the banks.
        bufsizes: bytes of each memory id, the format of ``graph_module.meta["non_const_buffer_sizes"]``.
        mem_ids: the result of `planned_mem_ids`, to count the tensors.
    """
    ids, used = list(mem_ids), dict(enumerate(bufsizes))
    lines = [f"{'bank':12} {'mem_id':>6} {'used':>12} {'size':>12} {'share':>6} {'tensors':>8}"]
    for bank in target.banks:
        there = used.get(bank.mem_id, 0)
        lines.append(
            f"{bank.name:12} {bank.mem_id:6} {there:12,} {bank.size:12,} {there / bank.size:6.1%} {ids.count(bank.mem_id):8}"
        )
    total = sum(used.get(bank.mem_id, 0) for bank in target.banks)
    return "\n".join([*lines, f"{total:,} bytes in {len(target.banks)} banks"])
