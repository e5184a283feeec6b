# SPDX-License-Identifier: BSD-3-Clause
# In: calls of custom operators with `out=`, which torch makes functional only for its own operators. Out: calls of the
# functional overloads, and a copy of each result to the tensor of the caller.
"""Replaces custom operators with `out=` by functional operators and copies."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.errors import UnsupportedError
from torchette.exir import ops
from torchette.exir.arguments import checked, overload
from torchette.exir.graph import call, calls, place


def replace_custom_outs(program: ExportedProgram) -> ExportedProgram:
    """Replace each custom operator that writes to `out=` by its functional overload and a copy of the result."""
    for node in list(calls(program)):
        if ops.is_out_variant(node.target) and overload(node).namespace != "aten":
            _replace(node)
    return program


def _replace(node: Node) -> None:
    target: Any = node.target
    functional = ops.functional_overload(target)
    if functional is None:
        name = target._schema.name
        raise UnsupportedError(
            f"{target} writes to out=, and {name} has no functional overload with the same arguments",
            where=[place(node)],
            hints=[f"define {name} as a functional operator with torch.library, and call that"],
        )
    outs = ops.written_arguments(node)
    names = ops.out_names(target)
    kwargs = {name: value for name, value in node.kwargs.items() if name not in names}
    is_tuple = len(target._schema.returns) != 1 or isinstance(node.kwargs[names[0]], (list, tuple))
    vals = [out.meta["val"] for out in outs]
    result = call(node, functional, node.args, kwargs, val=tuple(vals) if is_tuple else vals[0], like=node)
    for index, (out, val) in enumerate(zip(outs, vals, strict=True)):
        value = call(node, operator.getitem, (result, index), val=val, like=node) if is_tuple else result
        call(node, torch.ops.aten.copy_.default, (out, value), val=val, like=node)
    for user in list(node.users):
        if not is_tuple:
            user.replace_input_with(node, outs[0])
        elif user.target is operator.getitem:
            user.replace_all_uses_with(outs[checked(user.args[1], int)])
            user.graph.erase_node(user)
    node.graph.erase_node(node)
