# SPDX-License-Identifier: BSD-3-Clause
# A program comes in whose values share what torch knows about sizes with the program that it was copied from; a program
# goes out that knows the same and learns alone. Tracing adds symbols, ranges and guards to that knowledge, so without
# this a program could not be lowered a second time, or not to the same file.
"""`own_sizes`: a copy of a program gets symbols and ranges of its own."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.sym_node import SymNode

from torchette.exir.graph import calls, fake_mode, graph_modules
from torchette.exir.ops import ASSERTIONS, is_higher_order

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, transform_subclass


def own_sizes(program: ExportedProgram) -> ExportedProgram:
    """Let all values of a program, which is edited in place, live in a mode of their own with a copy of what is known
    about sizes."""
    mode = fake_mode(program)
    if mode is not None and _may_learn(program, mode):
        moved = _Moved(mode)
        for module in graph_modules(program):
            for node in module.graph.nodes:
                node.meta = {key: moved.value(value) for key, value in node.meta.items()}
    return program


def _may_learn(program: ExportedProgram, mode: FakeTensorMode) -> bool:
    """Whether there is a symbol, or what makes one when it is traced; in most models there is not."""
    known = mode.shape_env is not None and bool(mode.shape_env.var_to_range)
    return known or any(is_higher_order(node.target) or node.target in ASSERTIONS for node in calls(program))


class _Moved:
    """Values of one mode -> the same in another."""

    def __init__(self, old: FakeTensorMode) -> None:
        self._old_env = old.shape_env
        self._env = None if old.shape_env is None else _copied(old.shape_env)
        self._mode = FakeTensorMode(
            allow_non_fake_inputs=old.allow_non_fake_inputs,
            shape_env=self._env,
            static_shapes=old.static_shapes,
        )
        self._tensors: dict[int, torch.Tensor] = {}

    def value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(
            value
        ):  # a quantized weight of torchao's
            return transform_subclass(value, lambda name, part: self.value(part))
        if isinstance(value, FakeTensor):
            if id(value) not in self._tensors:
                self._tensors[id(value)] = self._tensor(value)
            return self._tensors[id(value)]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._number(value)
        if type(value) in (tuple, list):
            return type(value)(map(self.value, value))
        return value

    def _number(self, number: Any) -> Any:
        node = number.node
        if node.shape_env is not self._old_env:
            return number
        moved = SymNode(
            node._expr, self._env, node.pytype, node._hint, constant=node.constant, fx_node=node.fx_node
        )
        return type(number)(moved)

    def _tensor(self, tensor: FakeTensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            return tensor  # is refused by the first check
        shape = [*tensor.shape, *tensor.stride(), tensor.storage_offset()]
        with torch.no_grad():
            if any(isinstance(size, torch.SymInt) for size in shape):
                *sizes, offset = map(self.value, shape)
                sizes, strides = sizes[: tensor.dim()], sizes[tensor.dim() :]
                with self._mode:
                    moved = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)
                    if not isinstance(offset, int) or offset:
                        moved = moved.as_strided(sizes, strides, offset)
            else:
                moved = tensor.detach()
                moved.fake_mode = self._mode
        if isinstance(tensor, torch.nn.Parameter):
            moved = torch.nn.Parameter(moved, requires_grad=False)
        moved.requires_grad_(tensor.requires_grad)
        return moved


def _copied(env: ShapeEnv) -> ShapeEnv:
    result = copy.copy(env)
    for name, value in vars(env).items():
        if isinstance(value, dict):
            parts = {key: copy.copy(part) if isinstance(part, list) else part for key, part in value.items()}
            emptied = copy.copy(value)
            emptied.update(parts)
            setattr(result, name, emptied)
        elif isinstance(value, (list, set)):
            setattr(result, name, copy.copy(value))
    # A size that assertions fix, such as u0 == 2, stays a symbol: whether they hold is known at run time only. Its range
    # says what is known. With the number in its place, a moved tensor would be of fixed size.
    result.replacements = {symbol: by for symbol, by in env.replacements.items() if not by.is_number}
    result.pending_fresh_unbacked_symbols = []
    result.fx_node_cache, result.fake_tensor_cache = {}, {}
    return result
