# SPDX-License-Identifier: BSD-3-Clause
# In: the target of a call. Out: whether a graph of a dialect may call it.
"""The call targets that each dialect accepts, and the names of operators for the page of dialects."""

from __future__ import annotations

import inspect
import operator

import torch
from torch._functorch import predispatch
from torch.fx import Node

from torchette.exir import control_flow, ops

aten = torch.ops.aten


def functional(target: object) -> bool:
    """Returns whether the target is a functional operator, or a call that torch.export or Python inserts between
    them."""
    return (
        target is operator.getitem
        or target in EXPORT_CALLS
        or ops.is_symbolic(target)
        or ops.is_higher_order(target)
        or (ops.is_operator(target) and not ops.is_mutating(target))
    )


# Calls that torch.export inserts between operators: modes, tokens and others.
EXPORT_CALLS = frozenset(
    {
        torch._C._set_grad_enabled,
        torch.autocast,
        torch.amp.autocast_mode._enter_autocast,
        torch.amp.autocast_mode._exit_autocast,
        *(
            function for function in vars(predispatch).values() if inspect.isfunction(function)
        ),  # calls of vmap
    }
)


def captured(target: object) -> bool:
    """Returns whether torch.export may yield the target, which includes operators that write to their arguments."""
    return functional(target) or ops.is_operator(target)


def core(target: object) -> bool:
    """Returns whether the target is in the core ATen set, or a custom operator."""
    if target is operator.getitem or ops.is_symbolic(target) or control_flow.name(target):
        return True
    if ops.is_delegate(target):
        return True
    if target in TRAINING:
        # The check "train-mode" reports these targets with a better message.
        return True
    if not ops.is_operator(target) or ops.is_mutating(target):
        return False
    return ops.is_core(target) or target.namespace not in ("aten", "prims", "prim")


# Operators of layers that behave differently in training.
TRAINING = frozenset(
    {
        aten.native_dropout.default, aten.rrelu_with_noise_functional.default, aten.bernoulli.p,
    }
)  # fmt: skip


def edge(target: object) -> bool:
    """Returns whether the target is a core operator other than a view, or an additional operator of edge."""
    if ops.is_symbolic(target):
        return target not in ops.ASSERTIONS or target == ops.assert_scalar
    if ops.is_operator(target) and not ops.is_mutating(target) and target.namespace == "aten":
        return not ops.is_view(target) and (ops.is_core(target) or is_extra(target))
    return core(target)


def is_extra(op: torch._ops.OpOverload) -> bool:
    """Returns whether edge accepts the operator in addition to the core set."""
    # Edge has copies instead of views.
    return op in ops.EXTRAS or ops.is_copying(op)


def executable(target: object) -> bool:
    """Returns whether the target becomes an instruction, a value or an alias."""
    return (
        target is operator.getitem
        or (ops.is_symbolic(target) and edge(target))
        or control_flow.name(target) in ("cond", "while_loop")
        or ops.is_delegate(target)
        or ops.is_out_variant(target)
        or target in ALIASES
        or target == ops.copy_index
    )


# The operators of aliases, which need no instruction.
ALIASES = frozenset({aten.view_copy.default, aten.select_copy.int, aten.slice_copy.Tensor})


def core_operators() -> list[str]:
    """Returns the names of torch's core ATen operators, such as `aten::add.Tensor`."""
    return [operator_name(op) for op in ops.all_aten() if ops.is_core(op) and not ops.is_mutating(op)]


def edge_extras() -> list[str]:
    """Returns the names of the operators that edge accepts in addition to the core operators."""
    return [operator_name(op) for op in ops.all_aten() if is_extra(op) and not ops.is_core(op)]


def operator_name(op: torch._ops.OpOverload) -> str:
    """Returns the name of an operator, such as `aten::add.Tensor`."""
    return ".".join(part for part in (op._schema.name, op._schema.overload_name) if part)


def target_text(node: Node) -> str:
    """Returns the name of a call's target for messages."""
    target = node.target
    return str(target) if ops.is_operator(target) else getattr(target, "__name__", str(target))
