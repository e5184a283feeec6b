# SPDX-License-Identifier: BSD-3-Clause
# In: functional calls. Out: calls of their out variants, so that every result is written to its planned location. The
# node does not have the out arguments: the emitter appends the tensors of the node's results.
"""Converts every operator to its out variant."""

from __future__ import annotations

import operator
from typing import Any

from torch.export import ExportedProgram
from torch.fx import GraphModule

from torchette.exir import ops
from torchette.exir.graph import calls, place


def to_out_variants(program: ExportedProgram) -> ExportedProgram:
    """Retarget each call to its out variant. Declare out variants of custom operators. Report all missing ones
    together."""
    missing = _retarget(program)
    if missing:
        raise ops.missing_out_variants(missing)
    return program


class ToOutVarPass:
    """The pass as an object, under ExecuTorch's name.

    Args:
        ignore_to_out_var_failure: keep operators without an out variant.
    """

    def __init__(self, ignore_to_out_var_failure: bool = False) -> None:
        self.ignore_to_out_var_failure = ignore_to_out_var_failure

    def __call__(self, program: ExportedProgram | GraphModule) -> Any:
        """Edits and returns the program, or returns a `PassResult` for a graph module."""
        if isinstance(program, GraphModule):
            from torchette.exir.passes.graph_module_passes import run_on  # imports this module

            return run_on(program, self)
        if not self.ignore_to_out_var_failure:
            return to_out_variants(program)
        _retarget(program)
        return program


def _retarget(program: ExportedProgram) -> list[tuple[Any, str]]:
    missing = []
    for node in calls(program):
        if (
            "alias" in node.meta
            or node.target is operator.getitem
            or ops.is_symbolic(node.target)
            or ops.is_higher_order(node.target)
            or ops.is_out_variant(node.target)
            or node.target is ops.copy_index
        ):
            continue
        out = None
        if ops.is_operator(node.target):
            out = ops.out_variant(node.target) or ops.declare_out_variant(node.target)
        if out is None:
            missing.append((node.target, place(node)))
            continue
        node.meta["functional"] = node.target
        if node.kwargs:
            arg_names = {argument.name for argument in out._schema.arguments}
            node.kwargs = {name: value for name, value in node.kwargs.items() if name in arg_names}
        node.target = out
    return missing
