# SPDX-License-Identifier: BSD-3-Clause
# A graph and what a backend supports come in; groups of nodes that one call each can replace go out. For partitioners
# of one's own. Names are ExecuTorch's.
"""Ready-made partitioners and the parts of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import Partition
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.utils.matcher_utils import SubgraphMatcher

from torchette.errors import DelegationError
from torchette.exir.delegation.delegate import (
    CompileSpec,
    DelegationSpec,
    Partitioner,
    PartitionResult,
    is_delegate_call,
    reject,
    why_not_taken,
)
from torchette.exir.delegation.partition import TAG, cut
from torchette.exir.graph import tensor_of


class AllNodePartitioner(Partitioner):
    """Gives every node, and all weights, to one backend."""

    def __init__(self, backend_id: str, compile_specs: list[CompileSpec]) -> None:
        super().__init__()
        self.delegation_spec = DelegationSpec(backend_id, compile_specs)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag everything but the user's inputs and the output."""
        tag = self.delegation_spec.backend_id
        specs = {spec.arg.name: spec for spec in exported_program.graph_signature.input_specs}  # type: ignore[union-attr]
        for node in exported_program.graph.nodes:
            stored = node.op == "placeholder" and tensor_of(exported_program, specs[node.name]) is not None
            if stored or node.op == "call_function":
                node.meta[TAG] = tag
        return PartitionResult(exported_program, {tag: self.delegation_spec})


def generate_partitions_from_list_of_nodes(
    graph_module: GraphModule,
    pattern_list: Sequence[Sequence[Node]] | None = None,
    op_support: OperatorSupportBase | None = None,
) -> list[Partition]:
    """The largest groups of the given nodes, and of those that `op_support` accepts, that single calls can replace."""
    if pattern_list is None and op_support is None:
        raise DelegationError(
            "neither nodes nor an OperatorSupportBase is given, so nothing can be grouped",
            code="bad-partition",
        )
    given = {node for nodes in pattern_list or () for node in nodes}
    submodules = dict(graph_module.named_modules())
    nodes = [node for node in graph_module.graph.nodes if node.op not in ("placeholder", "output")]
    tags = {
        node: "supported"
        for node in nodes
        if node in given or (op_support is not None and _supports(op_support, submodules, node))
    }
    return [Partition(id=number, nodes=piece.nodes) for number, piece in enumerate(cut(nodes, tags))]


def _supports(support: OperatorSupportBase, submodules: Any, node: Node) -> bool:
    reason = why_not_taken(
        lambda: None if support.is_node_supported(submodules, node) else "its OperatorSupport says no"
    )
    if reason is not None and node.op == "call_function":
        reject(node, reason)
    return reason is None


def generate_pattern_op_partitions(
    graph_module: GraphModule,
    patterns: Sequence[Graph] | None = None,
    partitions_list: Sequence[Sequence[Node]] | None = None,
    op_support: OperatorSupportBase | None = None,
    ignore_literals: bool = False,
) -> list[Partition]:
    """As `generate_partitions_from_list_of_nodes`, with all nodes besides that match one of the patterns."""
    found = [list(nodes) for nodes in partitions_list or ()]
    for pattern in patterns or ():
        for match in SubgraphMatcher(pattern, ignore_literals=ignore_literals).match(graph_module.graph):
            pairs = match.nodes_map.items()
            found.append(
                [b for a, b in pairs if a.op not in ("placeholder", "output") and b.op == "call_function"]
            )
    return generate_partitions_from_list_of_nodes(graph_module, found, op_support)


# ---- reading a lowered graph ----


def get_delegates(graph: Graph) -> list[Node]:
    """The attributes that stand for what backends have taken."""
    return [node.args[0] for node in graph.nodes if is_delegate_call(node)]  # type: ignore[misc]


def get_non_lowered_nodes(graph: Graph) -> list[Node]:
    """The calls that run on the portable kernels."""
    return [
        node
        for node in graph.nodes
        if node.op == "call_function"
        and not is_delegate_call(node)
        and not any(is_delegate_call(source) for source in node.all_input_nodes)
    ]


def format_delegated_graph(graph_module: GraphModule) -> str:
    """The graph as text, with the graph of every delegate below its call."""
    lines = []
    for node in graph_module.graph.nodes:
        lines.append(str(node.format_node()))
        if is_delegate_call(node):
            callee = getattr(graph_module, str(node.args[0].target))
            lines.append(f"    backend_id: {callee.backend_id}")
            lines += [f"    {line}" for line in str(callee.original_module.graph).splitlines()]
    return "\n".join(lines)


def print_delegated_graph(graph_module: GraphModule) -> None:
    """Print what `format_delegated_graph` gives."""
    print(format_delegated_graph(graph_module))


def is_shape_dynamic(node: Node) -> bool:
    """Whether a dimension of a node's result is known only at run time."""
    return any(isinstance(size, torch.SymInt) for size in getattr(node.meta.get("val"), "shape", ()))


class DelegateMappingBuilder:
    """Collects instruction of a backend -> debug handles, for `PreprocessResult.debug_handle_map`.

    Args:
        generated_identifiers: number the instructions from 0, rather than have them named.
    """

    def __init__(self, generated_identifiers: bool = False) -> None:
        self._generated = generated_identifiers
        self._handles: dict[Any, tuple[int, ...]] = {}

    def get_delegate_mapping(self) -> dict[Any, tuple[int, ...]]:
        """What was collected."""
        return dict(self._handles)

    def insert_delegate_mapping_entry(
        self,
        nodes: Node | Sequence[Node] | None = None,
        handles: int | Sequence[int | None] | None = None,
        identifier: int | str | None = None,
    ) -> int | str:
        """Add an instruction that comes from nodes, or from debug handles; returns its identifier.

        Raises:
            ValueError: an identifier that is given twice or where they are generated, both or neither of nodes and
                handles, or no debug handle at all.
        """
        if (identifier is not None) == self._generated:
            raise ValueError("an identifier is given if and only if they are not generated")
        if identifier in self._handles:
            raise ValueError(f"the identifier {identifier!r} is there already")
        if (nodes is None) == (handles is None):
            raise ValueError("give either nodes or handles")
        if nodes is not None:
            sources = [nodes] if isinstance(nodes, Node) else nodes
            handles = [node.meta.get("debug_handle") for node in sources]
        found = [handles] if isinstance(handles, int) else handles
        kept = tuple(sorted({handle for handle in found or () if handle is not None}))
        if not kept:
            raise ValueError("none of the nodes has a debug handle")
        identifier = len(self._handles) if identifier is None else identifier
        self._handles[identifier] = kept
        return identifier


class WhyNoPartition:
    """Records why nodes are left out, for the delegation report and, if it listens, a logger."""

    def __init__(self, logger: Any = None) -> None:
        self._logger = logger

    def __call__(self, node: Node, reason: str) -> None:
        """Record it."""
        reject(node, reason)
        if self._logger is not None:
            self._logger.debug("%s: %s", node, reason)
