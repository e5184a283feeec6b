# SPDX-License-Identifier: BSD-3-Clause
# The modules of this package register their operators here. Partitioner and preprocess read the same table, so every node that is
# claimed can be lowered.
"""The table of operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchette.schema import xnnpack

aten = torch.ops.aten


class Refused(Exception):
    """The reason why XNNPACK cannot run a node."""


Check = Callable[[Node, Callable[[Node], bool]], None]


Emit = Callable[[Any, Node], None]  # the first parameter is a `Lowering`, which imports this table


@dataclass(frozen=True)
class Operator:
    """The two functions of an operator.

    Attributes:
        check: `check(node, is_constant)` raises `Refused` if XNNPACK cannot run the node.
        emit: `emit(lowering, node)` adds nodes to the payload and sets the node's value.
    """

    check: Check
    emit: Emit


OPERATORS: dict[Any, Operator] = {}


def register(*targets: object, check: Check | None = None) -> Callable[[Emit], Emit]:
    """Adds operators to the table; the decorated function lowers them."""

    def decorate(emit: Emit) -> Emit:
        for target in targets:
            OPERATORS[target] = Operator(check or (lambda node, is_constant: None), emit)
        return emit

    return decorate


UNARY: dict[Any, str] = {getattr(aten, row.name).default: row.kind for row in xnnpack.UNARY}
"""Elementwise operator with one operand -> kind of node."""
BINARY: dict[Any, str] = {getattr(getattr(aten, row.name), row.overload): row.kind for row in xnnpack.BINARY}
"""Elementwise operator with two operands -> kind of node."""


INDEXED = {aten.index.Tensor}
