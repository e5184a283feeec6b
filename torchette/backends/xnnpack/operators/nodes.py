# SPDX-License-Identifier: BSD-3-Clause
# Nodes of torch's graph come in; what the library has to know of them goes out.
"""Arguments, sizes and orders of dimensions of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.table import Refused
from torchette.exir.tensor import upper_bound
from torchette.schema import LIMITS

MAX_DIMS = LIMITS["kMaxXnnpackDims"]


TRANSPOSE_B, ALIGN_CORNERS = 1, 8  # flags of the library
# Our own flag of XNNBatchMatrixMultiply, which the library ignores: an element of the right matrix whose weight is +0.0 is
# not read, so that NaN and infinity do not spread. kSkipsZeros of kernels/payload.h.
SKIPS_ZEROS = 1 << 30


TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


IMAGES = (3, 4)  # dimensions of what may lie in NHWC; a sequence is an image of height 1


def check_static(node: Node) -> None:
    """Raises `Refused` where a dimension varies."""
    values = [node.meta["val"], *(source.meta["val"] for source in node.all_input_nodes)]
    for value in values:
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            if any(isinstance(size, torch.SymInt) for size in tensor.shape):
                raise Refused("a dynamic dimension")


def check_static_channels(node: Node) -> None:
    """An image whose batch, height and width may vary."""
    for value in (node, arg(node, 0)):
        val = value.meta["val"]
        val = val[0] if isinstance(val, (list, tuple)) else val
        if val.dim() > 1 and isinstance(val.shape[1], torch.SymInt):
            raise Refused("a dynamic number of channels")
        if val.dim() == 3 and sizes_of(val).count(0) > 1:
            raise Refused("a sequence with more than one dynamic dimension")


def arg(node: Node, place: int) -> Node:
    """The argument there, which is a node."""
    found = node.args[place]
    assert isinstance(found, Node), f"argument {place} of {node} is no node: {found}"
    return found


def option(node: Node, place: int, default: object = None) -> Any:
    """The argument there, of any type; the default where it is left out."""
    return node.args[place] if place < len(node.args) else default


def arguments(node: Node) -> list[Any]:
    """All arguments that are given by place."""
    return list(node.args)


def dims_of(tensor: torch.Tensor) -> list[int]:
    """Its greatest shape; the library's scalars have one dimension."""
    return [upper_bound(size) or 0 for size in tensor.shape] or [1]


def sizes_of(tensor: torch.Tensor) -> list[int]:
    """Its shape for a node that reshapes: 0 where it varies."""
    return [0 if isinstance(size, torch.SymInt) else size for size in tensor.shape] or [1]


def image_dims(dims: Sequence[int]) -> list[int]:
    """Dimensions of an image, or of a sequence, in NHWC."""
    batch, channels, *size = dims
    return [batch, *([1] if len(size) == 1 else []), *size, channels]


def image_axis(dim: int, rank: int) -> int:
    """Where a dimension of an image, or of a sequence, is in NHWC."""
    return (0, 3, 2)[dim] if rank == 3 else TO_NHWC.index(dim)


def image_tensor(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """A stored tensor that is broadcast to `rank` dimensions, in NHWC."""
    tensor = tensor.reshape((1,) * (rank - tensor.dim()) + tuple(tensor.shape))
    return (tensor.unsqueeze(2) if rank == 3 else tensor).permute(TO_NHWC)


def only_user(node: Node) -> Node | None:
    """The one that reads a node; None if there are several, or none."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def check_one_dynamic(node: Node, is_constant: Callable[[Node], bool]) -> None:
    """Raises `Refused` where more than one dimension varies."""
    if sum(isinstance(size, torch.SymInt) for size in node.meta["val"].shape) > 1:
        raise Refused("more than one dynamic dimension")


def check_fits_halves(node: Node, factor: float) -> None:
    """Raises `Refused` where values in float16 would be multiplied with more than 1."""
    if factor > 1 and node.meta["val"].dtype is torch.float16:
        raise Refused("a product beyond what float16 can count")


def reduced_dims(node: Node) -> list[int]:
    """The dimensions that a sum, a mean or a maximum goes over, in order."""
    rank = arg(node, 0).meta["val"].dim()
    given = option(node, 1, ())
    given = [given] if isinstance(given, int) else given or range(rank)
    return sorted(dim % rank for dim in given)
