# SPDX-License-Identifier: BSD-3-Clause
# In: a library of C++ operators from `torchette custom build`. Out: the same kernels as torch operators, for eager
# execution and export, and in the runtime's registry.
"""Loads custom operators from a library: `load_library`."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torchette import runtime
from torchette.errors import InputError

if TYPE_CHECKING:
    import torch


def load_library(path: str | os.PathLike[str]) -> list[str]:
    """Loads custom operators: their kernels into the runtime and, if torch is installed, the operators into torch.

    In torch, each operator has a functional overload, which runs the kernel on the CPU and provides the result's shape
    to torch.export, and the out variant that programs call. Operators that torch already has do not change.

    Args:
        path: a library of `torchette custom build`. Loading it again has no effect.

    Returns:
        The names of the library's operators, such as ``my::scale``.

    Raises:
        RuntimeLoadError: if the library cannot be loaded, has another version, or has a kernel with an existing name.
        InputError: if torch cannot parse a schema.

    Example:
        >>> torchette.load_library("libmine.so")
    """
    described = runtime.load_kernels(path)
    if importlib.util.find_spec("torch") is not None:
        for schema, result in described:
            _declare(schema, result)
    return [schema.partition("(")[0] for schema, _ in described]


_libraries: list[Any] = []  # keeps the torch libraries alive


def _declare(schema: str, result: str) -> None:
    import torch

    from torchette.exir import ops

    namespace, _, signature = schema.partition("::")
    packet, _, overload = signature.partition("(")[0].strip().partition(".")
    known = getattr(getattr(torch.ops, namespace), packet, None)
    if known is not None and (overload or "default") in known.overloads():
        return
    library = torch.library.Library(namespace, "FRAGMENT")
    _libraries.append(library)
    try:
        library.define(signature)
    except RuntimeError as error:
        raise InputError(f"torch cannot parse the schema {schema!r}: {error}") from None
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    name = signature.partition("(")[0].strip()
    library.impl(name, functools.partial(_run, op, functools.partial(_look, op, result, int)), "CPU")
    look = functools.partial(_look, op, result, _new_size)
    torch.library.register_fake(f"{namespace}::{name}", look, lib=library)
    if ops.out_variant(op) is None:
        ops.declare_out_variant(op, functools.partial(_run_out, op))


def _arguments(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Returns the values of all arguments in the order of the schema."""
    values = []
    for position, argument in enumerate(op._schema.arguments):
        if position < len(args):
            values.append(args[position])
        else:
            values.append(kwargs.get(argument.name, argument.default_value))
    return values


def _new_size(bound: int | torch.SymInt) -> torch.SymInt:
    """Returns a size for torch.export that only the data determine: from 0 to `bound`."""
    import torch

    size: torch.SymInt = torch.library.get_ctx().new_dynamic_size(min=0)
    torch._check(size <= bound)
    return size


def _look(
    op: torch._ops.OpOverload, result: str, up_to: Callable[[Any], Any], *args: object, **kwargs: object
) -> Any:
    """Returns uninitialized tensors with the shapes and dtypes of the operator's results.

    `up_to` returns a size that the kernel determines, from its upper bound: the bound itself in eager execution.
    """
    import torch

    names = [argument.name for argument in op._schema.arguments]
    values = dict(zip(names, _arguments(op, args, kwargs), strict=True))
    if result:
        return eval(result, {"torch": torch, "up_to": up_to}, values)
    first = next(value for value in values.values() if isinstance(value, torch.Tensor))
    count = len(op._schema.returns)
    outputs = tuple(torch.empty_like(first, memory_format=_format(first)) for _ in range(count))
    return outputs[0] if count == 1 else outputs


def _run(op: torch._ops.OpOverload, look: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    outputs = look(*args, **kwargs)
    outs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    sizes = _call(op, _arguments(op, args, kwargs), outs)
    outs = tuple(map(_resized, outs, sizes))
    return outs if isinstance(outputs, (tuple, list)) else outs[0]


def _resized(out: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """Returns the result of the kernel, which may have fewer elements than the tensor."""
    if tuple(out.shape) == sizes:
        return out
    return out.flatten()[: math.prod(sizes)].reshape(sizes).clone()


def _run_out(op: torch._ops.OpOverload, *args: object, **kwargs: Any) -> Any:
    from torchette.exir import ops

    variant = ops.out_variant(op)
    assert variant is not None
    outs = [kwargs.pop(name) for name in ops.out_names(variant)]
    _call(op, _arguments(op, args, kwargs), outs)
    return outs[0] if len(outs) == 1 else tuple(outs)


def _call(op: torch._ops.OpOverload, values: Sequence[Any], outs: Sequence[torch.Tensor]) -> Any:
    """Calls the kernel. Returns the sizes of its results."""
    from torchette.exir import ops

    variant = ops.out_variant(op)
    assert variant is not None
    return runtime.call_kernel(".".join(ops.kernel_name(variant)), [*map(_dense, values), *outs])


def _dense(value: object) -> Any:
    """Makes a tensor contiguous or channels-last, the layouts that kernels receive in a program."""
    import torch

    if isinstance(value, (list, tuple)):
        return [_dense(item) for item in value]
    return (
        value.contiguous(memory_format=_format(value)).detach() if isinstance(value, torch.Tensor) else value
    )


def _format(tensor: torch.Tensor) -> torch.memory_format:
    import torch

    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last and not tensor.is_contiguous() else torch.contiguous_format
