# SPDX-License-Identifier: BSD-3-Clause
# In: a graph with bfloat16 or float16 values. Out: the same computation in float32. Inputs, outputs and large weights
# keep their 16-bit dtype, because memory traffic dominates their cost. The kernels compute in float32 on all processors.
"""Computes in float32 on 16-bit weights."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.fx.node import Argument

from torchette.exir import ops
from torchette.exir.arguments import list_arg
from torchette.exir.graph import (
    add_constant,
    buffer_updates,
    call,
    calls,
    constants,
    drop_unused_constants,
    note,
    replace,
    replace_constant,
    sync_signature,
)
from torchette.exir.passes.fold_constants import fold_constants
from torchette.exir.passes.remove_noops import remove_noops

aten = torch.ops.aten

# Operators, with or without the suffix _copy, that move elements without changing them.
_MOVES = frozenset({"index_put", "permute", "squeeze", "transpose", "unsqueeze", "view"})
NARROW = (torch.bfloat16, torch.float16)
# Operators with kernels that read 16-bit weights -> index of the weight argument.
_LAYERS = {
    aten.linear.default: 1, aten.mm.default: 1, aten.addmm.default: 2, aten.convolution.default: 1,
}  # fmt: skip
# Operators with results that depend on the bit representation of a dtype.
_BIT_DEPENDENT = frozenset(
    {aten.view_copy.dtype, aten.view.dtype, aten.nextafter.default, aten.hash_tensor.default}
)


def compute_in_float32(program: ExportedProgram) -> ExportedProgram:
    """Replaces bfloat16 and float16 arithmetic by float32 arithmetic.

    Does not change the bodies of loops and branches.
    """
    _read_rows(program)
    widening = _Widening(program)
    for node in list(program.graph.nodes):
        widening.visit(node)
    sync_signature(program)
    if widening.count:
        note(program, f"{widening.count} 16-bit values are computed in float32")
        remove_noops(program)
        drop_unused_constants(program)
    return program


def fold_around_weights(program: ExportedProgram) -> ExportedProgram:
    """Folds constants, but does not widen large 16-bit weights."""
    return fold_constants(program, widen=False)


def _read_rows(program: ExportedProgram) -> None:
    """Widens only the looked-up rows of a 16-bit embedding table, not the table."""
    stored = constants(program)
    for node in calls(program, aten.embedding.default):
        table = widened_from(node.args[0])
        if table is not None and table in stored:
            val = node.meta["val"].to(table.meta["val"].dtype)
            rows = call(node, aten.embedding.default, (table, *node.args[1:]), val=val, like=node)
            wide = {"dtype": torch.float32}
            replace(
                program,
                node,
                call(node, aten._to_copy.default, (rows,), wide, val=node.meta["val"], like=node),
            )


def store_widened(program: ExportedProgram) -> ExportedProgram:
    """Stores 16-bit weights as float32 if no operator reads the 16-bit form."""
    stored, count = constants(program), 0
    for node in calls(program):
        source = widened_from(node)
        if source is not None and source in stored:
            replace(program, node, add_constant(program, f"{source.name}_wide", stored[source].float(), node))
            count += 1
    if count:
        note(program, f"{count} 16-bit weights are stored as float32")
    drop_unused_constants(program)
    return program


def widened_from(value: object) -> Node | None:
    """Returns the 16-bit node that `value` converts to float32, or None."""
    if not isinstance(value, Node) or value.target is not aten._to_copy.default:
        return None
    (source,) = value.all_input_nodes
    wide, narrow = value.meta["val"].dtype, source.meta["val"].dtype
    return source if wide is torch.float32 and narrow in NARROW else None


class _Widening:
    """Converts the nodes of a graph to float32, in order."""

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._stored = constants(program)
        self._original_dtypes: dict[Node, torch.dtype] = {}  # node that is now float32 -> its original dtype
        self._casts: dict[tuple[Node, torch.dtype], Node] = {}
        self._wide: dict[Node, Node] = {}  # stored tensor -> its float32 copy
        self._states: set[str] = set()
        self._moves: set[Node] = set()
        self.count = 0
        for _, _, state in buffer_updates(program):
            moves, readers = _moves_and_readers(state)
            if readers and all(
                ops.is_operator(one.target) and one.target.namespace == "cpu" for one in readers
            ):
                self._moves |= moves  # the engine's kernels read 16-bit state directly
            else:
                self._keep_state_wide(state)

    def _keep_state_wide(self, state: Node) -> None:
        """Stores a state in float32. Each call reads all of a state, such as a cache, and writes only a part of it."""
        specs = self._program.graph_signature.input_specs
        spec = next(spec for spec in specs if getattr(spec.arg, "name", None) == state.name)
        tensor = self._program.state_dict.get(spec.target, self._program.constants.get(spec.target))
        if spec.target is not None and tensor is not None and tensor.dtype in NARROW:
            self._original_dtypes[state] = tensor.dtype
            self._states.add(spec.target)
            replace_constant(self._program, state, tensor.float())

    def visit(self, node: Node) -> None:
        """Converts a node to float32 operands and results. Operators that are kept receive their original dtypes."""
        if node.op == "placeholder" or ops.is_symbolic(node.target):
            return
        if node.op == "output":
            specs = self._program.graph_signature.output_specs
            results = list(list_arg(node))
            for i, (value, spec) in enumerate(zip(results, specs, strict=True)):
                if isinstance(value, Node):  # one value may be both a state and an output
                    is_state = spec.kind is OutputKind.BUFFER_MUTATION and spec.target in self._states
                    results[i] = (self._as_wide if is_state else self._as_given)(value, node)
            node.args = (tuple(results) if isinstance(node.args[0], tuple) else results,)
            return
        if widened_from(node) in self._stored and any(_is_weight(node, user) for user in node.users):
            return
        if self._is_kept(node):
            node.args, node.kwargs = self._mapped(node, self._as_given)
            return
        node.args, node.kwargs = self._mapped(node, self._as_wide)
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor) and val.dtype in NARROW:
            self._original_dtypes[node] = val.dtype
            self.count += 1
        if isinstance(val, (list, tuple)):
            node.meta["val"] = type(val)(map(_wide, val))
        else:
            node.meta["val"] = _wide(val)

    def _is_kept(self, node: Node) -> bool:
        target, sources = node.target, node.all_input_nodes
        if node in self._moves:
            return True
        if target is operator.getitem:
            return isinstance(node.meta["val"], torch.Tensor) and _is_narrow(
                sources[0].meta["val"][node.args[1]]
            )
        if (
            not ops.is_operator(target)
            or target.namespace != "aten"
            or target in _BIT_DEPENDENT | ops.ASSERTIONS
        ):
            return True
        if target is aten.embedding.default and sources[0] in self._stored:
            return True  # only the looked-up rows are widened
        return not ops.is_pure(target)

    def _mapped(self, node: Node, change: Callable[[Node, Node], Node]) -> tuple[Any, Any]:
        def leaf(value: Argument) -> Any:
            if isinstance(value, torch.dtype):
                return torch.float32 if change == self._as_wide and value in NARROW else value
            return change(value, node) if isinstance(value, Node) else value

        return torch.fx.node.map_aggregate(node.args, leaf), torch.fx.node.map_aggregate(node.kwargs, leaf)

    def _as_given(self, value: Node, user: Node) -> Node:
        return (
            self._cast(value, self._original_dtypes[value], user) if value in self._original_dtypes else value
        )

    def _as_wide(self, value: Node, user: Node) -> Node:
        if not _is_narrow(value.meta.get("val")) or value in self._original_dtypes:
            return value
        if value not in self._stored or _is_weight(value, user):
            return self._cast(value, torch.float32, user)
        if value not in self._wide:
            tensor = value.meta.get("exact", self._stored[value]).float()
            self._wide[value] = add_constant(self._program, f"{value.name}_wide", tensor, value)
        return self._wide[value]

    def _cast(self, value: Node, dtype: torch.dtype, user: Node) -> Node:
        if (value, dtype) not in self._casts:
            val = value.meta["val"].to(dtype)
            cast = call(user, aten._to_copy.default, (value,), {"dtype": dtype}, val=val, like=user)
            self._casts[value, dtype] = cast
        return self._casts[value, dtype]


def _moves_and_readers(state: Node) -> tuple[set[Node], set[Node]]:
    """Returns the calls that move a state's elements, and the calls that read them."""
    moves, readers, left = set(), set(), [state]
    while left:
        for user in left.pop().users:
            if user.op == "output" or user in moves:
                continue
            if ops.is_operator(user.target) and user.target._opname.removesuffix("_copy") in _MOVES:
                moves.add(user)
                left.append(user)
            else:
                readers.add(user)
    return moves, readers


def _is_weight(value: Node, user: Node) -> bool:
    place = _LAYERS.get(user.target) if ops.is_operator(user.target) else None
    return place is not None and len(user.args) > place and user.args[place] is value


def _is_narrow(val: object) -> TypeGuard[torch.Tensor]:
    return isinstance(val, torch.Tensor) and val.dtype in NARROW


def _wide(val: object) -> Any:
    return val.to(torch.float32) if _is_narrow(val) else val
