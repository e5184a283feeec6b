# SPDX-License-Identifier: BSD-3-Clause
# In: an operator of torch. Out: the same operator in the Edge dialect, with its supported dtypes; one object per
# overload. It is equal to torch's operator, so that comparisons with both work.
"""`EdgeOpOverload` and its schema, under ExecuTorch's names."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from torchette.exir import ops
from torchette.exir.dialects.edge.dtypes import FunctionDtypeConstraint, constraint


class EdgeDialectArgument:
    """An argument or result of a schema, with its supported dtypes.

    Attributes:
        allowed_types: the dtypes that a call of the operator may have here; empty if it is not a tensor.
    """

    def __init__(self, argument: object, allowed_types: frozenset[torch.dtype]) -> None:
        self.argument = argument
        self.allowed_types = allowed_types

    def __getattr__(self, name: str) -> Any:
        if name == "argument":
            raise AttributeError(name)
        return getattr(self.argument, name)

    def __repr__(self) -> str:
        return repr(self.argument)


class EdgeDialectFunctionSchema:
    """Torch's schema of an operator, and the supported combinations of dtypes.

    Attributes:
        dtype_constraint: the combinations; None if they are unknown, as for custom operators.
    """

    def __init__(self, schema: torch.FunctionSchema) -> None:
        self.schema = schema

    @functools.cached_property
    def dtype_constraint(self) -> FunctionDtypeConstraint | None:
        """The supported combinations of dtypes."""
        return constraint(self.schema)

    @functools.cached_property
    def arguments(self) -> list[EdgeDialectArgument]:
        """The arguments, in the order of torch's schema."""
        return [EdgeDialectArgument(a, self._allowed(a.name)) for a in self.schema.arguments]

    @functools.cached_property
    def returns(self) -> list[EdgeDialectArgument]:
        """The results, in the order of torch's schema."""
        return [
            EdgeDialectArgument(r, self._allowed(f"__ret_{i}")) for i, r in enumerate(self.schema.returns)
        ]

    def _allowed(self, name: str) -> frozenset[torch.dtype]:
        return self.dtype_constraint[name] if self.dtype_constraint is not None else frozenset()

    def __getattr__(self, name: str) -> Any:
        if name == "schema":
            raise AttributeError(name)
        return getattr(self.schema, name)

    def __eq__(self, other: object) -> bool:
        return self.schema == getattr(other, "schema", other)

    def __hash__(self) -> int:
        return hash(str(self.schema))

    def __str__(self) -> str:
        return str(self.schema)

    def __repr__(self) -> str:
        return repr(self.schema)


EXECUTORCH = "executorch.exir.dialects.edge._ops"


def is_executorch() -> bool:
    """Returns whether Torchette is imported as ExecuTorch in this process (torchette.compat.alias_executorch)."""
    return sys.modules.get("executorch") is sys.modules["torchette"]


class EdgeOpOverload(OpOverload):
    """An operator of the Edge dialect, which wraps torch's operator. Calls, hash and equality are those of torch's
    operator.

    `node.target == torch.ops.aten.add.Tensor` and `node.target == ops.edge.aten.add.Tensor` are equivalent, also for
    lookups in sets and dicts. `is` compares only Edge operators, of which there is one per overload.
    """

    def __init__(self, op: OpOverload) -> None:
        # Share the attributes of torch's object, so that state changes affect both.
        self.__dict__.update(op.__dict__)
        self._torch = op
        self._schema = EdgeDialectFunctionSchema(op._schema)  # type: ignore[assignment]
        # The name of an Edge operator includes the namespace, `aten.add.Tensor`, because backends write it into their
        # bytes. If Torchette is imported as ExecuTorch, graphs print its name as
        # executorch_exir_dialects_edge__ops_aten_add_Tensor.
        self.__name__, self.__module__ = str(op), EXECUTORCH if is_executorch() else "torch._ops"

    def to_out_variant(self) -> OpOverload:
        """Returns the overload that writes its results to tensors of the caller.

        Raises:
            MissingOutVariantError: the overload does not exist. The error shows how to declare it.
        """
        out = ops.out_variant(self._torch)
        if out is None:
            raise ops.missing_out_variants([(self._torch, "EdgeOpOverload.to_out_variant()")])
        return out

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._torch

    __hash__ = OpOverload.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._named, (self._torch._schema.name, self._torch._overloadname)

    @staticmethod
    def _named(name: str, overload: str) -> EdgeOpOverload:
        return edge_operator(torch_overload(name, overload))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"


class EdgeOpOverloadPacket:
    """The overloads of an operator. `ops.edge.aten.add` has `Tensor` and `Scalar`."""

    def __init__(self, packet: OpOverloadPacket) -> None:
        self._packet = packet
        self.__name__ = packet.__name__

    def _wrap(self, op: OpOverload) -> OpOverload:
        return edge_operator(op)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_packet":
            raise AttributeError(name)
        value = getattr(self._packet, name)
        if not isinstance(value, OpOverload):
            return value
        value = self._wrap(value)
        self.__dict__[name] = value
        return value

    @property
    def op(self) -> OpOverloadPacket:
        """The operator packet of torch."""
        return self._packet

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._packet(*args, **kwargs)

    def __str__(self) -> str:
        return str(self._packet)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"


@functools.cache
def edge_operator(op: OpOverload) -> EdgeOpOverload:
    """Returns the Edge operator of an operator of torch. There is one object for each operator."""
    return op if isinstance(op, EdgeOpOverload) else EdgeOpOverload(op)


def torch_overload(name: str, overload: str) -> OpOverload:
    """Returns torch's operator with this name, such as `aten::add`, and overload."""
    namespace, _, name = name.partition("::")
    result: OpOverload = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    return result


def torch_operator(op: object) -> Any:
    """Returns torch's operator of an Edge or backend operator. Returns any other object unchanged."""
    return op._torch if isinstance(op, EdgeOpOverload) else op


__all__ = [
    "EdgeDialectArgument",
    "EdgeDialectFunctionSchema",
    "EdgeOpOverload",
    "EdgeOpOverloadPacket",
    "edge_operator",
    "torch_operator",
    "torch_overload",
]
