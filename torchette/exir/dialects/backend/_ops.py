# SPDX-License-Identifier: BSD-3-Clause
# In: an operator of a target and the pattern of Edge operators that it replaces. Out: an operator that can be called,
# traced, lowered, and converted back to the pattern.
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
    """An operator of a target. Eager mode runs its pattern, the device the target's kernel."""

    @property
    def pattern(self) -> Callable[..., Any]:
        """The function of Edge operators that this operator replaces."""
        return _patterns[self._torch]

    @staticmethod
    def _named(name: str, overload: str) -> EdgeOpOverload:
        return _backend_operator(torch_overload(name, overload))

    def decomp(self, *args: object, **kwargs: object) -> Any:
        """Calls the pattern. A trace records the pattern's operators instead of this operator."""
        return self.pattern(*args, **kwargs)


class BackendOpOverloadPacket(EdgeOpOverloadPacket):
    """The overloads of an operator of a target."""

    def _wrap(self, op: OpOverload) -> OpOverload:
        if op not in _patterns:
            raise DialectError(
                f"{op} has no pattern that defines its computation",
                hints=[
                    f"@bind_pattern_to_op(library, {op._schema.name!r}) above the function that it replaces"
                ],
                code="no-pattern",
            )
        return _backend_operator(op)


def dialect_operator(op: OpOverload) -> EdgeOpOverload:
    """Returns the operator in the form of the Edge or backend dialect. There is one object for each operator."""
    return _backend_operator(op) if op in _patterns else edge_operator(op)


@functools.cache
def _backend_operator(op: OpOverload) -> BackendOpOverload:
    return op if isinstance(op, BackendOpOverload) else BackendOpOverload(op)


def bind_pattern_to_op(
    library: torch.library.Library, schema_or_name: str, *, overwrites: Sequence[str] = ()
) -> Callable[[Pattern], Pattern]:
    """Declares the pattern of Edge operators that an operator of a target replaces.

    The pattern implements the operator in eager mode and for tracing. An operator without an out variant receives one.

    Args:
        library: the library that declares or will declare the operator. Its namespace is that of the target.
        schema_or_name: a schema, which declares the operator, or the name of a declared operator.
        overwrites: names of arguments. The kernel may overwrite their storage with its result if they have its shape
            and are not read later.
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
