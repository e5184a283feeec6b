# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/chain.cpp.
"""`cpu::chain`: connected elementwise operators and an optional final reduction, in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchette.backends.engine.operators._library import ACTIVATIONS, LIBRARY
from torchette.exir.dialects._ops import bind_pattern_to_op, ops
from torchette.schema.engine import CHAIN_FOLDS, CHAIN_OPERATIONS

_aten = ops.edge.aten

# Operation name -> number of operands, function.
OPERATIONS: dict[str, tuple[int, Callable[..., torch.Tensor]]] = {
    **{name: (1, function) for name, function in ACTIVATIONS.items()},
    **{name: (arity, getattr(getattr(_aten, name), overload)) for name, arity, overload in CHAIN_OPERATIONS},
}
# Reduction name -> function of (tensor, dims, keepdim).
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
    """Returns the result of the program's last instruction, optionally reduced over the last dimension.

    Args:
        inputs: float32 tensors.
        conditions: bool tensors. Inputs and conditions together broadcast to the shape of the computation.
        numbers: float32 constants that the program refers to.
        program: space-separated instructions. An instruction is a name of `OPERATIONS` followed by its operands. An
            operand is a letter and an index: into the inputs (i), the conditions (c), the constants (n), or the results
            of earlier instructions (v). "sigmoid i0 mul i0 v0 mul v1 i1" is silu(i0) i1.
        fold: a name of `_FOLDS`, or "none".
        keepdim: whether the reduced dimension stays, with size 1.
    """
    scalars = [_aten.full.default([], float(one), dtype=torch.float32) for one in numbers]
    values: dict[str, Any] = {
        f"{letter}{index}": one
        for letter, operands in (("i", inputs), ("c", conditions), ("n", scalars))
        for index, one in enumerate(operands)
    }
    words = iter(program.split())
    result = None
    for count, name in enumerate(words):
        arity, function = OPERATIONS[name]
        result = values[f"v{count}"] = function(*[values[next(words)] for _ in range(arity)])
    assert result is not None, "a program has at least one instruction"
    return result if fold == "none" else _FOLDS[fold](result, [-1], keepdim)
