# SPDX-License-Identifier: BSD-3-Clause
# Partitions of groups, and what a lowered graph says of itself, by ExecuTorch's names.

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.passes.operator_support import OperatorSupportBase
from torchette.exir.backend.backend_api import validation_disabled

from torchette.backends.null import NullPartitioner
from torchette.backends.xnnpack.configs import XNNPACKPassManager, get_input_node
from torchette.compat.partitioners import (
    GroupBasedPartitioner,
    get_delegated_payload,
    get_delegation_info,
    get_lowered_backend_modules,
    get_lowered_submodules,
    is_identical_graph,
    is_lowered_module,
    print_delegation_info,
)
from torchette.compat.transforms import get_param_tensor
from torchette.exir import to_edge, to_edge_transform_and_lower
from torchette.exir.passes import CSEPass


class Net(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(x)
        b = torch.sin(a)  # not supported
        c = torch.relu(b) + a
        return torch.relu(c) * 2


class Supported(OperatorSupportBase):
    def is_node_supported(self, submodules, node) -> bool:
        return node.op == "call_function" and "sin" not in str(node.target)


GRAPH = torch.export.export(Net(), (torch.ones(3),)).module()
CALLS = [node for node in GRAPH.graph.nodes if node.op == "call_function" and "guard" not in str(node.target)]
RELU, _, SECOND, ADD, THIRD, MUL = CALLS


def proposed(**options) -> list[set[torch.fx.Node]]:
    partitions = GroupBasedPartitioner(GRAPH, Supported(), **options).propose_partitions()
    return [set(partition.nodes) for partition in partitions]


def test_as_few_partitions_as_there_can_be() -> None:
    assert proposed(allows_single_node_partition=True) == [{RELU}, {SECOND, ADD, THIRD, MUL}]
    assert proposed() == [{SECOND, ADD, THIRD, MUL}]
    assert proposed(allowed_single_node_partition_ops=["torch.ops.aten.relu.default"])[0] == {RELU}
    assert proposed(non_compute_ops=["torch.ops.aten.relu.default", "torch.ops.aten.mul.Tensor"]) == []


def test_groups_stay_whole() -> None:
    assert proposed(node_groups=[[ADD, THIRD]]) == [{SECOND, ADD, THIRD, MUL}]
    # These cannot be one call: sin lies between them. The rest stays as it is.
    assert proposed(node_groups=[[RELU, ADD]], allows_single_node_partition=True) == [
        {RELU}, {SECOND}, {ADD}, {MUL, THIRD}
    ]  # fmt: skip
    with pytest.raises(ValueError, match="relu exists in multiple groups"):
        proposed(node_groups=[[RELU], [RELU, ADD]])


EXPORTED = torch.export.export(Net(), (torch.ones(3),))


def test_what_backends_have_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with validation_disabled():
        edge = to_edge_transform_and_lower(EXPORTED, partitioner=[NullPartitioner()])
    module = edge.exported_program().graph_module
    (lowered,) = get_lowered_backend_modules(module)
    ((name, same, node),) = get_lowered_submodules(module)
    assert same is lowered is getattr(module, name) and node.target == name
    assert is_lowered_module(lowered) and not is_lowered_module(module)
    assert get_delegated_payload(module) == {
        name: ("NullBackend", lowered.compile_specs, lowered.processed_bytes)
    }
    info = get_delegation_info(module)
    inside = sum(n.op == "call_function" for n in lowered.original_module.graph.nodes)
    assert (info.num_delegated_subgraphs, info.num_delegated_nodes) == (1, inside)
    by_operator = info.delegation_by_operator
    assert sum(entry.delegated for entry in by_operator.values()) == inside
    assert sum(entry.non_delegated for entry in by_operator.values()) == info.num_non_delegated_nodes
    assert f"Number of delegated nodes: {inside}\n" in info.get_summary()
    print_delegation_info(module)
    printed = capsys.readouterr().out
    assert all(op in printed for op in by_operator)
    table = pytest.importorskip("pandas") and info.get_operator_delegation_dataframe()
    assert list(table["op_type"])[-1] == "Total" and len(table) == len(by_operator) + 1


def test_graphs_are_compared_by_what_they_call() -> None:
    class Other(nn.Module):
        def forward(self, y: torch.Tensor) -> torch.Tensor:
            a = torch.relu(y)
            c = torch.relu(torch.sin(a)) + a
            return torch.relu(c) * 3

    graph = to_edge(EXPORTED).exported_program().graph_module
    assert is_identical_graph(graph, to_edge(EXPORTED).exported_program().graph_module)
    other = torch.export.export(Other(), (torch.ones(3),)).graph_module
    assert not is_identical_graph(EXPORTED.graph_module, other)
    assert not is_identical_graph(graph, torch.export.export(nn.ReLU(), (torch.ones(3),)).graph_module)


def test_a_pass_manager_of_xnnpack_runs_the_given_passes() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x) + torch.sin(x)

    program = to_edge(torch.export.export(Twice(), (torch.ones(3),))).exported_program()
    for given in (CSEPass, CSEPass()):
        result = XNNPACKPassManager(program, [given]).transform()
        assert [len(list(p.graph.nodes)) for p in (program, result)] == [5, 4]
        torch.testing.assert_close(result.module()(torch.ones(3)), 2 * torch.sin(torch.ones(3)))


def test_what_a_node_stands_for() -> None:
    layer = nn.Linear(3, 2)
    program = torch.export.export(layer, (torch.ones(1, 3),))
    call = next(node for node in program.graph.nodes if node.op == "call_function")
    source, weight = get_input_node(call, 0), get_input_node(call, 1)
    assert source.op == "placeholder" and get_param_tensor(program, source) is None
    assert get_param_tensor(program, weight) is layer.weight and get_param_tensor(program, None) is None
    call.args = (*call.args[:2], None)
    with pytest.raises(TypeError, match="argument 2 of linear is no node but None"):
        get_input_node(call, 2)
