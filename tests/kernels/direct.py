# SPDX-License-Identifier: BSD-3-Clause
# Runs torch calls operator by operator on the kernels, with the compiler's decompositions but without capture, passes
# or a file. This costs about a hundredth of compiling.
"""`compute(call)` returns the results of a call with every operator computed by the kernel that a program would use.
`draws(call)` tells whether the call draws random values."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.kernels import kernel_call, samples
from torchette.exir import ops
from torchette.exir.passes import decompose_to_core
from torchette.runtime import _native

aten = torch.ops.aten
# These only move bytes or check. A program contains such copies as dim_order_ops, which test_samples.py calls.
MOVES = {
    aten._to_copy.default, aten.clone.default, aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default,
    aten.contiguous.default, aten.copy_.default, aten.resolve_conj.default, aten.resolve_neg.default,
    aten._linalg_check_errors.default,
}  # fmt: skip


class NotDirect(Exception):
    """A compiler pass is needed between the call and its kernels, so only a compiled program can run it."""


def compute(call: Callable[[], Any]) -> tuple[Any, Counter]:
    """Runs a call on the kernels.

    Args:
        call: a function without arguments that calls torch.

    Returns:
        The results, and the number of calls of each (kernel, dtype of its first tensor).

    Raises:
        NotDirect: An operator has no kernel, or its kernel rejects the arguments of torch.
    """
    kernels = _Kernels()
    with torch.no_grad(), kernels:
        results = call()
    return results, kernels.calls


def draws(call: Callable[[], Any]) -> bool:
    """Whether the call draws random values."""
    noted = _Notes()
    with torch.no_grad(), noted:
        call()
    return noted.random


class _Notes(TorchDispatchMode):
    random = False

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.random |= ops.is_random(op)
        return op(*args, **(kwargs or {}))


@functools.cache
def _decompositions() -> dict[Any, Callable]:
    table = decompose_to_core._table(len(torch._C._dispatch_get_all_op_names()))
    return {op: decomposed for op, decomposed in table.items() if op not in ops.EXTRAS}


@functools.cache
def _known() -> frozenset[str]:
    return frozenset(name for name, _ in _native.operators())


class _Kernels(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if op in MOVES or ops.is_symbolic(op):
            return op(*args, **kwargs)
        if ops.is_view(op):
            return self.view(op, args, kwargs)
        if ops.is_mutating(op):
            functional = ops.functional(op)
            if functional is op:
                raise NotDirect(f"{op} writes to its arguments")
            result = self.__torch_dispatch__(functional, types, args, kwargs)
            return args[0].copy_(result)
        if op in _decompositions():
            with self:
                result = _decompositions()[op](*args, **kwargs)
            if result is not NotImplemented:
                return result
        return self.kernel(op, args, kwargs)

    def view(self, op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Returns the view itself, so that writes to it are visible. Checks the copying kernel against it."""
        expected, twin = op(*args, **kwargs), ops.copying(op)
        if twin is not None and ops.out_variant(twin) is not None and op is not aten.view_as_complex.default:
            name = ".".join(ops.kernel_name(ops.out_variant(twin)))
            if name in _known() and isinstance(expected, torch.Tensor) and not expected.is_complex():
                copied = self.kernel(twin, args, kwargs)
                assert torch.equal(copied.nan_to_num(), expected.nan_to_num()), name
        return expected

    def kernel(self, op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        variant = ops.out_variant(op)
        name = ".".join(ops.kernel_name(variant)) if variant is not None else ""
        if name not in _known() or ops.is_random(op):
            raise NotDirect(f"{op} has no kernel with a single result")
        expected = op(*args, **kwargs)
        flat = [expected] if isinstance(expected, torch.Tensor) else list(expected)
        positional, named = _as_in_a_program(op, args, kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves((positional, named)) if isinstance(leaf, torch.Tensor)]
        if any(tensor.is_complex() for tensor in (*tensors, *flat)):
            raise NotDirect("complex tensors are pairs of real ones in a program")
        like = [tensor.contiguous() for tensor in flat]
        arguments = samples.arguments(name, (positional, named))
        listed = str(variant._schema.returns[0].type) == "List[Tensor]" if variant._schema.returns else False
        if listed or isinstance(expected, list):
            raise NotDirect(f"{op} returns a list")
        try:
            results = kernel_call.run(name, *arguments, like=like)
        except (RuntimeError, TypeError) as error:
            raise NotDirect(f"{name} rejects the arguments of torch for {op}: {error}") from error
        first = next((tensor.dtype for tensor in (*tensors, *flat)), None)
        self.calls[name, str(first).removeprefix("torch.")] += 1
        results = [result.clone() for result in results]
        return results[0] if isinstance(expected, torch.Tensor) else type(expected)(results)


def _as_in_a_program(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Makes tensors contiguous and converts scalars to tensors if the operator expects a tensor."""

    def dense(value: Any) -> Any:
        return value.contiguous() if isinstance(value, torch.Tensor) else value

    args, kwargs = list(pytree.tree_map(dense, tuple(args))), pytree.tree_map(dense, kwargs)
    for place, value in ops.tensor_arguments(op, args, kwargs):
        if isinstance(value, (bool, int, float)):
            tensor = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)), None)
            dtype = torch.result_type(tensor, value) if tensor is not None else None
            (args if isinstance(place, int) else kwargs)[place] = torch.tensor(value, dtype=dtype)  # type: ignore[index]
    return tuple(args), kwargs
