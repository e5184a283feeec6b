# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's names for torch's pytree functions. A .pte file stores a TreeSpec as text. torchette.pytree needs no torch.
"""Converts nested structures to a list of leaves and a `TreeSpec`, and back."""

from torch.utils._pytree import (
    TreeSpec,
    tree_flatten,
    tree_map,
    tree_unflatten,
)
from torch.utils._pytree import _broadcast_to_and_flatten as broadcast_to_and_flatten
from torch.utils._pytree import register_pytree_node as register_custom
from torch.utils._pytree import treespec_loads as from_str

__all__ = [
    "TreeSpec",
    "broadcast_to_and_flatten",
    "from_str",
    "register_custom",
    "tree_flatten",
    "tree_map",
    "tree_unflatten",
]
