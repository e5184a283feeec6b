# SPDX-License-Identifier: BSD-3-Clause
# Calls of single kernels, and their instruction sets.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchette.errors import ExecutionError, unknown_name
from torchette.runtime import native
from torchette.runtime.operator_registry import operator_names


def call_kernel(name: str, arguments: Sequence[Any]) -> list[Any]:
    """Calls one kernel.

    Args:
        name: the full name of the operator, such as ``aten::mm.out``.
        arguments: the arguments in the order of the kernel's signature, the outputs last: arrays or tensors, scalars, lists,
            strings and None.

    Returns:
        The final sizes of each output tensor, and the values of outputs that are scalars, in their order.

    Raises:
        ExecutionError: there is no such kernel, it refuses the arguments, or it fails.

    Example:
        >>> x, out = numpy.ones((2, 3), "float32"), numpy.empty((2, 3), "float32")
        >>> call_kernel("aten::neg.out", [x, out])
        [(2, 3)]
        >>> float(out[0, 0])
        -1.0
    """
    try:
        results: list[Any] = native.module().call_kernel(name, *arguments)
    except KeyError:
        message = unknown_name("kernel", name, operator_names())
        raise ExecutionError(message, hints=["`torchette ops` lists them"]) from None
    except (RuntimeError, TypeError, ValueError) as error:
        raise ExecutionError(str(error)) from None
    return results


def kernel_level() -> str:
    """Returns the instruction-set level of the kernels in use: v1, v3 or v4 of x86-64, otherwise baseline.

    Example:
        >>> kernel_level() in kernel_levels()
        True
    """
    result: str = native.module().isa()
    return result


def kernel_levels() -> list[str]:
    """Returns the levels that this build has kernels for and this CPU supports, the best first.

    Example:
        >>> best = kernel_levels()[0]
    """
    result: list[str] = native.module().levels()
    return result


def scratch_bytes(name: str, arguments: Sequence[Any], level: str) -> tuple[int, int] | None:
    """Measures the temporary memory of one kernel call.

    Args:
        name: the operator, such as ``aten::mm.out``.
        arguments: the arguments of the kernel, outputs included. A tensor is a tuple (dtype code, sizes, dim order); its
            elements are zero, or true for booleans. Scalars, strings, None and lists are passed as they are.
        level: one of `kernel_levels()`.

    Returns:
        The bytes with which no request for memory is refused, and the minimum bytes with which the kernel succeeds. None
        if the kernel does not exist or the call fails.

    Example:
        >>> float32 = 6
        >>> x, out = ((float32, (2, 3), (0, 1)) for _ in range(2))
        >>> scratch_bytes("aten::neg.out", [x, out], kernel_level())
        (0, 0)
    """
    result: tuple[int, int] | None = native.module().scratch_bytes(name, arguments, level)
    return result
