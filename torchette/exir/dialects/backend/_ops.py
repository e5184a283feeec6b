# SPDX-License-Identifier: BSD-3-Clause
# A target's operator and the pattern of Edge operators that it stands for come in; an operator goes out that can be
# called, traced and lowered, and from which there is a way back to the pattern.
"""`BackendOpOverload` and `bind_pattern_to_op`, with ExecuTorch's names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload

from torchette.errors import DialectError
from torchette.exir import ops
from torchette.exir.dialects.edge._ops import (
    EdgeOpOverload,
    EdgeOpOverloadPacket,
    edge_operator,
    torch_overload,
)

Pattern = TypeVar("Pattern", bound=Callable[..., Any])

_patterns: dict[OpOverload, Callable[..., Any]] = {}


class BackendOpOverload(EdgeOpOverload):
    """An operator of a target: eagerly it is its pattern, on the device the target's kernel."""

    @property
    def pattern(self) -> Callable[..., Any]:
        """The function of Edge operators that this operator stands for."""
        return _patterns[self._torch]

    @staticmethod
    def _named(name: str, overload: str) -> EdgeOpOverload:
        return _backend_operator(torch_overload(name, overload))

    def decomp(self, *args: object, **kwargs: object) -> Any:
        """What the pattern yields; traced, its own operators are seen instead of this one."""
        return self.pattern(*args, **kwargs)


class BackendOpOverloadPacket(EdgeOpOverloadPacket):
    """The overloads of a target's operator."""

    def _wrap(self, op: OpOverload) -> OpOverload:
        if op not in _patterns:
            raise DialectError(
                f"{op} stands for no pattern, so nothing says what it computes",
                hints=[
                    f"@bind_pattern_to_op(library, {op._schema.name!r}) above the function that it stands for"
                ],
                code="no-pattern",
            )
        return _backend_operator(op)


def dialect_operator(op: OpOverload) -> EdgeOpOverload:
    """The operator as a program in the Edge or the backend dialect has it; there is one object for each."""
    return _backend_operator(op) if op in _patterns else edge_operator(op)


@functools.cache
def _backend_operator(op: OpOverload) -> BackendOpOverload:
    return op if isinstance(op, BackendOpOverload) else BackendOpOverload(op)


def bind_pattern_to_op(
    library: torch.library.Library, schema_or_name: str, *, overwrites: Sequence[str] = ()
) -> Callable[[Pattern], Pattern]:
    """Say which pattern of Edge operators an operator of a target stands for.

    The operator is implemented by the pattern, for eager and for tracing, and gets an out variant if it has none.

    Args:
        library: where the operator is declared, or is to be; its namespace is the target's.
        schema_or_name: a schema, which declares the operator, or the name of one that is declared.
        overwrites: arguments in whose bytes the kernel may write its result, if they have its shape and nothing reads them
            later.
    """

    def bind(pattern: Pattern) -> Pattern:
        name = schema_or_name.split("(")[0].strip().rpartition("::")[2]
        packet, _, overload = name.partition(".")
        if "(" in schema_or_name:
            library.define(schema_or_name.strip().rpartition(f"{library.ns}::")[2])
        library.impl(name, pattern, "CompositeExplicitAutograd")
        op = torch_overload(f"{library.ns}::{packet}", overload)
        if ops.out_variant(op) is None:
            ops.declare_out_variant(op)
        _patterns[op] = pattern
        ops.OVERWRITABLE[op] = tuple(overwrites)
        return pattern

    return bind


__all__ = ["BackendOpOverload", "BackendOpOverloadPacket", "bind_pattern_to_op", "dialect_operator"]
