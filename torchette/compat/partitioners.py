# SPDX-License-Identifier: BSD-3-Clause
"""Partitioners for custom backends, and their parts, with ExecuTorch's names."""

from __future__ import annotations

import logging
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import _get_qualified_name
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner, Partition
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.utils.matcher_utils import SubgraphMatcher

from torchette.errors import DelegationError
from torchette.exir.delegation.delegate import (
    CompileSpec,
    DelegationSpec,
    LoweredBackendModule,
    Partitioner,
    PartitionResult,
    is_delegate_call,
    reject,
    rejection_reason,
    tag_constant_data,
    tag_mutated_buffer,
)
from torchette.exir.delegation.partition import TAG, cut
from torchette.exir.graph import tensor_of
from torchette.packages import require


class AllNodePartitioner(Partitioner):
    """Delegates all nodes and weights to one backend."""

    def __init__(self, backend_id: str, compile_specs: list[CompileSpec]) -> None:
        super().__init__()
        self.delegation_spec = DelegationSpec(backend_id, compile_specs)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags all nodes except user inputs and the output."""
        tag = self.delegation_spec.backend_id
        specs = {spec.arg.name: spec for spec in exported_program.graph_signature.input_specs}
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
    """Groups the given nodes, and the nodes that `op_support` accepts, into the largest partitions that single calls
    can replace.

    Raises:
        DelegationError: if neither nodes nor a support is given.
    """
    if pattern_list is None and op_support is None:
        raise DelegationError(
            "expected nodes or an OperatorSupportBase; neither is given",
            code="bad-partition",
        )
    pattern_nodes = {node for nodes in pattern_list or () for node in nodes}
    submodules = dict(graph_module.named_modules())
    nodes = [node for node in graph_module.graph.nodes if node.op not in ("placeholder", "output")]
    tags = {
        node: "supported"
        for node in nodes
        if node in pattern_nodes or (op_support is not None and _supports(op_support, submodules, node))
    }
    return [Partition(id=number, nodes=piece.nodes) for number, piece in enumerate(cut(nodes, tags))]


def _supports(support: OperatorSupportBase, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
    reason = rejection_reason(
        lambda: (
            None if support.is_node_supported(submodules, node) else "its OperatorSupport does not support it"
        )
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
    """Like `generate_partitions_from_list_of_nodes`, but also includes nodes that match one of the patterns."""
    node_lists = [list(nodes) for nodes in partitions_list or ()]
    for pattern in patterns or ():
        for match in SubgraphMatcher(pattern, ignore_literals=ignore_literals).match(graph_module.graph):
            pairs = match.nodes_map.items()
            node_lists.append(
                [b for a, b in pairs if a.op not in ("placeholder", "output") and b.op == "call_function"]
            )
    return generate_partitions_from_list_of_nodes(graph_module, node_lists, op_support)


class GroupBasedPartitioner(CapabilityBasedPartitioner):
    """Proposes partitions of the nodes that `operator_support` accepts, as few as possible. Keeps node groups together.

    Args:
        graph_module: the graph.
        operator_support: decides which nodes are supported.
        allows_single_node_partition, non_compute_ops, allowed_single_node_partition_ops: see torch's
            `CapabilityBasedPartitioner`.
        node_groups: groups of nodes that stay in one partition.

    Raises:
        ValueError: if a node is in two groups.
    """

    def __init__(
        self,
        graph_module: GraphModule,
        operator_support: OperatorSupportBase,
        allows_single_node_partition: bool = False,
        non_compute_ops: Sequence[str] | None = None,
        allowed_single_node_partition_ops: Sequence[str] | None = None,
        node_groups: Sequence[Sequence[Node]] | None = None,
    ) -> None:
        super().__init__(
            graph_module, operator_support, allows_single_node_partition, non_compute_ops, allowed_single_node_partition_ops
        )  # fmt: skip
        self.node_groups = [list(dict.fromkeys(group)) for group in node_groups or ()]
        self._group: dict[Node, int] = {}
        for number, group in enumerate(self.node_groups):
            for node in group:
                if node in self._group:
                    raise ValueError(f"Node {node} exists in multiple groups.")
                self._group[node] = number

    def propose_partitions(self) -> list[Partition]:
        """Returns the partitions. A group that would be divided becomes a separate partition."""
        nodes = [node for node in self.graph_module.graph.nodes if node.op not in ("placeholder", "output")]
        submodules = dict(self.graph_module.named_modules())
        tags: dict[Node, str] = {}
        for node in nodes:
            of_taken = node.target is operator.getitem and node.args[0] in tags
            if of_taken or _supports(self.operator_support, submodules, node):
                tags[node] = "supported"
        apart: set[int] = set()
        while True:
            pieces = [piece.nodes for piece in cut(nodes, tags)]
            places: dict[int, set[int]] = {}
            for place, piece in enumerate(pieces):
                for node in piece:
                    if node in self._group:
                        places.setdefault(self._group[node], set()).add(place)
            divided = {number for number, numbers in places.items() if len(numbers) > 1} - apart
            if not divided:
                break
            apart.add(min(divided))
            for node in self.node_groups[min(divided)]:
                if node in tags:
                    tags[node] = f"group {min(divided)}"
        accepted = pieces if self.allows_single_node_partition else [p for p in pieces if self._is_enough(p)]
        return [Partition(id=number, nodes=piece) for number, piece in enumerate(accepted)]

    def _is_enough(self, nodes: list[Node]) -> bool:
        idle = {"torch.ops.aten.view", "_operator.getitem", *(self.non_compute_ops or ())}
        names = [_get_qualified_name(node.target) for node in nodes if node.op == "call_function"]  # type: ignore[arg-type]
        alone = self.allowed_single_node_partition_ops or ()
        return sum(name not in idle for name in names) > 1 or any(name in alone for name in names)


# ---- reading a lowered graph ----


def get_delegates(graph: Graph) -> list[Node]:
    """Returns the get_attr nodes of lowered modules."""
    return [node.args[0] for node in graph.nodes if is_delegate_call(node)]


def get_lowered_submodules(graph_module: GraphModule) -> list[tuple[str, LoweredBackendModule, Node]]:
    """Returns, for each delegate call: the attribute's name, the lowered module, and the get_attr node."""
    return [
        (str(node.target), getattr(graph_module, str(node.target)), node)
        for node in get_delegates(graph_module.graph)
    ]


