# SPDX-License-Identifier: BSD-3-Clause
# A method, inputs and a choice of instructions come in; what these have written goes out, one value after the other, so that
# memory stays bounded. Needs only numpy.
"""Intermediate values of a method: `chosen` for the instructions that a text names, `intermediates` for what they write."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torchette.devtools.inspect import InstructionInfo, MethodInfo, source_line
from torchette.errors import InputError
from torchette.runtime import Intermediate, Method


class Value(NamedTuple):
    """What an instruction has written.

    Attributes:
        instruction: as `torchette inspect` numbers them; `info` describes it.
        output: which of the values that it writes; among those of a delegate that its backend shows: which of them.
        step: how many instructions ran before it; turns of a loop count.
        part: the backend's number of the value inside of the delegate; None for what the instruction itself writes.
        name: the backend's name of it.
        value: an array or tensor, a number, or a list of these.
    """

    instruction: int
    info: InstructionInfo
    output: int
    step: int
    part: int | None
    name: str
    value: Any


def names_of(info: InstructionInfo, more: Iterable[str] = ()) -> list[str]:
    """What an instruction can be chosen by: its number, operator, line, and module path or other names where known."""
    line = source_line(info.source)
    module = getattr(info, "module", "")
    return [
        text for text in (str(info.index), info.op, info.op.partition("::")[2], line, module, *more) if text
    ]


def chosen(
    method: MethodInfo, patterns: Sequence[str], more: Mapping[int, Sequence[str]] | None = None
) -> list[InstructionInfo]:
    """The instructions that match any of the patterns; all of them where there are none.

    Args:
        patterns: a number or a range of them (``3``, ``3-9``), or text with ``*`` and ``?`` for an operator
            (``aten::mm*``), a line of the model (``model.py:12``), a module path (``layers.1.*``, which is the module
            ``layers.1``, too), or any of `more`.
        more: further names by instruction, such as those of the compiler's nodes.

    Raises:
        InputError: nothing matches; lists what there is.
    """
    found: dict[int, InstructionInfo] = {}
    for pattern in patterns or ["*"]:
        matching = [it for it in method.instructions if _matches(pattern, it, (more or {}).get(it.index, ()))]
        if not matching:
            known = [
                name
                for it in method.instructions
                for name in names_of(it, (more or {}).get(it.index, ()))[1:]
            ]
            raise InputError(
                f"no instruction of method {method.name!r} matches {pattern!r}",
                where=[", ".join(list(dict.fromkeys(known))[:24])],
                hints=[
                    "a number or range, an operator, a line of the model, or the path of a module, with * and ?"
                ],
            )
        found.update((it.index, it) for it in matching)
    return [found[index] for index in sorted(found)]


def _matches(pattern: str, info: InstructionInfo, more: Iterable[str]) -> bool:
    numbers = re.fullmatch(r"(\d+)(?:-(\d+))?", pattern)
    if numbers:
        return int(numbers[1]) <= info.index <= int(numbers[2] or numbers[1])
    whole = pattern.removesuffix(".*")
    return any(fnmatch.fnmatchcase(name, pattern) or name == whole for name in names_of(info, more)[1:])


def intermediates(
    method: Method,
    info: MethodInfo,
    inputs: Sequence[Any],
    observer: Callable[[Value], None],
    instructions: Collection[InstructionInfo] = (),
) -> list[Any]:
    """Runs a method that was loaded with ``tracing=True``, and calls `observer` with each value that one of these
    instructions, or any, writes. Returns the outputs. Raises as `Method.execute` does."""
    places = {}
    for it in instructions or info.instructions:
        chain = max(number for number, start in enumerate(info.chains) if start <= it.index)
        places[chain, it.index - info.chains[chain]] = it
    last: list[Any] = [None, 0]

    def take(seen: Intermediate) -> None:
        key = (seen.step, seen.in_delegate)
        last[:] = [key, last[1] + 1 if last[0] == key else 0]
        it = places[seen.chain, seen.instruction]
        part = (-1 if seen.part is None else seen.part) if seen.in_delegate else None
        observer(Value(it.index, it, last[1], seen.step, part, seen.name, seen.value))

    return method.execute(inputs, take, places)
