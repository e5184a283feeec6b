# SPDX-License-Identifier: BSD-3-Clause
# Families register their operators here; partitioner and preprocess read it, so what is claimed is what can be lowered.
"""The table of operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

if TYPE_CHECKING:
    from torchette.backends.xnnpack.operators.lowering import Lowering

aten = torch.ops.aten


class Refused(Exception):
    """Why a node stays outside."""


Check = Callable[[Node, Callable[[Node], bool]], None]


Emit = Callable[["Lowering", Node], None]


@dataclass(frozen=True)
class Operator:
    """`check(node, is_constant)` raises `Refused`; `emit(lowering, node)` adds nodes and sets the node's value."""

    check: Check
    emit: Emit


OPERATORS: dict[Any, Operator] = {}


def register(*targets: Any, check: Check | None = None) -> Callable[[Emit], Emit]:
    """Puts operators into the table; the decorated function lowers them."""

    def decorate(emit: Emit) -> Emit:
        for target in targets:
            OPERATORS[target] = Operator(check or (lambda node, is_constant: None), emit)
        return emit

    return decorate


UNARY = {
    aten.abs.default: "XNNAbs", aten.ceil.default: "XNNCeiling", aten.floor.default: "XNNFloor",
    aten.exp.default: "XNNExp", aten.log.default: "XNNLog", aten.neg.default: "XNNNegate",
    aten.rsqrt.default: "XNNReciprocalSquareRoot", aten.sigmoid.default: "XNNSigmoid", aten.sqrt.default: "XNNSquareRoot",
    aten.tanh.default: "XNNTanh", aten.sin.default: "XNNSin", aten.cos.default: "XNNCos",
    aten.hardswish.default: "XNNHardswish",
}  # fmt: skip


PLACED = {aten.index.Tensor}
