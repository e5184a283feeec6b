# SPDX-License-Identifier: BSD-3-Clause
# In: a copy of a program that shares the ShapeEnv of the original. Out: the same program with its own ShapeEnv. Tracing
# adds symbols, ranges and guards to a ShapeEnv. If they stayed in the original program, lowering it again could fail or
# produce another file.
"""`copy_shape_env`."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.sym_node import SymNode

from torchette.exir.graph import calls, fake_mode, graph_modules, size_key
from torchette.exir.ops import ASSERTIONS, is_higher_order

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, transform_subclass

# The trace of an assertion on the dtype of a tensor adds nothing to a ShapeEnv.
_ASSERTIONS_ON_VALUES = ASSERTIONS - {torch.ops.aten._assert_tensor_metadata.default}


def copy_shape_env(program: ExportedProgram) -> ExportedProgram:
    """Moves all values of a program to a new FakeTensorMode with a copy of its ShapeEnv. Edits the program in place and
    returns it."""
    mode = fake_mode(program)
    if mode is not None and _needs_copy(program, mode):
        moved = _Moved(mode)
        for module in graph_modules(program):
            for node in module.graph.nodes:
                moved.is_result = node.op == "call_function"
                node.meta = {key: moved.value(value) for key, value in node.meta.items()}
    return program


def _needs_copy(program: ExportedProgram, mode: FakeTensorMode) -> bool:
    """Returns whether the program has a symbol, or a call that creates one when it is traced. Most models have
    neither."""
    has_symbols = mode.shape_env is not None and bool(mode.shape_env.var_to_range)
    return has_symbols or any(
        is_higher_order(node.target) or node.target in _ASSERTIONS_ON_VALUES for node in calls(program)
    )


class _Moved:
    """Maps the values of one FakeTensorMode to the values of a new one."""

    def __init__(self, old: FakeTensorMode) -> None:
        self._old_env = old.shape_env
        self._env = None if old.shape_env is None else _copied(old.shape_env)
        self._mode = FakeTensorMode(
            allow_non_fake_inputs=old.allow_non_fake_inputs,
            shape_env=self._env,
            static_shapes=old.static_shapes,
        )
        self._tensors: dict[int, torch.Tensor] = {}
        self._results: dict[Any, torch.Tensor] = {}
        # Whether the value is the result of a call. Results may share a storage; inputs that share one would be aliases.
        self.is_result = False

    def value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(
            value
        ):  # a quantized weight of torchao
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

    def _number(self, number: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
        node = number.node
        if node.shape_env is not self._old_env:
            return number
        moved = SymNode(
            node._expr, self._env, node.pytype, node._hint, constant=node.constant, fx_node=node.fx_node
        )
        return type(number)(moved)

    def _tensor(self, tensor: FakeTensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            return tensor  # the first check rejects it
        shape = [*tensor.shape, *tensor.stride(), tensor.storage_offset()]
        with torch.no_grad():
            if any(isinstance(size, torch.SymInt) for size in shape):
                # Torch computes the contiguity of a new tensor from its symbolic sizes in milliseconds.
                key = (tensor.dtype, tensor.device, tensor.requires_grad, *map(size_key, shape))
                moved = self._results.get(key) if self.is_result else None
                if moved is None:
                    moved = self._empty(tensor, shape)
                if self.is_result:
                    self._results[key] = moved
            else:
                # Not Tensor.detach: exporters replace it by the identity, and the next line edits the result.
                moved = torch.ops.aten.detach.default(tensor)
                moved.fake_mode = self._mode  # an attribute of FakeTensor
        if isinstance(tensor, torch.nn.Parameter):
            moved = torch.nn.Parameter(moved, requires_grad=False)
        moved.requires_grad_(tensor.requires_grad)
        return moved

    def _empty(self, tensor: FakeTensor, shape: list[Any]) -> torch.Tensor:
        *sizes, offset = map(self.value, shape)
        sizes, strides = sizes[: tensor.dim()], sizes[tensor.dim() :]
        with self._mode:
            moved = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)
            return (
                moved if isinstance(offset, int) and not offset else moved.as_strided(sizes, strides, offset)
            )


def _copied(env: ShapeEnv) -> ShapeEnv:
    from torch.utils._sympy.symbol import SymT, symbol_is_type  # loads sympy

    result = copy.copy(env)
    for name, value in vars(env).items():
        if isinstance(value, dict):
            parts = {key: copy.copy(part) if isinstance(part, list) else part for key, part in value.items()}
            emptied = copy.copy(value)
            emptied.update(parts)
            setattr(result, name, emptied)
        elif isinstance(value, (list, set)):
            setattr(result, name, copy.copy(value))
    # An unbacked size that an assertion fixes, such as u0 == 2, stays a symbol with a range, because the assertion is
    # checked at run time. A moved tensor would have a static size if the integer replaced the symbol. A size of an
    # input that the capture fixed, such as the length of an unrolled loop, is static.
    result.replacements = {
        symbol: by
        for symbol, by in env.replacements.items()
        if not by.is_number or not symbol_is_type(symbol, SymT.UNBACKED_INT)
    }
    result.pending_fresh_unbacked_symbols = []
    result.fx_node_cache, result.fake_tensor_cache = {}, {}
    return result
