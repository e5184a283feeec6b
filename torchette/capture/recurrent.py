# SPDX-License-Identifier: BSD-3-Clause
# torch computes the result shapes of lstm, gru and rnn by running them step by step on fake tensors. This takes seconds
# per hundred steps and specializes the graph to the number of steps. This file computes the shapes directly.
"""`Recurrent`: captures recurrent layers at a cost that does not depend on the sequence length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch._subclasses import FakeTensor

_KEY = DispatchKey.CompositeImplicitAutograd
_LAYERS = tuple(getattr(torch.ops.aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))


class Recurrent:
    """A context in which lstm, gru and rnn on fake tensors compute only shapes."""

    def __enter__(self) -> Recurrent:
        self._theirs = {op: op.py_kernels.get(_KEY) for op in _LAYERS}
        for op, kernel in self._theirs.items():
            if kernel is not None:
                self._set(op, _shapes_or(kernel))
        return self

    def __exit__(self, *_: object) -> None:
        for op, kernel in self._theirs.items():
            if kernel is not None:
                self._set(op, kernel)

    @staticmethod
    def _set(op: OpOverload, kernel: Callable[..., Any]) -> None:
        op.py_kernels[_KEY] = kernel
        op._dispatch_cache.clear()


def _shapes_or(kernel: Callable[..., Any]) -> Any:
    def layer(
        x: torch.Tensor,
        state: torch.Tensor | Sequence[torch.Tensor],
        params: Sequence[torch.Tensor],
        *how: object,
    ) -> Any:
        if not isinstance(x, FakeTensor):
            return kernel(x, state, params, *how)
        bidirectional = how[-2]
        states = [state] if isinstance(state, torch.Tensor) else state
        width = states[0].shape[2] * (2 if bidirectional else 1)
        return (x.new_empty([*x.shape[:2], width]), *map(torch.empty_like, states))

    return layer
