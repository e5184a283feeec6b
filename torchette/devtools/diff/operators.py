# SPDX-License-Identifier: BSD-3-Clause
# In: an instruction of a file. Out: torch's operator on the same arguments.
"""`reference` returns the torch computation that corresponds to a kernel call of a file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchette.exir import ops
from torchette.exir.emit.calls import PRIMITIVES

# Operators with more than one correct result, such as the order of equal elements or the sign of vectors.
_AMBIGUOUS = frozenset(
    {
        "topk", "sort", "mode", "kthvalue", "median", "nanmedian", "_linalg_eigh", "_linalg_svd", "geqrf", "ormqr", "eig",
        "linalg_ldl_factor_ex", "_unique2", "unique_dim",
    }
)  # fmt: skip

_NAMESPACES = {theirs: ours for ours, theirs in ops.FILE_NAMESPACES.items()}
_NUMBERS: dict[str, Callable[..., Any]] = {name: function for function, name in reversed(PRIMITIVES.items())}


class Reference(NamedTuple):
    """The torch computation of an instruction.

    Attributes:
        run: computes the values that the kernel writes, in its order, from the kernel's arguments without out
            arguments.
        reads: positions of these arguments among the instruction's arguments; None for all but the last.
        pointwise: whether each result element depends on one element of each input.
    """

    run: Callable[[list[Any]], list[Any]]
    reads: tuple[int, ...] | None
    pointwise: bool


def reference(name: str, overload: str, outputs: Sequence[Any]) -> Reference | None:
    """Returns the torch computation of a kernel call; None if there is none, or if more than one result is correct.

    Args:
        name: operator name in the file, such as ``aten::add``.
        overload: overload name in the file, such as ``out``.
        outputs: the values that the kernel wrote; out arguments are created with their shapes and dtypes.
    """
    namespace, _, plain = name.partition("::")
    if namespace == "executorch_prim":
        return _primitive(plain, outputs)
    op = operator(name, overload)
    if op is None or not is_comparable(op):
        return None
    arguments = op._schema.arguments
    reads = tuple(i for i, each in enumerate(arguments) if not (each.kwarg_only and ops.writes(each)))

    def run(values: list[Any]) -> list[Any]:
        wide = any(item.dtype in (torch.float64, torch.complex128) for item in tensors(values))
        remaining, results = iter(values), iter(outputs)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        written: list[Any] = []
        for position, each in enumerate(arguments):
            if position not in reads:
                value = _room(next(results), wide)
                written.append(value)
            else:
                value = next(remaining)
                if ops.writes(each):
                    value = value.clone()
                    written.append(value)
            if each.kwarg_only:
                kwargs[each.name] = value
            else:
                args.append(value)
        returned = op(*args, **kwargs)
        if written:
            return written
        return list(returned) if isinstance(returned, (list, tuple)) else [returned]

    return Reference(run, reads, ops.is_pointwise(op))


def is_comparable(op: object) -> bool:
    """Whether an operator's results are determined by its arguments."""
    if not ops.is_operator(op):
        return True
    name = op._schema.name.partition("::")[2]
    return not (ops.is_random(op) or name in _AMBIGUOUS or name.startswith(("empty", "new_empty", "_assert")))


@functools.cache
def operator(name: str, overload: str) -> Any:
    """Returns torch's overload for the name in the file; None if torch has none."""
    namespace, _, plain = name.partition("::")
    packet = getattr(getattr(torch.ops, _NAMESPACES.get(namespace, namespace)), plain, None)
    return getattr(packet, overload or "default", None)


def tensors(values: Iterable[Any]) -> list[Tensor]:
    """Returns the tensors in nested lists, in order."""
    tensor_list = []
    for value in values:
        if isinstance(value, Tensor):
            tensor_list.append(value)
        elif isinstance(value, (list, tuple)):
            tensor_list += tensors(value)
    return tensor_list


def _room(like: Any, wide: bool) -> Any:
    if isinstance(like, (list, tuple)):
        return [_room(item, wide) for item in like]
    dtype = like.dtype
    if wide and dtype.is_floating_point:
        dtype = torch.float64
    if wide and dtype.is_complex:
        dtype = torch.complex128
    return torch.empty(like.shape, dtype=dtype)


def _primitive(name: str, outputs: Sequence[Any]) -> Reference | None:
    if name == "et_view":
        return Reference(lambda values: [values[0].reshape(values[1])], (0, 1), True)
    if name == "et_copy_index":
        return Reference(
            lambda values: [_with_slice(values[0], values[1], values[2], outputs[0].shape[0])],
            (0, 1, 2),
            True,
        )
    function = _NUMBERS.get(name)
    if function is None:
        return None
    return Reference(lambda values: [function(*values)], None, True)


def _with_slice(target: Tensor, source: Tensor, index: int, length: int) -> Tensor:
    result = source.new_zeros((length, *source.shape))
    num_copied = min(length, target.shape[0])
    result[:num_copied] = target[:num_copied]
    result[index] = source
    return result