def get_lowered_backend_modules(graph_module: GraphModule) -> list[LoweredBackendModule]:
    """Returns the lowered modules of a graph."""
    return [module for _, module, _ in get_lowered_submodules(graph_module)]


def is_lowered_module(obj: object) -> bool:
    """Whether an object is a lowered module."""
    return isinstance(obj, LoweredBackendModule)


@dataclass
class DelegationBreakdown:
    """The numbers of delegated and non-delegated calls of an operator."""

    op_type: str = ""
    delegated: int = 0
    non_delegated: int = 0


@dataclass
class DelegationInfo:
    """The counts of delegated and non-delegated calls of a graph, in total and by operator."""

    num_delegated_subgraphs: int
    num_delegated_nodes: int
    num_non_delegated_nodes: int
    delegation_by_operator: dict[str, DelegationBreakdown]

    def get_summary(self) -> str:
        """Returns the totals, one per line."""
        return (
            f"Total delegated subgraphs: {self.num_delegated_subgraphs}\n"
            f"Number of delegated nodes: {self.num_delegated_nodes}\n"
            f"Number of non-delegated nodes: {self.num_non_delegated_nodes}\n"
        )

    def get_operator_delegation_dataframe(self) -> Any:
        """Returns a pandas.DataFrame with one row for each operator, by name, and one row for the total."""
        pandas = require("pandas", "get_operator_delegation_dataframe")
        entries = [self.delegation_by_operator[op] for op in sorted(self.delegation_by_operator)]
        entries.append(DelegationBreakdown("Total", self.num_delegated_nodes, self.num_non_delegated_nodes))
        columns = ["op_type", "occurrences_in_delegated_graphs", "occurrences_in_non_delegated_graphs"]
        return pandas.DataFrame([tuple(vars(entry).values()) for entry in entries], columns=columns)


def get_delegation_info(graph_module: GraphModule) -> DelegationInfo:
    """Counts the delegated calls of a lowered graph. `EdgeProgramManager.delegation` also lists the reasons."""
    by_operator: dict[str, DelegationBreakdown] = {}
    counts = [0, 0]

    def count(graph: Graph, delegated: bool) -> None:
        for node in graph.nodes:
            if node.op != "call_function" or is_delegate_call(node) or node.target is operator.getitem:
                continue
            name = re.sub(r"_\d+$", "", node.name)
            entry = by_operator.setdefault(name, DelegationBreakdown(name))
            entry.delegated += delegated
            entry.non_delegated += not delegated
            counts[delegated] += 1

    lowered = get_lowered_backend_modules(graph_module)
    for module in lowered:
        count(module.original_module.graph, True)
    count(graph_module.graph, False)
    return DelegationInfo(len(lowered), counts[True], counts[False], by_operator)


def print_delegation_info(graph_module: GraphModule) -> None:
    """Prints the result of `get_delegation_info`: the totals, and a table by operator."""
    info = get_delegation_info(graph_module)
    print(info.get_summary())
    for op in sorted(info.delegation_by_operator):
        counts = info.delegation_by_operator[op]
        print(f"{op:40} delegated {counts.delegated:6}  not delegated {counts.non_delegated:6}")


