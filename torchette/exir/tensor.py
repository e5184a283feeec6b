# SPDX-License-Identifier: BSD-3-Clause
# A (fake) torch tensor comes in; what the file must say of it goes out: dtype, greatest shape, dim order and, once
# planned, its place in memory. The planner writes specs and the emitter reads them, so neither needs tensors.
"""TensorSpec: all that is known ahead of time of one tensor of a method. Names are ExecuTorch's."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any

import torch

from torchette import compat

ALIGNMENT = 16


class TensorShapeDynamism(IntEnum):
    """How a tensor's shape may change at run time."""

    STATIC = 0
    DYNAMIC_BOUND = 1
    DYNAMIC_UNBOUND = 2


class TensorSpec:
    """What is known ahead of time of one tensor.

    Attributes:
        dtype: the element type (also `scalar_type`).
        shape: list of int; for dynamic dimensions the greatest length (0 where there is no limit).
        stride: elements between neighbours along each dimension, dense for `shape`.
        dim_order: dimensions from the outermost to the innermost in memory.
        shape_dynamism: whether all dimensions are fixed, bounded, or some unbounded.
        const: a parameter, buffer or constant that is stored in the file.
        lifetime: [first, last] instruction at which the bytes are needed; [None, None] before planning.
        mem_id: the memory buffer (1 or more) that holds it; may be set by the user beforehand. None: not planned.
        mem_offset: offset in bytes in that buffer.
        mem_obj_id: equal for specs that share one slot; ExecuTorch's algorithms may set it.
        alignment: what `allocated_memory` is rounded up to, bytes.
        base, base_offset: for an alias, the spec whose storage it shares and the byte at which it begins there.
        owned: not planned; takes memory of its actual size while the method runs, from its first to its last use.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        shape: Sequence[int],
        layout: torch.layout = torch.strided,
        is_sparse: bool = False,
        const: bool = False,
        requires_grad: bool = False,
        extra_tensor_info: object | None = None,
    ) -> None:
        self.dtype = dtype
        self.shape: list[int] = list(shape)
        self.dim_order: tuple[int, ...] = tuple(range(len(self.shape)))
        self.stride: tuple[int, ...] = stride_from_dim_order(self.shape, self.dim_order)
        self.shape_dynamism = TensorShapeDynamism.STATIC
        self.layout = layout
        self.is_sparse = is_sparse
        self.const = const
        self.requires_grad = requires_grad
        self.extra_tensor_info = extra_tensor_info
        self.storage: torch.UntypedStorage | None = None
        self.alignment = ALIGNMENT
        self.base: TensorSpec | None = None
        self.base_offset = 0
        self.owned = False
        self.init_mem_planning_fields()

    def init_mem_planning_fields(self) -> None:
        """Forget the plan, as before planning."""
        self.lifetime: list[int | None] = [None, None]
        self.mem_id: int | None = None
        self.mem_obj_id: int | None = None
        self.mem_offset: int | None = None

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor, const: bool = False) -> TensorSpec:
        """The spec of a real or fake tensor; symbolic dimensions become their upper bounds.

        Memory is contiguous or, where the tensor's is, channels_last: kernels write nothing else.
        """
        spec = cls(
            tensor.dtype, (), tensor.layout, tensor.is_sparse, const=const, requires_grad=tensor.requires_grad
        )
        sizes, strides = list(tensor.shape), list(tensor.stride()) if tensor.layout is torch.strided else None
        for dim, size in enumerate(sizes):
            if isinstance(size, torch.SymInt):
                bound = upper_bound(size)
                if bound is None:
                    spec.shape_dynamism = TensorShapeDynamism.DYNAMIC_UNBOUND
                elif not size.node.is_constant() and spec.shape_dynamism is TensorShapeDynamism.STATIC:
                    spec.shape_dynamism = TensorShapeDynamism.DYNAMIC_BOUND
                sizes[dim] = bound or 0
        spec.shape = sizes
        if strides is not None:
            spec.dim_order = _dim_order(tensor, strides)
        else:
            spec.dim_order = tuple(range(len(sizes)))
        spec.stride = stride_from_dim_order(sizes, spec.dim_order)
        return spec

    @property
    def scalar_type(self) -> torch.dtype:
        """The element type, by ExecuTorch's name."""
        return self.dtype

    @scalar_type.setter
    def scalar_type(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def nbytes(self) -> int:
        """Bytes at the greatest shape."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def allocated_memory(self) -> int:
        """Bytes at the greatest shape, rounded up to the alignment."""
        return -(-self.nbytes() // self.alignment) * self.alignment

    def realign(self, new_alignment: int) -> int:
        """Set the alignment in bytes; returns the new `allocated_memory`."""
        self.alignment = new_alignment
        return self.allocated_memory

    def chain(self) -> Iterator[TensorSpec]:
        """This spec, then the spec whose storage it shares, and so on to the one that owns the bytes."""
        spec: TensorSpec | None = self
        while spec is not None:
            yield spec
            spec = spec.base

    @property
    def root(self) -> TensorSpec:
        """The spec that owns the bytes: itself unless it is an alias."""
        spec = self
        while spec.base is not None:
            spec = spec.base
        return spec

    @property
    def root_offset(self) -> int:
        """Where this spec's bytes begin within `root`'s, in bytes."""
        return sum(spec.base_offset for spec in self.chain())

    @property
    def is_static_shape_tensor(self) -> bool:
        """Every dimension is fixed."""
        return self.shape_dynamism == TensorShapeDynamism.STATIC

    @property
    def is_dynamic_shape_tensor(self) -> bool:
        """Some dimension is known only at run time."""
        return self.shape_dynamism != TensorShapeDynamism.STATIC

    @property
    def is_upper_bound_tensor(self) -> bool:
        """Dynamic, with every dimension bounded."""
        return self.shape_dynamism == TensorShapeDynamism.DYNAMIC_BOUND

    @property
    def is_dynamic_unbound_tensor(self) -> bool:
        """Some dimension has no bound."""
        return self.shape_dynamism == TensorShapeDynamism.DYNAMIC_UNBOUND

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        bound = {0: "", 1: " at most", 2: " unbounded"}[int(self.shape_dynamism)]
        text = f"{dtype}{bound} {self.shape}"
        if self.dim_order != tuple(range(len(self.shape))):
            text += f" dim_order {list(self.dim_order)}"
        if self.const:
            text += " const"
        if self.lifetime[0] is not None:
            text += f" live {self.lifetime[0]}..{self.lifetime[1]}"
        if self.mem_id is not None:
            text += f" memory {self.mem_id} offset {self.mem_offset}"
        if self.base is not None:
            text += f" alias at byte {self.base_offset} of ({self.base!r})"
        return f"TensorSpec({text})"


def upper_bound(size: int | torch.SymInt) -> int | None:
    """The greatest value that a symbolic integer can take, None where nothing bounds it."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    node = size.node
    if node.is_constant():
        return int(size)
    upper = node.shape_env.bound_sympy(node.expr).upper
    # Dims without a maximum have int_oo here, and torch writes "no limit" as sys.maxsize - 1 in some places.
    if not upper.is_number or upper.is_infinite or upper >= 2**62:
        return None
    return int(upper)


def eval_upper_bound(size: int | torch.SymInt) -> int:
    """`upper_bound`, with ``sys.maxsize`` where there is none."""
    bound = upper_bound(size)
    return sys.maxsize if bound is None else bound


def eval_shape_upper_bound(shape: Iterable[int | torch.SymInt]) -> list[int]:
    """The greatest sizes."""
    return [eval_upper_bound(size) for size in shape]


def eval_expr(size: int | torch.SymInt) -> int | None:
    """The size in the example that the model was captured with; None where there is none."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    return int(size.node.hint) if size.node.has_hint() else None


def eval_shape(shape: Iterable[int | torch.SymInt]) -> list[int | None]:
    """The sizes in the example."""
    return [eval_expr(size) for size in shape]


def determine_tensor_dynanism(shape: Iterable[int | torch.SymInt]) -> TensorShapeDynamism:
    """How a tensor with such sizes may change its shape; the spelling is ExecuTorch's."""
    sizes = [size for size in shape if isinstance(size, torch.SymInt) and not size.node.is_constant()]
    if not sizes:
        return TensorShapeDynamism.STATIC
    unbound = any(upper_bound(size) is None for size in sizes)
    return TensorShapeDynamism.DYNAMIC_UNBOUND if unbound else TensorShapeDynamism.DYNAMIC_BOUND


def dim_order_from_stride(stride: Sequence[int | torch.SymInt]) -> tuple[int, ...]:
    """Dimensions from the outermost to the innermost, by their strides. ValueError for a stride of 0, which no file holds."""
    steps = [_example(step) for step in stride]
    if 0 in steps:
        raise ValueError(f"strides {steps}: with 0 among them there is no dim order")
    return tuple(sorted(range(len(steps)), key=lambda dim: -steps[dim]))


def contiguous_stride_from_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a dense tensor whose last dimension is the innermost."""
    return stride_from_dim_order(shape, range(len(shape)))


_CHANNELS_LAST = {torch.channels_last: (0, 2, 3, 1), torch.channels_last_3d: (0, 2, 3, 4, 1)}


def get_dim_order(memory_format: torch.memory_format | None, ndim: int) -> list[int] | None:
    """Dimensions from the outermost to the innermost of a tensor of rank `ndim` in a memory format; None where the format is
    kept. ValueError for a format that such tensors do not have."""
    if memory_format in (None, torch.preserve_format):
        return None
    order = tuple(range(ndim)) if memory_format is torch.contiguous_format else _CHANNELS_LAST[memory_format]
    if len(order) != ndim:
        raise ValueError(f"{memory_format} is for tensors of rank {len(order)}, not {ndim}")
    return list(order)


def get_memory_format(dim_order: Sequence[int] | None) -> torch.memory_format:
    """The memory format that a dim order is; None means the format that a tensor has. ValueError for another order."""
    if dim_order is None:
        return torch.preserve_format
    if tuple(dim_order) == tuple(range(len(dim_order))):
        return torch.contiguous_format
    for memory_format, order in _CHANNELS_LAST.items():
        if tuple(dim_order) == order:
            return memory_format
    raise ValueError(f"dim order {list(dim_order)} is no memory format of torch's")


def is_channel_last_dim_order(tensor: torch.Tensor) -> bool:
    """Whether a tensor of rank 4 lies in memory with its channels innermost."""
    result: bool = tensor.dim_order() == _CHANNELS_LAST[torch.channels_last]
    return result


def is_contiguous_dim_order(tensor: torch.Tensor) -> bool:
    """Whether a tensor's dimensions lie in memory in their own order."""
    result: bool = tensor.dim_order() == tuple(range(tensor.dim()))
    return result


def stride_from_dim_order(sizes: Sequence[int], dim_order: Sequence[int]) -> tuple[int, ...]:
    """Dense strides, in elements, of a tensor whose dimensions lie in memory in this order, outermost first."""
    strides = [0] * len(sizes)
    step = 1
    for dim in reversed(dim_order):
        strides[dim] = step
        step *= max(1, sizes[dim])
    return tuple(strides)


def _dim_order(tensor: torch.Tensor, strides: list[Any]) -> tuple[int, ...]:
    """Dimensions from outermost to innermost: channels_last if that is all that describes the tensor, else natural."""
    rank = len(strides)
    natural = tuple(range(rank))
    # With symbolic lengths, an example of them decides: the order does not depend on which.
    sizes = [_example(size) for size in tensor.shape]
    steps = [_example(stride) for stride in strides]

    def dense(order: Sequence[int]) -> bool:
        expected = stride_from_dim_order(sizes, order)
        return all(
            size <= 1 or step == right for size, step, right in zip(sizes, steps, expected, strict=True)
        )

    if dense(natural) or 0 in sizes:
        return natural
    if rank in (4, 5):
        channels_last = (0, *range(2, rank), 1)
        if dense(channels_last):
            return channels_last
    return natural


def _example(size: int | torch.SymInt) -> int:
    if not isinstance(size, torch.SymInt):
        return size
    if size.node.has_hint():
        return int(size.node.hint)
    return upper_bound(size) or 2**20


__getattr__ = compat.attributes(__name__)  # records of files, by ExecuTorch's names
