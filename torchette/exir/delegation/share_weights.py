# SPDX-License-Identifier: BSD-3-Clause
# In: planned methods that a file contains twice, with delegates and as a portable plan for devices without the backend.
# Out: weights of the portable plan in the dimension order that a delegate stores.
"""Weights of portable plans use the layout of the delegates, so that the file stores their bytes once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir.delegation.delegate import LoweredBackendModule
from torchette.exir.delegation.named_data import NamedDataStore
from torchette.exir.graph import placeholders, tensor_of
from torchette.exir.tensor import TensorSpec, stride_from_dim_order

# (operator, argument indices) that accept a weight in any dimension order. A quantized weight is converted first.
_READERS_OF_ANY_ORDER = [(torch.ops.aten.convolution.out, [1]), (torch.ops.aten._to_copy.out, [0])]


def share_weights(
    portable: Iterable[ExportedProgram],
    delegated: Iterable[ExportedProgram],
    data_file_of: Callable[[Node], str | None] | None = None,
) -> None:
    """Reorders the specs of weights in portable plans if delegates store the same bytes by name.

    Args:
        portable: planned programs without delegates. The function edits the specs of their placeholders.
        delegated: the programs of the same file that call delegates.
        data_file_of: returns the data file of a constant. A constant with a data file keeps its order.
    """
    portable = list(portable)
    if not portable:
        return
    held = NamedDataStore()
    for program in delegated:
        for module in program.graph_module.modules():
            if isinstance(module, LoweredBackendModule) and module.named_data_store_output is not None:
                held.merge_named_data_store(module.named_data_store_output)
    for program in portable:
        for node, stored in zip(placeholders(program), program.graph_signature.input_specs, strict=True):
            tensor, spec = tensor_of(program, stored), node.meta.get("spec")
            if tensor is None or not isinstance(spec, TensorSpec) or not spec.const:
                continue
            if data_file_of is not None and data_file_of(node):
                continue
            order = _order_of_delegates(node, tensor, held)
            if order is not None:
                spec.dim_order, spec.stride = order, stride_from_dim_order(spec.shape, order)


def _order_of_delegates(node: Node, tensor: torch.Tensor, held: NamedDataStore) -> tuple[int, ...] | None:
    """Returns the dimension order in which a delegate stores a weight that only convolutions read, such as
    channels-last, or None."""
    if tensor.dim() < 3:
        return None
    for user in node.users:
        places = [i for i, argument in enumerate(user.args) if argument is node]
        if (user.target, places) not in _READERS_OF_ANY_ORDER:
            return None
    taps = range(2, tensor.dim())
    orders = [(0, 1, *taps), (0, *taps, 1), (1, *taps, 0)]
    return next((order for order in orders if held.holds(tensor.permute(order))), None)
