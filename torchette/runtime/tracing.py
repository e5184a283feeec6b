# SPDX-License-Identifier: BSD-3-Clause
# The records of a traced method: times and values.

from __future__ import annotations

from typing import Any, NamedTuple


class Event(NamedTuple):
    """A timed event of a method. It is nested in the events that begin before it and end after it.

    Example:
        >>> method = Runtime.get().load_program("model.pte").load_method("forward", tracing=True)
        >>> outputs = method.execute([numpy.ones((1, 4), "float32")])
        >>> times = {event.name: event.end - event.begin for event in method.take_events()}
    """

    block: int
    """0 for loading; executions are counted from 1."""
    name: str
    """The name of a kernel or of a part of a backend, ``DELEGATE_CALL``, ``JF_CALL``, ``MOVE_CALL``, ``FREE_CALL``,
    ``Method::execute`` or ``Method::init``."""
    chain: int | None
    """The chain of the instruction; None for an event of the whole method."""
    instruction: int | None
    """The index of the instruction in the chain."""
    in_delegate: bool
    """Whether a backend reported it, as a part of the delegate call."""
    part: int | None
    """The identifier of the part in the backend: for XNNPACK the debug handle of the node."""
    begin: int
    """Nanoseconds of a monotonic clock."""
    end: int
    """Nanoseconds of the same clock."""


class Intermediate(NamedTuple):
    """A value that an instruction of a method has just written.

    Example:
        >>> method = Runtime.get().load_program("model.pte").load_method("forward", tracing=True)
        >>> values = []
        >>> outputs = method.execute([numpy.ones((1, 4), "float32")], values.append)
        >>> values[0].instruction
        0
    """

    chain: int
    """The chain of the instruction."""
    instruction: int
    """The index of the instruction in the chain."""
    step: int
    """The number of instructions before it in this execution; each iteration of a loop counts."""
    in_delegate: bool
    """Whether a backend reported it, as a value inside the delegate call."""
    part: int | None
    """The identifier of the value in the backend."""
    name: str
    """The name of the value in the backend; empty for the value of an instruction."""
    value: Any
    """A copy of the value: an array or tensor as `execute` returns it, a scalar, or a list of these."""
