# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's names of operators: `ops.edge.aten.add.Tensor`, `ops.backend.tgt.linear_relu.default`. Also the
# conversion of a program between Edge operators, which users see, and torch's operators, which the compiler uses.
"""`ops`, `bind_pattern_to_op`, and the conversion of programs to and from Edge operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import ops as properties
from torchette.exir.dialects.backend._ops import (
    BackendOpOverload,
    BackendOpOverloadPacket,
    bind_pattern_to_op,
    dialect_operator,
)
from torchette.exir.dialects.edge._ops import (
    EdgeOpOverload,
    EdgeOpOverloadPacket,
    torch_operator,
)
from torchette.exir.graph import calls, sync_signature


class _Namespace:
    """One namespace of operators, such as `ops.edge.aten`."""

    def __init__(self, name: str, wrap: Callable[[OpOverloadPacket], Any]) -> None:
        self._name, self._wrap = name, wrap

    def __getattr__(self, name: str) -> Any:
        packet = getattr(getattr(torch.ops, self._name), name)
        if not isinstance(packet, OpOverloadPacket):
            return packet
        self.__dict__[name] = self._wrap(packet)
        return self.__dict__[name]

    def __repr__(self) -> str:
        return f"<operators of {self._name}>"


class _Dialect:
    """All operators in the form of one dialect."""

    def __init__(self, name: str, wrap: Callable[[OpOverloadPacket], Any]) -> None:
        self._name, self._wrap = name, wrap

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # ExecuTorch's dim-order operators, under their namespace in ExecuTorch's files.
        known = {theirs: ours for ours, theirs in properties.FILE_NAMESPACES.items()}
        self.__dict__[name] = _Namespace(known.get(name, name), self._wrap)
        return self.__dict__[name]

    def __repr__(self) -> str:
        return f"<operators of the {self._name} dialect>"


class _Operators:
    """`ops.edge` and `ops.backend`. Any other name is a namespace of torch."""

    edge = _Dialect("edge", EdgeOpOverloadPacket)
    backend = _Dialect("backend", BackendOpOverloadPacket)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.ops, name)

    def __repr__(self) -> str:
        return "<operators: edge, backend, and torch's own>"


ops = _Operators()


def to_edge_operators(program: ExportedProgram, named: bool = False) -> ExportedProgram:
    """Replaces torch's operators in a program by Edge operators, in place.

    Args:
        named: rename calls to ExecuTorch's names, such as `aten_add_tensor`. Calls are also renamed if the program
            already contains such names.
    """
    named = named or any(node.name.startswith(_name(node)) for node in calls(program))
    for node in calls(program):
        if isinstance(node.target, OpOverload) and not isinstance(node.target, EdgeOpOverload):
            node.target = dialect_operator(node.target)
        if named and isinstance(node.target, EdgeOpOverload) and not node.name.startswith(_name(node)):
            node._rename(_name(node))
    if named:
        sync_signature(program)
        program.graph_module.recompile()
    return program


def _name(node: Node) -> str:
    namespace, _, qualified = str(node.target).partition(".")
    return f"{properties.FILE_NAMESPACES.get(namespace, namespace)}_{qualified}".replace(".", "_").lower()


def to_torch_operators(program: ExportedProgram) -> ExportedProgram:
    """Replaces Edge operators in a program by torch's operators, in place."""
    for node in calls(program):
        if isinstance(node.target, EdgeOpOverload):
            node.target = torch_operator(node.target)
    return program


__all__ = [
    "BackendOpOverload",
    "EdgeOpOverload",
    "bind_pattern_to_op",
    "ops",
    "to_edge_operators",
    "to_torch_operators",
]
