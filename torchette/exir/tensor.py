# SPDX-License-Identifier: BSD-3-Clause
# In: a (fake) torch tensor. Out: the properties that the file stores: dtype, maximum shape, dim order and, after
# planning, the memory location. The planner writes specs and the emitter reads them; neither needs tensors.
"""TensorSpec: the ahead-of-time properties of one tensor of a method. Names are ExecuTorch's."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch

from torchette import compat

if TYPE_CHECKING:
    import sympy
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

ALIGNMENT = 16
MAX_ELEMENTS = 2**31 - 1  # the runtime counts the elements of a tensor in an int32


class TensorShapeDynamism(IntEnum):
    """Whether and how the shape of a tensor may change at run time."""

    STATIC = 0
    DYNAMIC_BOUND = 1
    DYNAMIC_UNBOUND = 2


class TensorSpec:
    """The ahead-of-time properties of one tensor.

    Attributes:
        dtype: the element type (also `scalar_type`).
        shape: list of int. Dynamic dimensions have their maximum size, or 0 if there is no maximum.
        stride: elements between neighbours along each dimension, for a dense tensor of `shape`.
        dim_order: dimensions from the outermost to the innermost in memory.
        shape_dynamism: whether all dimensions are fixed, all are bounded, or some are unbounded.
        const: true for a parameter, buffer or constant that is stored in the file.
        lifetime: [first, last] instruction that needs the storage; [None, None] before planning.
        mem_id: index of the memory buffer, at least 1; the user may set it before planning. None: not planned.
        mem_offset: offset in that buffer in bytes.
        mem_obj_id: equal for specs that share one slot; ExecuTorch's algorithms may set it.
        alignment: `allocated_memory` is rounded up to a multiple of it, in bytes.
        base, base_offset: for an alias, the spec with the shared storage and the byte offset in it.
        owned: not planned; the runtime allocates memory of the actual size from the first to the last use.
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
        """Resets the fields that planning sets."""
        self.lifetime: list[int | None] = [None, None]
        self.mem_id: int | None = None
        self.mem_obj_id: int | None = None
        self.mem_offset: int | None = None

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor, const: bool = False) -> TensorSpec:
        """Returns the spec of a real or fake tensor. Symbolic dimensions become their upper bounds.

        If the bounds permit more than `MAX_ELEMENTS` elements, the tensor becomes unbounded.
        The dim order is contiguous or, if the tensor is channels_last, channels_last: kernels write no other order.
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
        if spec.is_dynamic_shape_tensor and math.prod(size or 1 for size in sizes) > MAX_ELEMENTS:
            # The bounds may hold separately and exceed the limit together, such as the height and the width of an image.
            spec.shape_dynamism = TensorShapeDynamism.DYNAMIC_UNBOUND
            sizes = [size if isinstance(size, int) else 0 for size in tensor.shape]
        spec.shape = sizes
        if strides is not None:
            spec.dim_order = _dim_order(tensor, strides)
        else:
            spec.dim_order = tuple(range(len(sizes)))
        spec.stride = stride_from_dim_order(sizes, spec.dim_order)
        return spec

    @property
    def scalar_type(self) -> torch.dtype:
        """The element type, under ExecuTorch's name."""
        return self.dtype

    @scalar_type.setter
    def scalar_type(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def nbytes(self) -> int:
        """Returns the size in bytes at the maximum shape."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def allocated_memory(self) -> int:
        """The size in bytes at the maximum shape, rounded up to the alignment."""
        return -(-self.nbytes() // self.alignment) * self.alignment

    def realign(self, new_alignment: int) -> int:
        """Sets the alignment in bytes. Returns the new `allocated_memory`."""
        self.alignment = new_alignment
        return self.allocated_memory

    def chain(self) -> Iterator[TensorSpec]:
        """Yields this spec, then its base, and so on up to the spec that owns the storage."""
        spec: TensorSpec | None = self
        while spec is not None:
            yield spec
            spec = spec.base

    @property
    def root(self) -> TensorSpec:
        """The spec that owns the storage: this spec unless it is an alias."""
        spec = self
        while spec.base is not None:
            spec = spec.base
        return spec

    @property
    def root_offset(self) -> int:
        """The offset of this spec's storage in the storage of `root`, in bytes."""
        return sum(spec.base_offset for spec in self.chain())

    @property
    def is_static_shape_tensor(self) -> bool:
        """Whether every dimension is fixed."""
        return self.shape_dynamism == TensorShapeDynamism.STATIC

    @property
    def is_dynamic_shape_tensor(self) -> bool:
        """Whether a dimension is known only at run time."""
        return self.shape_dynamism != TensorShapeDynamism.STATIC

    @property
    def is_upper_bound_tensor(self) -> bool:
        """Whether the shape is dynamic and every dimension has a bound."""
        return self.shape_dynamism == TensorShapeDynamism.DYNAMIC_BOUND

    @property
    def is_dynamic_unbound_tensor(self) -> bool:
        """Whether a dimension has no bound."""
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
    """Returns the maximum value of a symbolic integer, or None if it has no bound."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    node = size.node
    if node.is_constant():
        return int(size)
    upper = _bounds(node.shape_env, node.expr).upper
    # A dimension without a maximum has the bound int_oo, or sys.maxsize - 1 in some parts of torch.
    if not upper.is_number or upper.is_infinite or upper >= 2**62:
        return None
    return int(upper)


def _bounds(env: ShapeEnv, expression: sympy.Expr) -> Any:
    """Returns torch's range of an expression, with the tight range of x // (x // c): c to 2c - 1.

    Such a ratio is the size of the groups that a model splits a dimension into. Torch divides the maximum of x by the
    minimum of x // c, and returns almost the maximum of x.
    """
    return _bounds_in(
        expression, tuple((symbol, env.var_to_range.get(symbol)) for symbol in _symbols(expression))
    )


@functools.lru_cache(maxsize=4096)
def _symbols(expression: sympy.Expr) -> tuple[sympy.Symbol, ...]:
    return tuple(expression.free_symbols)


@functools.lru_cache(maxsize=4096)  # torch needs milliseconds for a size of a model with windows
def _bounds_in(expression: sympy.Expr, known: tuple[tuple[sympy.Symbol, Any], ...]) -> Any:
    import sympy
    from torch.utils._sympy.functions import FloorDiv
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    ranges = dict(known)
    for ratio in expression.atoms(FloorDiv):
        count = ratio.args[1]
        if isinstance(count, FloorDiv) and count.args[0] == ratio.args[0]:
            group = count.args[1]
            if group.is_Integer and group > 0:
                symbol = sympy.Dummy("ratio", integer=True, positive=True)
                expression = expression.xreplace({ratio: symbol})
                ranges[symbol] = ValueRanges(group, 2 * group - 1)
    return bound_sympy(expression, ranges)


def eval_upper_bound(size: int | torch.SymInt) -> int:
    """Returns `upper_bound`, or ``sys.maxsize`` if there is no bound."""
    bound = upper_bound(size)
    return sys.maxsize if bound is None else bound


def eval_shape_upper_bound(shape: Iterable[int | torch.SymInt]) -> list[int]:
    """Returns the maximum of each size."""
    return [eval_upper_bound(size) for size in shape]


def eval_expr(size: int | torch.SymInt) -> int | None:
    """Returns the size in the example inputs of the capture, or None if there is none."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    return int(size.node.hint) if size.node.has_hint() else None


def eval_shape(shape: Iterable[int | torch.SymInt]) -> list[int | None]:
    """Returns the sizes in the example inputs."""
    return [eval_expr(size) for size in shape]


def determine_tensor_dynanism(shape: Iterable[int | torch.SymInt]) -> TensorShapeDynamism:
    """Returns how a tensor with these sizes may change its shape. The spelling is ExecuTorch's."""
    sizes = [size for size in shape if isinstance(size, torch.SymInt) and not size.node.is_constant()]
    if not sizes:
        return TensorShapeDynamism.STATIC
    unbound = any(upper_bound(size) is None for size in sizes)
    return TensorShapeDynamism.DYNAMIC_UNBOUND if unbound else TensorShapeDynamism.DYNAMIC_BOUND


def dim_order_from_stride(stride: Sequence[int | torch.SymInt]) -> tuple[int, ...]:
    """Returns the dimensions from the outermost to the innermost. Raises ValueError if a stride is 0, which no file can
    represent."""
    steps = [_example(step) for step in stride]
    if 0 in steps:
        raise ValueError(f"strides {steps}: a stride of 0 has no dim order")
    return tuple(sorted(range(len(steps)), key=lambda dim: -steps[dim]))


def contiguous_stride_from_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides, in elements, of a dense tensor with the last dimension innermost."""
    return stride_from_dim_order(shape, range(len(shape)))


_CHANNELS_LAST = {torch.channels_last: (0, 2, 3, 1), torch.channels_last_3d: (0, 2, 3, 4, 1)}


def get_dim_order(memory_format: torch.memory_format | None, ndim: int) -> list[int] | None:
    """Returns the dimensions of a tensor of rank `ndim` from the outermost to the innermost in a memory format, or None
    for `torch.preserve_format`. Raises ValueError if the format requires another rank."""
    if memory_format in (None, torch.preserve_format):
        return None
    order = tuple(range(ndim)) if memory_format is torch.contiguous_format else _CHANNELS_LAST[memory_format]
    if len(order) != ndim:
        raise ValueError(f"{memory_format} is for tensors of rank {len(order)}, not {ndim}")
    return list(order)


def get_memory_format(dim_order: Sequence[int] | None) -> torch.memory_format:
    """Returns the memory format of a dim order; None selects `torch.preserve_format`. Raises ValueError for another
    order."""
    if dim_order is None:
        return torch.preserve_format
    if tuple(dim_order) == tuple(range(len(dim_order))):
        return torch.contiguous_format
    for memory_format, order in _CHANNELS_LAST.items():
        if tuple(dim_order) == order:
            return memory_format
    raise ValueError(f"dim order {list(dim_order)} is not a memory format of torch")


def is_channel_last_dim_order(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor of rank 4 is stored with its channels innermost."""
    result: bool = tensor.dim_order() == _CHANNELS_LAST[torch.channels_last]
    return result


def is_contiguous_dim_order(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor's dimensions are stored in their natural order."""
    result: bool = tensor.dim_order() == tuple(range(tensor.dim()))
    return result


def stride_from_dim_order(sizes: Sequence[int], dim_order: Sequence[int]) -> tuple[int, ...]:
    """Returns the dense strides, in elements, of a tensor with this dim order, outermost dimension first."""
    strides = [0] * len(sizes)
    step = 1
    for dim in reversed(dim_order):
        strides[dim] = step
        step *= max(1, sizes[dim])
    return tuple(strides)


def _dim_order(tensor: torch.Tensor, strides: list[Any]) -> tuple[int, ...]:
    """Returns the dim order: channels_last if only that order describes the tensor, otherwise the natural order."""
    rank = len(strides)
    natural = tuple(range(rank))
    # Symbolic sizes are replaced by example sizes. The result does not depend on the example.
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


__getattr__ = compat.attributes(__name__)  # records of files, under ExecuTorch's names
