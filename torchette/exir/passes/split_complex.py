# SPDX-License-Identifier: BSD-3-Clause
# In: complex tensors. Out: pairs of real tensors. Results and buffers become `torch.view_as_real` of the complex
# tensor, because no file can store complex tensors; the output structure marks these results. Inputs and branches are
# unchanged; the dialect rejects complex tensors in them.
"""Computes with complex tensors as pairs of real tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import Argument
from torch.utils import _pytree as pytree

from torchette.exir.arguments import int_arg, node_arg
from torchette.exir.decompositions import complex_numbers, fourier
from torchette.exir.decompositions.complex_numbers import REAL, Pair
from torchette.exir.graph import (
    add_constant,
    call,
    fake_mode,
    map_nodes,
    note,
    outputs,
    placeholders,
    replace_constant,
    sync_signature,
    tensor_of,
)
from torchette.exir.interface import mark_complex_outputs

aten = torch.ops.aten


def split_complex(
    program: ExportedProgram, decompositions: Mapping[Any, Callable[..., Any]]
) -> ExportedProgram:
    """Replace every complex tensor by a pair of real tensors. Operators without a rule stay, and the dialect rejects
    them.

    `decompositions` is the table for tracing the new operators.
    """
    if not any(_is_complex(node) for node in program.graph.nodes):
        return program
    split = _Split(program, decompositions)
    for node in list(program.graph.nodes):
        split.visit(node)
    split.drop_what_is_unused()
    sync_signature(program)
    note(program, f"{split.count} operations on complex tensors became operations on real pairs")
    return program


def _is_complex(node: Node) -> bool:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return any(isinstance(value, torch.Tensor) and value.dtype in REAL for value in leaves)


class _Split:
    """The state of the pass. `pairs` maps each complex node to its replacement: a pair of nodes, or a list of pairs."""

    def __init__(self, program: ExportedProgram, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        self.program, self.decompositions = program, decompositions
        self.pairs: dict[Node, Any] = {}
        inputs = zip(placeholders(program), program.graph_signature.input_specs, strict=True)
        tensors = {node: tensor_of(program, spec) for node, spec in inputs}
        self.stored = {node: tensor for node, tensor in tensors.items() if tensor is not None}
        self.waves: dict[Node, torch.Tensor] = {}
        self.count = 0

    def visit(self, node: Node) -> None:
        if node.op == "placeholder":
            if _is_complex(node):
                self._split_node(node, next(n for n in self.program.graph.nodes if n.op != "placeholder"))
        elif node.op == "output":
            self._return_pairs(node)
        elif node.target is operator.getitem and node.args[0] in self.pairs:
            self.pairs[node] = self.pairs[node_arg(node)][int_arg(node, 1)]
        elif _is_complex(node) or node.target in _OF_VIEWS or self._takes_pairs(node):
            rule = _RULES.get(node.target)
            result = NotImplemented if rule is None else self._compute(node, rule)
            if result is NotImplemented:
                node.args, node.kwargs = (map_nodes(a, self._joiner(node)) for a in (node.args, node.kwargs))
                if isinstance(node.meta.get("val"), torch.Tensor) and _is_complex(node):
                    self._split_node(node, node.next)
                return
            self.count += 1
            if _is_complex(node):
                self.pairs[node] = result
            else:
                node.replace_all_uses_with(result)
                self.program.graph.erase_node(node)

    def _takes_pairs(self, node: Node) -> bool:
        return any(operand in self.pairs for operand in node.all_input_nodes)

    def drop_what_is_unused(self) -> None:
        for node in reversed(self.program.graph.nodes):
            operands = node.all_input_nodes
            if node.op == "call_function" and not node.users and any(map(_is_complex, (node, *operands))):
                self.program.graph.erase_node(node)

    def _split_node(self, node: Node, before: Node) -> None:
        """Splits a complex node that stays, or a constant or buffer, which is then stored as real pairs."""
        both = node
        if node in self.stored:
            replace_constant(
                self.program, node, torch.view_as_real(self.stored[node].detach().resolve_conj()).contiguous()
            )
        else:
            both = self._call(before, aten.view_as_real.default, node, like=node)
        parts = [self._call(before, aten.select.int, both, -1, i, like=node) for i in range(2)]
        self.pairs[node] = Pair(*parts)

    def _return_pairs(self, output: Node) -> None:
        """Returns `torch.view_as_real` of each complex result, and records which user results these are."""
        results = outputs(self.program)
        kinds = [spec.kind for spec in self.program.graph_signature.output_specs]
        user = [r for r, kind in zip(results, kinds, strict=True) if kind not in _NOT_RETURNED]
        if any(r in self.pairs for r in user):
            mark_complex_outputs(self.program, [r in self.pairs for r in user])
        stacked = {
            r: self._stack(self.pairs[r], output, like=r) for r in dict.fromkeys(results) if r in self.pairs
        }
        output.args = (tuple(stacked.get(r, r) for r in results),)

    def _stack(self, pair: Pair, before: Node, like: Node) -> Node:
        parts = [self._call(before, aten.unsqueeze.default, part, -1, like=like) for part in pair]
        return self._call(before, aten.cat.default, parts, -1, like=like)

    def _joiner(self, before: Node) -> Callable[[Node], Node]:
        def joined(node: Node) -> Node:
            if node not in self.pairs or (node in self.stored and node.op != "placeholder"):
                return node
            both = self._stack(self.pairs[node], before, like=node)
            return self._call(before, aten.view_as_complex.default, both, like=node)

        return joined

    def _call(self, before: Node, target: Callable[..., Any], *args: Argument, like: Node) -> Node:
        with fake_mode(self.program):
            val = target(*map_nodes(args, lambda node: node.meta["val"]))
        return call(before, target, args, val=val, like=like)

    def _constant(self, tensor: torch.Tensor, like: Node) -> Node:
        for placeholder, known in self.waves.items():
            if known.dtype == tensor.dtype and torch.equal(known, tensor):
                return placeholder
        placeholder = add_constant(self.program, "waves", tensor, like)
        self.waves[placeholder] = tensor
        return placeholder

    def _compute(self, node: Node, rule: Callable[..., Any]) -> Any:
        """Inserts the operators of the rule before the node. Returns the nodes of the results, or NotImplemented."""
        parts_of: dict[Node, list[Node]] = {
            n: list(self.pairs[n]) if n in self.pairs else [n] for n in node.all_input_nodes
        }
        inputs = [part for parts in parts_of.values() for part in parts]
        rule_results: list[Any] = []

        def traced(*values: object) -> Any:
            source = iter(values)
            by_node = {
                n: Pair(next(source), next(source)) if n in self.pairs else next(source) for n in parts_of
            }
            args, kwargs = (
                pytree.tree_map_only(Node, by_node.__getitem__, a) for a in (node.args, node.kwargs)
            )
            rule_results.append(rule(*args, **kwargs))
            return [] if rule_results[-1] is NotImplemented else pytree.tree_leaves(rule_results[-1])

        with fake_mode(self.program):
            module = make_fx(traced, decomposition_table=dict(self.decompositions))(
                *(n.meta["val"] for n in inputs)
            )
        if rule_results[-1] is NotImplemented:
            return NotImplemented
        new = dict(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True))
        waves = _computed(module.graph)
        for inner in module.graph.nodes:
            if inner.op != "call_function" or inner in waves:
                continue
            for wave in inner.all_input_nodes:
                if wave in waves and wave not in new:
                    new[wave] = self._constant(waves[wave], node)
            args, kwargs = (map_nodes(a, new.__getitem__) for a in (inner.args, inner.kwargs))
            new[inner] = call(node, inner.target, args, kwargs, val=inner.meta["val"], like=node)
        results = map_nodes(module.graph.output_node().args[0], new.__getitem__)
        return pytree.tree_unflatten(results, pytree.tree_structure(rule_results[-1]))


def _computed(graph: Graph) -> dict[Node, torch.Tensor]:
    """Returns values that depend only on integer ranges, such as cosines, so that they are computed at compile time."""
    known: dict[Node, torch.Tensor] = {}
    for node in graph.nodes:
        operands = node.all_input_nodes
        if (
            (operands or node.target in _RANGES)
            and node.op == "call_function"
            and all(n in known for n in operands)
        ):
            known[node] = node.target(*map_nodes(node.args, known.__getitem__), **node.kwargs)
    return known


# Operators on the imaginary part of a conjugate, which is a view that negates the values it reads.
_OF_VIEWS = frozenset({aten._neg_view.default, aten.resolve_neg.default})
_NOT_RETURNED = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.TOKEN)
_RANGES = frozenset({aten.arange.default, aten.arange.start, aten.arange.start_step})
_RULES = {**complex_numbers.RULES, **fourier.RULES}
