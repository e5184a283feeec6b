# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/chain.cpp.
"""`cpu::chain`: connected elementwise operators, and the fold that ends them, in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchette.backends.engine.operators._library import ACTIVATIONS, LIBRARY
from torchette.exir.dialects._ops import bind_pattern_to_op, ops
from torchette.schema.engine import CHAIN_FOLDS, CHAIN_OPERATIONS

_aten = ops.edge.aten

# Name of an operation in a program -> the number of its operands, and its function.
OPERATIONS: dict[str, tuple[int, Callable[..., torch.Tensor]]] = {
    **{name: (1, function) for name, function in ACTIVATIONS.items()},
    **{name: (arity, getattr(getattr(_aten, name), overload)) for name, arity, overload in CHAIN_OPERATIONS},
}
# Name of a fold -> its function of a tensor, dimensions and keepdim.
_FOLDS = {name: getattr(getattr(_aten, operator), overload) for name, operator, overload in CHAIN_FOLDS}


@bind_pattern_to_op(
    LIBRARY,
    "chain(Tensor[] inputs, Tensor[] conditions, float[] numbers, str program, str fold, bool keepdim) -> Tensor",
    overwrites=("inputs",),
)
def chain(
    inputs: Sequence[torch.Tensor],
    conditions: Sequence[torch.Tensor],
    numbers: Sequence[float],
    program: str,
    fold: str,
    keepdim: bool,
) -> torch.Tensor:
    """The result of a program's last instruction, or that folded over the last dimension.

    Args:
        inputs, conditions: float32, and bool; together they broadcast to the shape in which all is computed.
        numbers: what the program refers to as float32 numbers.
        program: instructions, separated by spaces as their words are: a name of `OPERATIONS` and its operands. An operand
            is a letter and a place: in the inputs (i), conditions (c), numbers (n), or instructions before it (v).
            "sigmoid i0 mul i0 v0 mul v1 i1" is silu(i0) i1.
        fold: a name of `_FOLDS`, or "none".
        keepdim: the folded dimension stays, of size 1.
    """
    scalars = [_aten.full.default([], float(one), dtype=torch.float32) for one in numbers]
    values: dict[str, Any] = {
        f"{letter}{place}": one
        for letter, given in (("i", inputs), ("c", conditions), ("n", scalars))
        for place, one in enumerate(given)
    }
    words = iter(program.split())
    result = None
    for count, name in enumerate(words):
        arity, function = OPERATIONS[name]
        result = values[f"v{count}"] = function(*[values[next(words)] for _ in range(arity)])
    assert result is not None, "a program has an instruction"
    return result if fold == "none" else _FOLDS[fold](result, [-1], keepdim)
