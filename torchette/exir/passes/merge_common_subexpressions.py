# SPDX-License-Identifier: BSD-3-Clause
# In: a graph. Out: one call in place of several calls of an operator with the same arguments.
"""Merges common subexpressions."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir import ops
from torchette.exir.graph import graph_modules, note, outputs, replace

_SMALL = 4096  # bytes


def merge_common_subexpressions(program: ExportedProgram) -> ExportedProgram:
    """Merge equal calls. Two outputs of the graph stay separate values."""
    merged = 0
    results = set(outputs(program))
    for module in graph_modules(program):
        first: dict[Any, Node] = {}
        for node in list(module.graph.nodes):
            if node.op != "call_function" or not _is_pure(node.target) or _is_large_fill(node):
                continue
            key = (node.target, _key(node.args), _key(tuple(sorted(node.kwargs.items()))))
            earlier = first.setdefault(key, node)
            if earlier is not node and not (node in results and earlier in results):
                replace(program, node, earlier)
                if node in results:
                    results.add(earlier)
                merged += 1
    if merged:
        note(program, f"{merged} repeated calls merged")
    return program


def _is_pure(target: object) -> bool:
    return target is operator.getitem or target in ops.SYMBOLIC_FUNCTIONS or ops.is_pure(target)


def _is_large_fill(node: Node) -> bool:
    """Returns whether a call computes a tensor from nothing. A second call costs less than memory between both uses."""
    val = node.meta.get("val")
    return (
        not node.all_input_nodes
        and isinstance(val, torch.Tensor)
        and val.numel() * val.dtype.itemsize > _SMALL
    )


def _key(value: object) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_key(item) for item in value)
    if isinstance(value, (bool, int, float, complex)):
        # 1, 1.0 and True are equal in Python, and so are 0.0 and -0.0. The keys of all of them differ.
        return (type(value), repr(value))
    if isinstance(value, (Node, str, torch.dtype, type(None))):
        return value
    return (type(value), str(value))
