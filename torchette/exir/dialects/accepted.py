# SPDX-License-Identifier: BSD-3-Clause
# Which functions a graph of each dialect may call. The target of a call comes in, yes or no goes out.
"""What each dialect accepts, and the names of the operators that the page of dialects lists."""

from __future__ import annotations

import inspect
import operator

import torch
from torch._functorch import predispatch
from torch.fx import Node

from torchette.exir import control_flow, ops

aten = torch.ops.aten


def functional(target: object) -> bool:
    """Operators that update nothing, and what torch.export and Python put between them."""
    return (
        target is operator.getitem
        or target in EXPORT_CALLS
        or ops.is_symbolic(target)
        or ops.is_higher_order(target)
        or (ops.is_operator(target) and not ops.is_mutating(target))
    )


# What torch.export itself puts between the operators: modes, tokens and the like.
EXPORT_CALLS = frozenset(
    {
        torch._C._set_grad_enabled,
        torch.autocast,
        torch.amp.autocast_mode._enter_autocast,
        torch.amp.autocast_mode._exit_autocast,
        *(function for function in vars(predispatch).values() if inspect.isfunction(function)),  # of vmap
    }
)


def captured(target: object) -> bool:
    """What torch.export yields: also operators that write to their arguments, in place or with `out=`."""
    return functional(target) or ops.is_operator(target)


def core(target: object) -> bool:
    """The core ATen set, and custom operators."""
    if target is operator.getitem or ops.is_symbolic(target) or control_flow.name(target):
        return True
    if ops.is_delegate(target):
        return True
    if target in TRAINING:
        # The check "train-mode" says better what is wrong with it.
        return True
    if not ops.is_operator(target) or ops.is_mutating(target):
        return False
    return ops.is_core(target) or target.namespace not in ("aten", "prims", "prim")


# What layers become whose behaviour in training differs from that in use.
TRAINING = frozenset(
    {
        aten.native_dropout.default, aten.rrelu_with_noise_functional.default, aten.bernoulli.p,
    }
)  # fmt: skip


def edge(target: object) -> bool:
    """The core set without views, and the few operators that edge has besides."""
    if ops.is_symbolic(target):
        return target not in ops.ASSERTIONS or target == ops.assert_scalar
    if ops.is_operator(target) and not ops.is_mutating(target) and target.namespace == "aten":
        return not ops.is_view(target) and (ops.is_core(target) or is_extra(target))
    return core(target)


def is_extra(op: torch._ops.OpOverload) -> bool:
    """An operator that edge has besides the core set."""
    # Copies stand for views, which edge does not have.
    return op in ops.EXTRAS or ops.is_copying(op)


def executable(target: object) -> bool:
    """What becomes an instruction, a value or an alias."""
    return (
        target is operator.getitem
        or (ops.is_symbolic(target) and edge(target))
        or control_flow.name(target) in ("cond", "while_loop")
        or ops.is_delegate(target)
        or ops.is_out_variant(target)
        or target in ALIASES
        or target == ops.copy_index
    )


# What an alias may be spelled as; no instruction is made for it.
ALIASES = frozenset({aten.view_copy.default, aten.select_copy.int, aten.slice_copy.Tensor})


def core_operators() -> list[str]:
    """The names of torch's core ATen operators, as `aten::add.Tensor`."""
    return [operator_name(op) for op in ops.all_aten() if ops.is_core(op) and not ops.is_mutating(op)]


def edge_extras() -> list[str]:
    """The names of the operators that edge accepts besides the core ones."""
    return [operator_name(op) for op in ops.all_aten() if is_extra(op) and not ops.is_core(op)]


def operator_name(op: torch._ops.OpOverload) -> str:
    """`aten::add.Tensor`."""
    return ".".join(part for part in (op._schema.name, op._schema.overload_name) if part)


def target_text(node: Node) -> str:
    """What a call calls, for people."""
    target = node.target
    return str(target) if ops.is_operator(target) else getattr(target, "__name__", str(target))