def get_non_lowered_nodes(graph: Graph) -> list[Node]:
    """Returns the calls that run on the portable kernels."""
    return [
        node
        for node in graph.nodes
        if node.op == "call_function"
        and not is_delegate_call(node)
        and not any(is_delegate_call(source) for source in node.all_input_nodes)
    ]


def format_delegated_graph(graph_module: GraphModule) -> str:
    """Formats a graph as text, with the graph of each delegate below its call."""
    lines = []
    for node in graph_module.graph.nodes:
        lines.append(str(node.format_node()))
        if is_delegate_call(node):
            callee = getattr(graph_module, str(node.args[0].target))
            lines.append(f"    backend_id: {callee.backend_id}")
            lines += [f"    {line}" for line in str(callee.original_module.graph).splitlines()]
    return "\n".join(lines)


def print_delegated_graph(graph_module: GraphModule) -> None:
    """Prints the result of `format_delegated_graph`."""
    print(format_delegated_graph(graph_module))


def get_delegated_payload(graph_module: GraphModule) -> dict[str, tuple[str, list[CompileSpec], bytes]]:
    """Returns attribute name -> (backend, options, payload) for all delegates of a graph."""
    return {
        name: (module.backend_id, module.compile_specs, module.processed_bytes)
        for name, module, _ in get_lowered_submodules(graph_module)
    }


def is_identical_graph(graph_left: GraphModule, graph_right: GraphModule) -> bool:
    """Whether two graphs call the same operators with the same arguments in the same order. Names may differ."""
    left, right = list(graph_left.graph.nodes), list(graph_right.graph.nodes)
    if len(left) != len(right):
        return False
    same = dict(zip(left, right))
    for a, b in zip(left, right):
        targets = a.target == b.target or a.op in ("placeholder", "get_attr")
        mapped = torch.fx.node.map_arg((a.args, dict(a.kwargs)), same.__getitem__)
        if a.op != b.op or not targets or mapped != (b.args, dict(b.kwargs)):
            return False
        if a.op == "get_attr":
            one, two = getattr(graph_left, str(a.target)), getattr(graph_right, str(b.target))
            if isinstance(one, GraphModule) and not is_identical_graph(one, two):
                return False
    return True


def is_shape_dynamic(node: Node) -> bool:
    """Whether a dimension of a node's result is dynamic."""
    return any(isinstance(size, torch.SymInt) for size in getattr(node.meta.get("val"), "shape", ()))


class DelegateMappingBuilder:
    """Maps the instructions of a backend to debug handles, for `PreprocessResult.debug_handle_map`.

    Args:
        generated_identifiers: whether to number the instructions from 0 instead of naming them.
    """

    def __init__(self, generated_identifiers: bool = False) -> None:
        self._generated = generated_identifiers
        self._handles: dict[Any, tuple[int, ...]] = {}

    def get_delegate_mapping(self) -> dict[Any, tuple[int, ...]]:
        """Returns the map."""
        return dict(self._handles)

    def insert_delegate_mapping_entry(
        self,
        nodes: Node | Sequence[Node] | None = None,
        handles: int | Sequence[int | None] | None = None,
        identifier: int | str | None = None,
    ) -> int | str:
        """Adds an instruction that implements nodes or debug handles.

        Args:
            nodes: the nodes; exclusive with `handles`.
            handles: the debug handles; exclusive with `nodes`.
            identifier: the identifier of the instruction; required unless identifiers are generated.

        Returns:
            The identifier.

        Raises:
            ValueError: if the identifier is a duplicate, or given although identifiers are generated; if both or
                neither of nodes and handles are given; or if no node has a debug handle.
        """
        if (identifier is not None) == self._generated:
            raise ValueError(
                "an identifier is required if identifiers are not generated, and not accepted otherwise"
            )
        if identifier in self._handles:
            raise ValueError(f"the identifier {identifier!r} already exists")
        if (nodes is None) == (handles is None):
            raise ValueError("pass either nodes or handles")
        if nodes is not None:
            sources = [nodes] if isinstance(nodes, Node) else nodes
            handles = [node.meta.get("debug_handle") for node in sources]
        candidates = [handles] if isinstance(handles, int) else handles
        handle_ids = tuple(sorted({handle for handle in candidates or () if handle is not None}))
        if not handle_ids:
            raise ValueError("none of the nodes has a debug handle")
        identifier = len(self._handles) if identifier is None else identifier
        self._handles[identifier] = handle_ids
        return identifier


