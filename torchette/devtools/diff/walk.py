# SPDX-License-Identifier: BSD-3-Clause
# In: a file and inputs. Out: faults. The runtime executes the file and reports each value; torch's operator runs on the
# same values that the kernel read, so that a fault is reported at its origin.
"""`Walk`: executes a method and compares each instruction with torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from torchette.devtools.diff.judge import NoReference, Verdict, growth_of, judge
from torchette.devtools.diff.operators import reference
from torchette.devtools.diff.result import Fault, OperatorRow
from torchette.devtools.diff.simulated_memory import SimulatedMemory, Source
from torchette.devtools.inspect import InstructionInfo, MethodInfo, source_line
from torchette.errors import ExecutionError, InputError
from torchette.format import pte
from torchette.format.schema import Record
from torchette.runtime import Intermediate, operator_signatures
from torchette.units import wrong_count


class Device(Protocol):
    """Executes a method and reports the written values, like a traced `torchette.runtime.Method`."""

    def execute(
        self, inputs: Sequence[Any], observer: Callable[[Intermediate], None], *, real_view: bool
    ) -> list[Any]:
        """Returns the outputs; calls `observer` and applies `real_view` like `Method.execute`."""

    def reset(self) -> None:
        """Resets state to its initial values."""


class Step(NamedTuple):
    """An instruction that ran.

    Attributes:
        info: description of the instruction.
        number: number of instructions that ran before it.
        reads: argument values before the execution, by position; None for arguments that are only written.
        written: indices of the values that it wrote, in the kernel's order.
        values: the written values.
        parts: number, name and value of values inside a delegate that the backend reported.
        sources: for arguments that are views, the last write to their bytes.
        overwritten: set if an earlier instruction overwrote an argument.
        departs: whether it departs from torch on the same inputs.
    """

    info: InstructionInfo
    number: int
    reads: list[Any]
    written: list[int]
    values: list[Any]
    parts: list[tuple[int | None, str, Any]]
    sources: dict[int, Source]
    overwritten: Any
    departs: bool


class Walk:
    """Executions of one method of a file, compared with torch."""

    def __init__(
        self, file: pte.PteFile, plan: Record, method: MethodInfo, external: Mapping[str, Any] | None = None
    ) -> None:
        self.file, self.plan, self.method = file, plan, method
        self.rows = [
            OperatorRow(instruction.index, instruction.op, source_line(instruction.source))
            for instruction in method.instructions
        ]
        self.faults: list[Fault] = []
        self.memory = SimulatedMemory(file, plan, external)
        self.ever_written: set[int] = set()
        self.records = [each.instr_args for chain in plan.chains for each in chain.instructions]
        self._signatures = operator_signatures()
        self._loops = [
            range(instruction.destination, instruction.index + 1)
            for instruction in method.instructions
            if instruction.destination is not None and instruction.destination <= instruction.index
        ]

    def run(
        self, device: Device, inputs: Sequence[Any], name: str, follow: Callable[[Step], None] | None = None
    ) -> list[Any] | None:
        """Executes the method.

        Args:
            device: executes the method.
            inputs: inputs of the method.
            name: name of the inputs in faults.
            follow: function that is called after each instruction.

        Returns:
            The outputs, or None if the method fails. Each call starts from the initial state.

        Raises:
            InputError: the inputs do not match the method.
        """
        self.memory.reset()
        self.name, self._follow = name, follow
        for port, value in zip(self.plan.inputs, inputs, strict=False):
            value = torch.as_tensor(value) if hasattr(value, "__dlpack__") else value
            self.memory.write(port, value.clone() if isinstance(value, torch.Tensor) else value, -1, -1)
        self._group: list[Intermediate] = []
        device.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns when it resizes an out tensor
            try:
                outputs = device.execute(list(inputs), self._observe, real_view=True)
                self._finish()
            except ExecutionError as error:
                self._finish()
                self.faults.append(self._failure(error))
                return None
        return outputs

    def _failure(self, error: ExecutionError) -> Fault:
        at = next((text for text in error.where if text.startswith("instruction ")), "")
        index = int(at.split()[1]) if at else None
        row = self.rows[index] if index is not None and index < len(self.rows) else None
        operator, source = (row.operator, row.source) if row else ("", "")
        return Fault("run", operator, index, source, error.message, self.name)

    def _observe(self, intermediate: Intermediate) -> None:
        if self._group and intermediate.step != self._group[0].step:
            self._finish()
        self._group.append(intermediate)

    def _finish(self) -> None:
        """Compares the instruction of the collected values."""
        group, self._group = self._group, []
        if not group:
            return
        first = group[0]
        info = self.method.instructions[self.method.chains[first.chain] + first.instruction]
        parts = [
            (intermediate.part, intermediate.name, intermediate.value)
            for intermediate in group
            if intermediate.in_delegate
        ]
        values = [_tensor(intermediate.value) for intermediate in group if not intermediate.in_delegate]
        if not values:
            return
        record = self.records[info.index]
        args = arguments_of(record)
        positions = self.positions_written(info, args, len(values))
        if len(positions) != len(values):
            return  # this runtime does not have the kernel's signature
        reads: list[Any] = [
            None if at in positions and not self._updates(info, at) else self.memory.read(index)
            for at, index in enumerate(args)
        ]
        members = {member for index in args if index >= 0 for member in self.memory.members(index)}
        sources = {
            index: source
            for index in members
            if index >= 0 and (source := self.memory.source(index)) is not None
        }
        overwritten = self._overwritten(info, args, positions)
        if overwritten is not None:
            by = self.rows[overwritten.by]
            victim = f"value %{overwritten.value}, which instruction {info.index} ({info.op}) reads"
            self.add(
                Fault("plan", by.operator, by.instruction, by.source, f"it overwrites {victim}", self.name)
            )
        departs = self._compare(info, record, args, reads, positions, values)
        written = [args[at] for at in positions]
        step = Step(info, first.step, reads, written, values, parts, sources, overwritten, departs)
        self.ever_written.update(member for index in written for member in self.memory.members(index))
        for index, value in zip(written, values, strict=True):
            self.memory.write(index, value, first.step, info.index)
        if self._follow is not None:
            self._follow(step)

    def positions_written(self, info: InstructionInfo, args: list[int], count: int) -> list[int]:
        """Returns the positions of the arguments that an instruction writes, in the order that the runtime reports."""
        if info.kind == "kernel":
            codes = self._signatures.get(info.op, "").replace("?", "")
            last = len(codes) - 1
            return [at for at, code in enumerate(codes) if code in "tvm" or (code == "L" and at == last)]
        return list(range(len(args) - count, len(args)))

    def _updates(self, info: InstructionInfo, at: int) -> bool:
        """Whether a written argument is also read, like `self` of ``copy_``."""
        return info.kind == "kernel" and at == 0

    def _overwritten(self, info: InstructionInfo, args: list[int], positions: list[int]) -> Any:
        in_loop = any(info.index in loop for loop in self._loops)
        for at, index in enumerate(args):
            if at in positions or index < 0:
                continue
            for member in self.memory.members(index):
                overwritten = self.memory.overwritten(member) if member >= 0 else None
                if overwritten is None or overwritten.by < 0:
                    continue
                # A loop-carried value is updated in place under another value index.
                if in_loop and any(
                    self.memory.has_same_location(member, other)
                    for other in self._results(overwritten.by)
                    if other != member
                ):
                    continue
                return overwritten
        return None

    def _results(self, index: int) -> list[int]:
        info = self.method.instructions[index]
        args = arguments_of(self.records[index])
        written = [args[at] for at in self.positions_written(info, args, 1) if args[at] >= 0] if args else []
        return [member for each in written for member in self.memory.members(each)]

    def _compare(
        self,
        info: InstructionInfo,
        record: Record,
        args: list[int],
        reads: list[Any],
        positions: list[int],
        values: list[Any],
    ) -> bool:
        row = self.rows[info.index]
        if info.kind == "move":
            verdict = judge(values, lambda inputs: inputs, [self.memory.read(args[0])])
        elif info.kind == "kernel":
            operator = self.plan.operators[record.op_index]
            torch_reference = reference(operator.name, operator.overload, values)
            if torch_reference is None:
                return self._without_reference(row)
            positions_read = (
                torch_reference.reads if torch_reference.reads is not None else tuple(range(len(args) - 1))
            )
            inputs = [reads[at] for at in positions_read if at < len(reads)]
            try:
                verdict = judge(
                    values, torch_reference.run, inputs, growth_of(inputs, values, torch_reference.pointwise)
                )
            except NoReference:
                return self._without_reference(row)
        else:
            return self._without_reference(row)
        self.enter(row, verdict)
        if verdict.departs:
            self.add(
                Fault(
                    "kernel",
                    row.operator,
                    row.instruction,
                    row.source,
                    verdict.reason,
                    self.name,
                    verdict.numbers,
                )
            )
        return verdict.departs

    @staticmethod
    def _without_reference(row: OperatorRow) -> bool:
        if row.verdict == "not run":
            row.verdict = "no reference"
        return False

    @staticmethod
    def enter(row: OperatorRow, verdict: Verdict) -> None:
        """Adds a verdict to the row of an instruction."""
        row.numbers = row.numbers.worse(verdict.numbers)
        if verdict.departs:
            row.verdict = "departs"
        elif row.verdict != "departs":
            row.verdict = "ok"

    def add(self, fault: Fault) -> None:
        """Adds a fault unless the instruction already has one of this kind."""
        if not any((f.kind, f.instruction) == (fault.kind, fault.instruction) for f in self.faults):
            self.faults.append(fault)


def arguments_of(record: Record) -> list[int]:
    """Returns the indices of an instruction's arguments, in the order of its record."""
    if isinstance(record, (pte.KernelCall, pte.DelegateCall)):
        return list(record.args)
    if isinstance(record, pte.MoveCall):
        return [record.move_from, record.move_to]
    return []


def _tensor(value: object) -> Any:
    if isinstance(value, (list, tuple)):
        return [_tensor(item) for item in value]
    return torch.as_tensor(value) if hasattr(value, "__dlpack__") else value


def checked_inputs(method: MethodInfo, inputs: Sequence[Any]) -> list[Any]:
    """Returns the inputs in the form that the runtime accepts. Raises InputError if their number is wrong."""
    if len(inputs) != len(method.inputs):
        expected = [f"{port.name}: {port.text}" for port in method.inputs]
        raise InputError(wrong_count(f"method {method.name!r}", expected, len(inputs)))
    return [value.contiguous().detach() if isinstance(value, torch.Tensor) else value for value in inputs]
