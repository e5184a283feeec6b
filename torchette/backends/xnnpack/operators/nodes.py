# SPDX-License-Identifier: BSD-3-Clause
"""Reads arguments, sizes and orders of dimensions of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.table import Refused
from torchette.exir.tensor import upper_bound
from torchette.schema import LIMITS

MAX_DIMS = LIMITS["kMaxXnnpackDims"]


TRANSPOSE_B, ALIGN_CORNERS = 1, 8  # flags of XNNPACK
# A flag of our kernels for XNNBatchMatrixMultiply, which XNNPACK ignores: elements of the right matrix with a weight of +0.0 are
# not read, so that NaN and infinity do not spread. It is kSkipsZeros in kernels/payload.h.
SKIPS_ZEROS = 1 << 30


TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


IMAGES = (3, 4)  # ranks of values that NHWC supports; a sequence is an image of height 1


def check_static(node: Node) -> None:
    """Raises `Refused` if the node or a source has a dynamic dimension."""
    values = [node.meta["val"], *(source.meta["val"] for source in node.all_input_nodes)]
    for value in values:
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            if any(isinstance(size, torch.SymInt) for size in tensor.shape):
                raise Refused("a dynamic dimension")


def check_static_channels(node: Node) -> None:
    """Raises `Refused` if an image has dynamic channels, or a sequence has more than one dynamic dimension."""
    for value in (node, arg(node, 0)):
        val = value.meta["val"]
        val = val[0] if isinstance(val, (list, tuple)) else val
        if val.dim() > 1 and isinstance(val.shape[1], torch.SymInt):
            raise Refused("a dynamic number of channels")
        if val.dim() == 3 and sizes_of(val).count(0) > 1:
            raise Refused("a sequence with more than one dynamic dimension")


def arg(node: Node, index: int) -> Node:
    """Returns an argument that must be a node."""
    value = node.args[index]
    assert isinstance(value, Node), f"argument {index} of {node} must be a node, not {value}"
    return value


def option(node: Node, index: int, default: object = None) -> Any:
    """Returns an argument of any type, or the default if the call omits it."""
    return node.args[index] if index < len(node.args) else default


def arguments(node: Node) -> list[Any]:
    """Returns all positional arguments."""
    return list(node.args)


def dims_of(tensor: torch.Tensor) -> list[int]:
    """Returns the maximum shape of a tensor; scalars have one dimension."""
    return [upper_bound(size) or 0 for size in tensor.shape] or [1]


def sizes_of(tensor: torch.Tensor) -> list[int]:
    """Returns the shape of a tensor for a reshape node: 0 for a dynamic size."""
    return [0 if isinstance(size, torch.SymInt) else size for size in tensor.shape] or [1]


def image_dims(dims: Sequence[int]) -> list[int]:
    """Returns the NHWC dimensions of an image or a sequence."""
    batch, channels, *size = dims
    return [batch, *([1] if len(size) == 1 else []), *size, channels]


def image_axis(dim: int, rank: int) -> int:
    """Returns the NHWC index of a dimension of an image or a sequence."""
    return (0, 3, 2)[dim] if rank == 3 else TO_NHWC.index(dim)


def image_tensor(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """Returns a stored tensor with leading dimensions up to `rank`, in NHWC."""
    tensor = tensor.reshape((1,) * (rank - tensor.dim()) + tuple(tensor.shape))
    return (tensor.unsqueeze(2) if rank == 3 else tensor).permute(TO_NHWC)


def only_user(node: Node) -> Node | None:
    """Returns the only user of a node; None if it has several users, or none."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def check_one_dynamic(node: Node, is_constant: Callable[[Node], bool]) -> None:
    """Raises `Refused` if the node has more than one dynamic dimension."""
    if sum(isinstance(size, torch.SymInt) for size in node.meta["val"].shape) > 1:
        raise Refused("more than one dynamic dimension")


def check_no_float16_overflow(node: Node, factor: float) -> None:
    """Raises `Refused` if the node is in float16 and the factor is greater than 1, so that intermediate values may overflow."""
    if factor > 1 and node.meta["val"].dtype is torch.float16:
        raise Refused("an intermediate value may overflow float16")


def reduced_dims(node: Node) -> list[int]:
    """Returns the sorted dimensions that a reduction reduces."""
    rank = arg(node, 0).meta["val"].dim()
    dims = option(node, 1, ())
    dims = [dims] if isinstance(dims, int) else dims or range(rank)
    return sorted(dim % rank for dim in dims)