class WhyNoPartition:
    """Records the reasons why nodes are not delegated, for the delegation report and optionally for a logger."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger

    def __call__(self, node: Node, reason: str) -> None:
        """Records a reason."""
        reject(node, reason)
        if self._logger is not None:
            self._logger.debug("%s: %s", node, reason)


class WhyNoPartitionReporter:
    """Collects one reason for each node that is not delegated, and prints them as a table."""

    def __init__(self) -> None:
        self._reasons: dict[Node, str] = {}

    def report_reject(self, node: Node, reason: str) -> None:
        """Records a reason, also for the delegation report. The table ignores further reasons of the same node."""
        reject(node, reason)
        self._reasons.setdefault(node, reason)

    def get_table_report(self) -> str:
        """Returns one line for each node: name, operator, the model's function, and reason."""
        if not self._reasons:
            return "No nodes rejected."
        rows = [("Node name", "Target", "Torch func", "Reason")]
        for node, reason in self._reasons.items():
            source = str(node.meta.get("torch_fn", ("", ""))[1])
            rows.append((node.name, str(node.target), source, reason))
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def wrap_check(self, operator_support: OperatorSupportBase, message: str) -> OperatorSupportBase:
        """Wraps a support: the result makes the same decisions and records `message` for each rejected node."""
        return ReportRejected(operator_support, self, message)


class ReportRejected(OperatorSupportBase):
    """Makes the decisions of another support and reports rejected nodes; see `WhyNoPartitionReporter.wrap_check`."""

    def __init__(
        self, operator_support: OperatorSupportBase, reporter: WhyNoPartitionReporter, message: str
    ) -> None:
        self.operator_support, self.reporter, self.message = operator_support, reporter, message

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        """Whether the wrapped support accepts the node."""
        if self.operator_support.is_node_supported(submodules, node):
            return True
        self.reporter.report_reject(node, self.message)
        return False


# ---- a partitioner with one rule for each operator ----


def format_target_name(target_name: str) -> str:
    """Returns an operator's name without its namespace, such as ``add.Tensor`` for ``aten.add.Tensor``."""
    return ".".join(target_name.split(".")[-2:])


class PartitionerConfig(ABC):
    """The rule for one operator of a `ConfigerationBasedPartitioner`.

    Attributes:
        target_name: the operator, without its namespace: ``add.Tensor``.
    """

    target_name: str

    @abstractmethod
    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        """Whether the backend accepts this call of the operator."""

    @abstractmethod
    def get_original_aten(self) -> torch._ops.OpOverload | None:
        """Returns the operator that must not be decomposed before partitioning, or None."""

    @abstractmethod
    def get_partition(self, node: Node, ep: ExportedProgram) -> list[Node]:
        """Returns the node and the nodes that are delegated together with it."""


class ConfigerationBasedPartitioner(Partitioner):
    """Tags the calls that its rules accept for one backend. Adjacent calls become one partition.

    Args:
        delegation_spec: the backend and its options.
        partitioner_configs: subclasses or instances of `PartitionerConfig`, one for each operator.
    """

    def __init__(
        self,
        delegation_spec: DelegationSpec,
        partitioner_configs: Iterable[PartitionerConfig | type[PartitionerConfig]],
    ) -> None:
        super().__init__()
        rules = [config() if isinstance(config, type) else config for config in partitioner_configs]
        self.target_partitioner_configs = {rule.target_name: rule for rule in rules}
        self.delegation_spec = delegation_spec

    def _rule(self, node: Node) -> PartitionerConfig | None:
        if node.op != "call_function":
            return None
        return self.target_partitioner_configs.get(format_target_name(str(node.target)))

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Returns the operators that must not be decomposed, and a filter that applies the rule of a node."""
        operators = [rule.get_original_aten() for rule in self.target_partitioner_configs.values()]

        def accepts(node: Node) -> bool:
            rule = self._rule(node)
            return rule is not None and bool(rule.check_constraints(node, ep))

        return [op for op in operators if op is not None], accepts

    def get_matched_nodes_from_configs(self, ep: ExportedProgram) -> list[list[Node]]:
        """Returns the nodes of `get_partition` for each accepted call."""
        matches = []
        for node in ep.graph.nodes:
            rule = self._rule(node)
            if rule is not None and rule.check_constraints(node, ep):
                matches.append(rule.get_partition(node, ep))
        return matches

    def generate_partitions(self, ep: ExportedProgram) -> list[Partition]:
        """Returns the largest partitions of accepted nodes that single calls can replace."""
        return generate_partitions_from_list_of_nodes(
            ep.graph_module, self.get_matched_nodes_from_configs(ep)
        )

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags the partitions, and the stored tensors that only they read."""
        tags = {}
        for partition in self.generate_partitions(exported_program):
            tag = f"tag{partition.id}"
            for node in partition.nodes:
                node.meta[TAG] = tag
            tags[tag] = self.delegation_spec
        tag_constant_data(exported_program)
        tag_mutated_buffer(exported_program)
        return PartitionResult(exported_program, tags)
