# SPDX-License-Identifier: BSD-3-Clause
# In: a method, inputs and selected instructions. Out: the values that these write, in sequence, so that memory is
# bounded. Requires only numpy.
"""Intermediate values of a method: `select` selects instructions, `intermediates` observes their values."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torchette.devtools.inspect import InstructionInfo, MethodInfo, source_line
from torchette.errors import InputError
from torchette.runtime import Intermediate, Method


class Value(NamedTuple):
    """A value that an instruction wrote.

    Attributes:
        instruction: index of the instruction, as in `torchette inspect`.
        info: description of the instruction.
        output: index among the values that the instruction writes, or among those that its delegate's backend reports.
        step: number of instructions that ran before it, including loop iterations.
        part: the backend's number for a value inside the delegate; None for a value that the instruction writes.
        name: the backend's name for the value.
        value: an array or tensor, a scalar, or a list of these.
    """

    instruction: int
    info: InstructionInfo
    output: int
    step: int
    part: int | None
    name: str
    value: Any


def names_of(info: InstructionInfo, more: Iterable[str] = ()) -> list[str]:
    """Returns the names that select an instruction: index, operator, line, module path and others, if known."""
    line = source_line(info.source)
    module = getattr(info, "module", "")
    return [
        text for text in (str(info.index), info.op, info.op.partition("::")[2], line, module, *more) if text
    ]


def select(
    method: MethodInfo, patterns: Sequence[str], more: Mapping[int, Sequence[str]] | None = None
) -> list[InstructionInfo]:
    """Returns the instructions that match any of the patterns; all instructions if there are no patterns.

    Args:
        method: description of the method.
        patterns: an index or a range of indices (``3``, ``3-9``), or text with ``*`` and ``?`` that matches an operator
            (``aten::mm*``), a line of the model (``model.py:12``), a module path (``layers.1.*``, which also matches
            the module ``layers.1``), or any of `more`.
        more: additional names by index of the instruction, such as names of the compiler's nodes.

    Raises:
        InputError: a pattern matches nothing. The error lists the names.
    """
    selected: dict[int, InstructionInfo] = {}
    for pattern in patterns or ["*"]:
        matching = [
            instruction
            for instruction in method.instructions
            if _matches(pattern, instruction, (more or {}).get(instruction.index, ()))
        ]
        if not matching:
            known = [
                name
                for instruction in method.instructions
                for name in names_of(instruction, (more or {}).get(instruction.index, ()))[1:]
            ]
            raise InputError(
                f"no instruction of method {method.name!r} matches {pattern!r}",
                where=[", ".join(list(dict.fromkeys(known))[:24])],
                hints=[
                    "use an index or range, an operator, a line of the model, or a module path, with * and ?"
                ],
            )
        selected.update((instruction.index, instruction) for instruction in matching)
    return [selected[index] for index in sorted(selected)]


def _matches(pattern: str, info: InstructionInfo, more: Iterable[str]) -> bool:
    numbers = re.fullmatch(r"(\d+)(?:-(\d+))?", pattern)
    if numbers:
        return int(numbers[1]) <= info.index <= int(numbers[2] or numbers[1])
    module = pattern.removesuffix(".*")
    return any(fnmatch.fnmatchcase(name, pattern) or name == module for name in names_of(info, more)[1:])


def intermediates(
    method: Method,
    info: MethodInfo,
    inputs: Sequence[Any],
    observer: Callable[[Value], None],
    instructions: Collection[InstructionInfo] = (),
) -> list[Any]:
    """Runs a method and calls `observer` with each value that the instructions write.

    Args:
        method: a method loaded with ``tracing=True``.
        info: its description.
        inputs: inputs of `Method.execute`.
        observer: function that accepts a `Value`.
        instructions: the instructions to observe; all if empty.

    Returns:
        The outputs of the method; complex outputs as their real view.

    Raises:
        InputError, ExecutionError: as for `Method.execute`.
    """
    places = {}
    for instruction in instructions or info.instructions:
        chain = max(number for number, start in enumerate(info.chains) if start <= instruction.index)
        places[chain, instruction.index - info.chains[chain]] = instruction
    last: list[Any] = [None, 0]

    def take(intermediate: Intermediate) -> None:
        key = (intermediate.step, intermediate.in_delegate)
        last[:] = [key, last[1] + 1 if last[0] == key else 0]
        instruction = places[intermediate.chain, intermediate.instruction]
        part = (-1 if intermediate.part is None else intermediate.part) if intermediate.in_delegate else None
        observer(
            Value(
                instruction.index,
                instruction,
                last[1],
                intermediate.step,
                part,
                intermediate.name,
                intermediate.value,
            )
        )

    return method.execute(inputs, take, places, real_view=True)
