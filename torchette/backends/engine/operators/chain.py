# SPDX-License-Identifier: BSD-3-Clause
# Kernel: torchette/kernels/engine/chain.cpp.
"""`cpu::chain`: connected elementwise operators, and the fold that ends them, in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchette.backends.engine.operators._library import ACTIVATIONS, LIBRARY
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

_aten = ops.edge.aten

# Name of an operation in a program -> how many operands it has, and what it computes. C++: kernels/engine/chain.cpp.
OPERATIONS: dict[str, tuple[int, Callable[..., torch.Tensor]]] = {
    **{name: (1, function) for name, function in ACTIVATIONS.items()},
    **{
        name: (1, getattr(_aten, name).default)
        for name in ("abs", "erf", "exp", "expm1", "log", "log1p", "logical_not", "neg", "reciprocal", "rsqrt", "sqrt")
    },
    **{name: (2, getattr(_aten, name).Tensor) for name in ("add", "div", "eq", "ge", "gt", "le", "lt", "mul", "ne", "sub")},
    **{name: (2, getattr(_aten, name).default) for name in ("logical_and", "logical_or", "maximum", "minimum")},
    "where": (3, _aten.where.self),
}  # fmt: skip

_FOLDS: dict[str, Callable[[torch.Tensor, bool], torch.Tensor]] = {
    "none": lambda x, keepdim: x,
    "sum": lambda x, keepdim: _aten.sum.dim_IntList(x, [-1], keepdim),
    "mean": lambda x, keepdim: _aten.mean.dim(x, [-1], keepdim),
    "max": lambda x, keepdim: _aten.amax.default(x, [-1], keepdim),
}


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
        fold: a name of `_FOLDS`.
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
    return _FOLDS[fold](result, keepdim)
