# SPDX-License-Identifier: BSD-3-Clause
# In: a node of a graph. Out: its target, its owning module or one of its arguments, checked against the expected type.
# torch types an argument as a union of every type that a graph can store.
"""Typed access to the parts of a node. The functions raise TypeError if the part has another type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

T = TypeVar("T")


def checked(value: object, kind: type[T]) -> T:
    """Returns the value. Raises TypeError if it is not an instance of `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}: {value}")
    return value


def node_arg(node: Node, index: int = 0) -> Node:
    """Returns argument `index`, which must be a node."""
    return checked(node.args[index], Node)


def optional_node_arg(node: Node, index: int) -> Node | None:
    """Returns argument `index`, which must be a node or None."""
    value = node.args[index]
    return None if value is None else checked(value, Node)


def list_arg(node: Node, index: int = 0) -> Sequence[torch.fx.node.Argument]:
    """Returns argument `index`, which must be a list or tuple."""
    value = node.args[index]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{node}: argument {index} is not a list: {value}")
    return value


def nodes_arg(node: Node, index: int = 0) -> list[Node]:
    """Returns argument `index`, which must be a list of nodes."""
    return [checked(item, Node) for item in list_arg(node, index)]


def int_arg(node: Node, index: int) -> int:
    """Returns argument `index`, which must be an integer."""
    return checked(node.args[index], int)


def ints_arg(node: Node, index: int) -> list[int]:
    """Returns argument `index`, which must be a list of integers."""
    return [checked(item, int) for item in list_arg(node, index)]


def number_arg(node: Node, index: int) -> int | float:
    """Returns argument `index`, which must be an integer or a float."""
    value = node.args[index]
    if not isinstance(value, (int, float)):
        raise TypeError(f"{node}: argument {index} is not a number: {value}")
    return value


def overload(node: Node) -> OpOverload:
    """Returns the operator overload that the node calls."""
    return checked(node.target, OpOverload)


def function(node: Node) -> Callable[..., Any]:
    """Returns the function that the node calls: an operator, or a Python function on scalars."""
    if not callable(node.target):
        raise TypeError(f"{node} does not call a function: its target is {node.target}")
    return node.target


def owner(node: Node) -> GraphModule:
    """Returns the module whose graph contains the node."""
    return checked(node.graph.owning_module, GraphModule)
