# SPDX-License-Identifier: BSD-3-Clause
# In: a program in the Edge dialect, and operators of a target. Out: the program with the patterns of these operators
# replaced by the operators. Also the reverse.
"""Replaces patterns of Edge operators by operators of a target, and the reverse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.utils.matcher_utils import InternalMatch, SubgraphMatcher

from torchette.exir.arguments import node_arg
from torchette.exir.dialects._ops import BackendOpOverload
from torchette.exir.dialects.backend._ops import dialect_operator
from torchette.exir.graph import add_constant, call, calls, fake_mode, graph_modules, note, replace

Pass = Callable[[ExportedProgram], ExportedProgram]


def replace_edge_with_backend(*operators: BackendOpOverload) -> Pass:
    """Returns a pass that replaces each pattern by its operator. Longer patterns should come first.

    A pattern is matched by the operators that it calls. It must call only operators of the Edge dialect:
    `ops.edge.aten.relu.default(ops.edge.aten.linear.default(x, weight, bias))`. Its parameters are the operator's
    arguments, and it returns one tensor.
    """
    patterns = [(op, torch.fx.symbolic_trace(op.pattern).graph) for op in operators]

    def replace_patterns(program: ExportedProgram) -> ExportedProgram:
        """Replace patterns by the operators of a target."""
        for op, pattern in patterns:
            matcher = SubgraphMatcher(pattern, match_output=False, remove_overlapping_matches=True)
            matches = [match for module in graph_modules(program) for match in matcher.match(module.graph)]
            placed: dict[Node, Node] = {}  # a match may read the result of another one
            for match in matches:
                _replace_match(program, op, match, placed)
            if matches:
                note(program, f"{len(matches)} patterns replaced by {op}")
        return program

    replace_patterns.__annotations__["program"] = ExportedProgram
    return replace_patterns


def _replace_match(
    program: ExportedProgram, op: BackendOpOverload, match: InternalMatch, placed: dict[Node, Node]
) -> None:
    (result,) = match.returning_nodes
    args = tuple(placed.get(placeholder, placeholder) for placeholder in match.placeholder_nodes)
    node = placed[result] = call(result, op, args, val=result.meta["val"], like=result)
    inner = [n for n in match.nodes_map.values() if n not in match.placeholder_nodes and n is not result]
    replace(program, result, node)
    for unused in sorted(inner, reverse=True):
        if unused.op == "call_function" and not unused.users:
            unused.graph.erase_node(unused)


def replace_backend_with_edge(program: ExportedProgram) -> ExportedProgram:
    """Replace the operators of a target by their patterns."""
    mode = fake_mode(program)
    for node in calls(program):
        op = dialect_operator(node.target) if isinstance(node.target, torch._ops.OpOverload) else None
        if not isinstance(op, BackendOpOverload):
            continue
        inputs: list[Node] = list(node.all_input_nodes)

        def pattern(
            *values: object, node: Node = node, op: BackendOpOverload = op, inputs: Sequence[Node] = inputs
        ) -> Any:
            value_of: dict[Node, Any] = dict(zip(inputs, values, strict=True))
            args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), value_of.__getitem__)
            return op.pattern(*args, **kwargs)

        with mode:
            # Before dispatch, the trace records the operator and not its decomposition.
            traced = make_fx(pattern, pre_dispatch=True)(*(n.meta["val"] for n in inputs))
        _inline(program, node, traced, inputs)
    return program


def _inline(program: ExportedProgram, node: Node, traced: torch.fx.GraphModule, inputs: list[Node]) -> None:
    sources = iter(inputs)
    copies: dict[Node, Node] = {}
    for inner in traced.graph.nodes:
        if inner.op == "placeholder":
            copies[inner] = next(sources)
        elif inner.op == "get_attr":
            tensor = getattr(traced, str(inner.target))
            copies[inner] = add_constant(program, f"{node.name}_constant", tensor, node)
        elif inner.op == "call_function":
            args, kwargs = torch.fx.node.map_arg((inner.args, dict(inner.kwargs)), copies.__getitem__)
            copies[inner] = call(node, inner.target, args, kwargs, val=inner.meta["val"], like=node)
    result = copies[node_arg(traced.graph.output_node())]
    replace(program, node, result)


__all__ = ["replace_backend_with_edge", "replace_edge_with_backend"]
