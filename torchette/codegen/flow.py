# SPDX-License-Identifier: BSD-3-Clause
# In: instructions with jumps. Out: the same instructions as branches and loops, if they nest. Independent of C++.
"""`structured` converts a list of instructions with jumps to a tree of `Step`, `Branch` and `Loop`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Jump(NamedTuple):
    """Continues at instruction `target` if value `condition` is false, or always if `condition` is None."""

    condition: int | None
    target: int


@dataclass(frozen=True)
class Step:
    """Instruction `index`, which is not a jump."""

    index: int


@dataclass(frozen=True)
class Branch:
    """Runs `then` if value `condition` is true, otherwise `other`."""

    condition: int
    then: tuple[Node, ...]
    other: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Loop:
    """Repeats `body` until a `Leave` is executed."""

    body: tuple[Node, ...]


@dataclass(frozen=True)
class Leave:
    """Leaves the innermost loop, or starts its next iteration (`again`), if value `condition` is false (None:
    always)."""

    condition: int | None
    again: bool = False


Node = Step | Branch | Loop | Leave


class _Irreducible(Exception):
    """A jump that is not part of a branch or loop."""


def structured(code: Sequence[Jump | None]) -> tuple[Node, ...] | None:
    """Returns the instructions as a tree, or None if their jumps do not nest.

    Args:
        code: for each instruction, its jump or None. A jump to len(code) ends the method.
    """
    try:
        return _Reader(code).read(0, len(code), None)
    except _Irreducible:
        return None


class _InnermostLoop(NamedTuple):
    """The innermost loop: the first instruction of an iteration, and the first instruction after the loop."""

    header: int
    after: int


class _Reader:
    def __init__(self, code: Sequence[Jump | None]) -> None:
        self._code = code

    def read(self, start: int, end: int, loop: _InnermostLoop | None) -> tuple[Node, ...]:
        """Reads instructions start..end-1. Each jump becomes a node that continues exactly at its target."""
        nodes: list[Node] = []
        at = start
        while at < end:
            last = self._last_back_jump(at, end)
            if last is not None and (loop is None or at != loop.header or last + 1 != loop.after):
                inside = self.read(at, last + 1, _InnermostLoop(at, last + 1))
                if not (isinstance(inside[-1], Leave) and inside[-1].again and inside[-1].condition is None):
                    inside = (*inside, Leave(None))
                nodes.append(Loop(inside))
                at = last + 1
                continue
            jump = self._code[at]
            if jump is None:
                nodes.append(Step(at))
                at += 1
            elif jump.target == at + 1:
                at += 1
            elif loop is not None and jump.target in loop:
                nodes.append(Leave(jump.condition, again=jump.target == loop.header))
                at += 1
            else:
                branch, at = self._branch(at, jump, end, loop)
                nodes.append(branch)
        return tuple(nodes)

    def _last_back_jump(self, at: int, end: int) -> int | None:
        """Returns the last instruction before `end` that jumps back to `at`, or None."""
        back = [i for i in range(at, end) if (jump := self._code[i]) is not None and jump.target == at]
        return max(back, default=None)

    def _branch(self, at: int, jump: Jump, end: int, loop: _InnermostLoop | None) -> tuple[Branch, int]:
        """Returns the branch that starts with a jump, and the first instruction after it."""
        if jump.condition is None or not at < jump.target <= end:
            raise _Irreducible
        # The first side ends with a jump over the other one.
        over = self._code[jump.target - 1]
        if (
            jump.target - 1 > at
            and over is not None
            and over.condition is None
            and jump.target < over.target <= end
            and (loop is None or over.target not in loop)
        ):
            then = self.read(at + 1, jump.target - 1, loop)
            return Branch(jump.condition, then, self.read(jump.target, over.target, loop)), over.target
        return Branch(jump.condition, self.read(at + 1, jump.target, loop)), jump.target
