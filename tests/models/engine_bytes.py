# SPDX-License-Identifier: BSD-3-Clause
# Memory and file size of the CPU engine: planned memory and file of the given zoo models, with the portable plan and
# with the engine. `python -m tests.models.engine_bytes` prints the table and marks rows that exceed the limits.
"""Planned bytes and file bytes of the zoo's networks: portable plan compared with engine."""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch

from tests.models import architectures
from torchette.backends.engine import CpuPartitioner
from torchette.exir.config import ExecutorchBackendConfig
from torchette.exir.memory.plan_memory import MemoryPlanningPass
from torchette.exir.program import to_edge_transform_and_lower

# The file may grow by 2 %: panels of 16 outputs are zero-padded.
MAX_GROWTH = 1.02


class Bytes(NamedTuple):
    """Planned memory of a network without inputs and outputs, and its file size."""

    planned: int
    file: int


class Row(NamedTuple):
    """A network with the portable plan and with the engine."""

    name: str
    portable: Bytes
    engine: Bytes

    def exceeds(self) -> list[str]:
        """Describes the limits that the engine exceeds."""
        planned, file = self.engine.planned - self.portable.planned, self.engine.file / self.portable.file
        missed = [f"{planned:,} planned bytes more"] if planned > 0 else []
        return missed + ([f"the file is {file:.4f} of the portable file"] if file > MAX_GROWTH else [])

    def line(self) -> str:
        """Formats the row of the table."""
        numbers = (*self.portable, *self.engine)
        left, middle, right, last = (f"{number:12,}" for number in numbers)
        return f"{self.name:42} {left} {right} {middle} {last}  {'; '.join(self.exceeds())}"


def measure(name: str) -> Row:
    """Lowers a network of the zoo with the portable plan and with the engine."""
    module, args = architectures.build(name)
    exported = torch.export.export(module, args)
    return Row(name, _lowered(exported, []), _lowered(exported, [CpuPartitioner()]))


def _lowered(exported: torch.export.ExportedProgram, partitioner: list) -> Bytes:
    planner = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    config = ExecutorchBackendConfig(memory_planning_pass=planner)
    program = to_edge_transform_and_lower(exported, partitioner=partitioner).to_executorch(config)
    return Bytes(program.planned_bytes()[0], len(program.buffer))


def main(names: list[str]) -> None:
    """Prints a row for each network as soon as it is measured."""
    print(f"{'':42} {'planned':>12} {'engine':>12} {'file':>12} {'engine':>12}")
    for name in names:
        print(measure(name).line(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or architectures.NAMES)
