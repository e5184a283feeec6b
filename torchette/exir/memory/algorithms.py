# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's interface of planning algorithms, implemented with the planner of this package. In: specs with lifetimes.
# Out: a memory id and an offset for each spec. Users can pass their own algorithms.
"""Planning algorithms with ExecuTorch's names and signatures.

An algorithm is a callable ``(alignment, specs, graph_module, graph_signature, extra_padding)``. `specs` are the specs
that need memory. Their `lifetime` is set, and their `mem_id` is set if the user chose one. The algorithm either returns
a `MemoryAlgoResult`, or sets `mem_id` and `mem_offset` of the specs and returns the sizes of the buffers in bytes
(index 0 is reserved and stays 0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import ExportGraphSignature

from torchette.errors import PlanError
from torchette.exir import control_flow, memory
from torchette.exir.memory import Interval, Plan
from torchette.exir.tensor import TensorSpec

DEFAULT_MEM_ID = 1


@dataclass
class SpecAllocResult:
    """The location of one spec: buffer, slot in the buffer, and offset in bytes."""

    mem_id: int
    mem_obj_id: int
    mem_offset: int


@dataclass
class MemoryAlgoResult:
    """The location of each spec, and the size of each buffer in bytes (index 0 is reserved)."""

    spec_dict: dict[TensorSpec, SpecAllocResult]
    bufsizes: list[int]


Algorithm = Callable[..., "MemoryAlgoResult | list[int]"]


def greedy(
    alignment: int,
    specs: Iterable[TensorSpec],
    graph_module: torch.fx.GraphModule,
    graph_signature: ExportGraphSignature | None,
    extra_padding: int = 0,
    *,
    allow_overlapping_allocations: bool = True,
) -> MemoryAlgoResult:
    """Plans each memory id separately with the best of several greedy orders and a bounded search; see `memory.plan`.

    `allow_overlapping_allocations=False` disables the reuse of parts of a slot. The option exists for compatibility
    with ExecuTorch. It selects the naive algorithm.
    """
    algorithm = memory.plan if allow_overlapping_allocations else memory.naive
    return _plan_each_memory(algorithm, alignment, specs, graph_module, extra_padding)


def naive(
    alignment: int,
    specs: Iterable[TensorSpec],
    graph_module: torch.fx.GraphModule,
    graph_signature: ExportGraphSignature | None,
    extra_padding: int = 0,
) -> MemoryAlgoResult:
    """Assigns separate bytes to every tensor. This plan is the largest; it shows whether shared memory causes an
    error."""
    return _plan_each_memory(memory.naive, alignment, specs, graph_module, extra_padding)


def _plan_each_memory(
    algorithm: Callable[[Sequence[Interval], int], Plan],
    alignment: int,
    specs: Iterable[TensorSpec],
    graph_module: torch.fx.GraphModule,
    extra_padding: int,
) -> MemoryAlgoResult:
    reserved = list(getattr(graph_module, "input_mem_buffer_sizes", None) or [])
    by_memory: dict[int, list[TensorSpec]] = {}
    for spec in specs:
        by_memory.setdefault(DEFAULT_MEM_ID if spec.mem_id is None else spec.mem_id, []).append(spec)
    sizes = [0] * max(2, len(reserved), 1 + max(by_memory, default=0))
    sizes[: len(reserved)] = reserved
    placed: dict[TensorSpec, SpecAllocResult] = {}
    for mem_id, group in sorted(by_memory.items()):
        found = algorithm([interval(spec) for spec in group], alignment)
        start = memory.align(sizes[mem_id], alignment)
        slots: dict[int, int] = {}
        for spec, offset in zip(group, found.offsets, strict=True):
            slot = slots.setdefault(offset, len(slots))
            placed[spec] = SpecAllocResult(mem_id, slot, start + offset)
        sizes[mem_id] = start + found.size + extra_padding
    return MemoryAlgoResult(placed, sizes)


def interval(spec: TensorSpec) -> Interval:
    """Returns the lifetime and maximum size of a spec as an interval of the planner."""
    first, last = spec.lifetime
    if first is None or last is None:
        raise PlanError(
            f"{spec!r} has no lifetime", hints=["run update_all_tensors_lifetime before planning"]
        )
    return Interval(first, last, spec.nbytes())


class MemoryPlanningAlgorithmSuite:
    """Runs algorithms that return a `MemoryAlgoResult`, and applies the result with the smallest total size."""

    def __init__(self, algo_list: list[Callable[..., MemoryAlgoResult]] | None = None) -> None:
        self.algo_list = [greedy] if algo_list is None else algo_list

    def __call__(
        self,
        alignment: int,
        specs: Iterable[TensorSpec],
        graph_module: torch.fx.GraphModule,
        graph_signature: ExportGraphSignature | None,
        extra_padding: int = 0,
    ) -> list[int]:
        """Writes the best result to the specs. Returns the size of each buffer in bytes."""
        specs = list(specs)
        results = [
            algorithm(alignment, specs, graph_module, graph_signature, extra_padding)
            for algorithm in self.algo_list
        ]
        best = min(results, key=lambda result: sum(result.bufsizes))
        apply_result(best)
        return best.bufsizes


def apply_result(result: MemoryAlgoResult) -> None:
    """Writes the result of an algorithm to the specs."""
    for spec, place in result.spec_dict.items():
        spec.mem_id, spec.mem_obj_id, spec.mem_offset = place.mem_id, place.mem_obj_id, place.mem_offset


def check_plan(
    specs: Sequence[TensorSpec],
    bufsizes: Sequence[int],
    alignment: int,
    names: dict[TensorSpec, str] | None = None,
    allow_lifetime_and_storage_overlap: bool = False,
) -> None:
    """Checks a plan: all tensors are placed, aligned, inside their buffers, and disjoint while they are live.

    Raises:
        PlanError: the plan is invalid. The message names the tensor, or both tensors of an overlap, with lifetimes and
            addresses.
    """
    names = names or {}

    def name(spec: TensorSpec) -> str:
        return f"{names.get(spec, 'a tensor')} ({spec!r})"

    by_memory: dict[int, list[TensorSpec]] = {}
    for spec in specs:
        if spec.mem_id is None or spec.mem_offset is None:
            raise PlanError(f"the algorithm did not place {name(spec)}")
        if not 1 <= spec.mem_id < len(bufsizes):
            raise PlanError(
                f"the algorithm placed {name(spec)} in a memory id outside 1..{len(bufsizes) - 1}"
            )
        if spec.mem_offset + spec.nbytes() > bufsizes[spec.mem_id]:
            raise PlanError(f"{name(spec)} exceeds its buffer of {bufsizes[spec.mem_id]} bytes")
        by_memory.setdefault(spec.mem_id, []).append(spec)
    if allow_lifetime_and_storage_overlap:
        return
    for group in by_memory.values():
        offsets = [spec.mem_offset for spec in group if spec.mem_offset is not None]
        memory.check(
            [interval(spec) for spec in group], offsets, alignment, [names.get(s, "?") for s in group]
        )


class Verifier:
    """Checks a planned graph: no two live tensors share bytes. Names are ExecuTorch's."""

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        alloc_graph_input: bool = True,
        alloc_graph_output: bool = True,
        alloc_mutable_buffers: bool = True,
        graph_signature: ExportGraphSignature | None = None,
    ) -> None:
        self.graph_module = graph_module
        self.alloc_graph_input = alloc_graph_input
        self.alloc_graph_output = alloc_graph_output
        self.alloc_mutable_buffers = alloc_mutable_buffers
        self.graph_signature = graph_signature

    @classmethod
    def has_overlap(cls, lhs_ivl: Sequence[int], rhs_ivl: Sequence[int]) -> bool:
        """Returns whether two [first, last] ranges, both inclusive, overlap."""
        return lhs_ivl[0] <= rhs_ivl[1] and rhs_ivl[0] <= lhs_ivl[1]

    @classmethod
    def lifetime_overlap(cls, lhs_spec: TensorSpec, rhs_spec: TensorSpec) -> bool:
        """Returns whether both tensors are live at the same time."""
        lhs, rhs = interval(lhs_spec), interval(rhs_spec)
        return cls.has_overlap(lhs[:2], rhs[:2])

    @classmethod
    def storage_overlap(cls, lhs_spec: TensorSpec, rhs_spec: TensorSpec) -> bool:
        """Returns whether both tensors own a common byte of the same memory."""
        if lhs_spec.mem_id != rhs_spec.mem_id or not lhs_spec.nbytes() or not rhs_spec.nbytes():
            return False
        if lhs_spec.mem_offset is None or rhs_spec.mem_offset is None:
            return False
        return cls.has_overlap(
            [lhs_spec.mem_offset, lhs_spec.mem_offset + lhs_spec.nbytes() - 1],
            [rhs_spec.mem_offset, rhs_spec.mem_offset + rhs_spec.nbytes() - 1],
        )

    def _planned(self) -> list[TensorSpec]:
        seen: dict[TensorSpec, Any] = {}
        for module in control_flow.graphs(self.graph_module):
            for node in module.graph.nodes:
                spec = node.meta.get("spec")
                for each in spec if isinstance(spec, (tuple, list)) else (spec,):
                    if isinstance(each, TensorSpec) and each.base is None and each.mem_offset is not None:
                        seen[each] = node
        return list(seen)

    def verify_storage_reuse(self, allow_lifetime_and_storage_overlap: bool = False) -> int:
        """Returns the number of pairs of tensors that share bytes.

        Raises:
            PlanError: two tensors share bytes while both are live, and this is not allowed.
        """
        specs, reuse = self._planned(), 0
        for i, lhs in enumerate(specs):
            for rhs in specs[i + 1 :]:
                if not self.storage_overlap(lhs, rhs):
                    continue
                if not allow_lifetime_and_storage_overlap and self.lifetime_overlap(lhs, rhs):
                    raise PlanError(f"{lhs!r} and {rhs!r} share bytes while both are live")
                reuse += 1
        return reuse
