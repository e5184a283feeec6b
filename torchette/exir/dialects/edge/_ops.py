# SPDX-License-Identifier: BSD-3-Clause
# An operator of torch comes in; the same operator as the Edge dialect has it goes out, one object per overload: it says
# which dtypes it takes. It equals torch's, so a comparison with either spelling holds.
"""`EdgeOpOverload` and its schema, with ExecuTorch's names."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from torchette.exir import ops
from torchette.exir.dialects.edge.dtypes import FunctionDtypeConstraint, constraint


class EdgeDialectArgument:
    """An argument or result of a schema, with the dtypes that it may have besides what torch says of it.

    Attributes:
        allowed_types: the dtypes that some call of the operator may have here; empty for what is not a tensor.
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
    """Torch's schema of an operator, and the combinations of dtypes that its tensors may have.

    Attributes:
        dtype_constraint: the combinations; None for operators that nothing is known of, such as custom ones.
    """

    def __init__(self, schema: torch.FunctionSchema) -> None:
        self.schema = schema

    @functools.cached_property
    def dtype_constraint(self) -> FunctionDtypeConstraint | None:
        """Which dtypes go together."""
        return constraint(self.schema)

    @functools.cached_property
    def arguments(self) -> list[EdgeDialectArgument]:
        """The arguments in torch's order."""
        return [EdgeDialectArgument(a, self._allowed(a.name)) for a in self.schema.arguments]

    @functools.cached_property
    def returns(self) -> list[EdgeDialectArgument]:
        """The results in torch's order."""
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
    """Whether this process has Torchette by ExecuTorch's name (torchette.compat.alias_executorch)."""
    return sys.modules.get("executorch") is sys.modules["torchette"]


class EdgeOpOverload(OpOverload):
    """An operator of the Edge dialect: called, hashed and compared as torch's own, of which it is the wrapper.

    `node.target == torch.ops.aten.add.Tensor` and `node.target == ops.edge.aten.add.Tensor` hold for the same nodes,
    and so do lookups in sets and dicts. `is` holds only between Edge operators, of which there is one per overload.
    """

    def __init__(self, op: OpOverload) -> None:
        # Torch's own object keeps its state in its attributes; sharing them keeps both in step.
        self.__dict__.update(op.__dict__)
        self._torch = op
        self._schema = EdgeDialectFunctionSchema(op._schema)  # type: ignore[assignment]
        # In Edge an operator's name has the namespace, `aten.add.Tensor`: backends write it into their bytes.
        # Where ExecuTorch's root stands for ours, graphs print it as theirs do: executorch_exir_dialects_edge__ops_aten_add_Tensor.
        self.__name__, self.__module__ = str(op), EXECUTORCH if is_executorch() else "torch._ops"

    def to_out_variant(self) -> OpOverload:
        """The overload that writes its results to tensors that it is given.

        Raises:
            MissingOutVariantError: there is none; shows how to declare it.
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
    """The overloads of an operator: `ops.edge.aten.add` has `Tensor` and `Scalar`."""

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
        """Torch's own."""
        return self._packet

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._packet(*args, **kwargs)

    def __str__(self) -> str:
        return str(self._packet)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"


@functools.cache
def edge_operator(op: OpOverload) -> EdgeOpOverload:
    """The Edge operator of one of torch's; there is one object for each."""
    return op if isinstance(op, EdgeOpOverload) else EdgeOpOverload(op)


def torch_overload(name: str, overload: str) -> OpOverload:
    """Torch's operator of this name, as `aten::add`, and overload."""
    namespace, _, name = name.partition("::")
    result: OpOverload = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    return result


def torch_operator(op: object) -> Any:
    """Torch's own operator of an Edge or backend one; anything else is returned as it is."""
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
