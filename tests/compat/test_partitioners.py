# SPDX-License-Identifier: BSD-3-Clause
# Partitions of node groups, and information about a lowered graph, with ExecuTorch's names.

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.utils.source_matcher_utils import get_source_partitions
from torchette.exir.backend.backend_api import validation_disabled

from torchette.backends.null import NullPartitioner
from torchette.backends.xnnpack.configs import XNNPACKPassManager, get_input_node
from torchette.compat.inner import replace_quantized_partition_with_op
from torchette.compat.partitioners import (
    ConfigerationBasedPartitioner,
    GroupBasedPartitioner,
    PartitionerConfig,
    WhyNoPartitionReporter,
    get_delegated_payload,
    get_delegation_info,
    get_lowered_backend_modules,
    get_lowered_submodules,
    is_identical_graph,
    is_lowered_module,
    print_delegation_info,
)
from torchette.compat.transforms import duplicate_constant_node, get_param_tensor
from torchette.exir import to_edge, to_edge_transform_and_lower
from torchette.exir.delegation.delegate import DelegationSpec
from torchette.exir.passes import CSEPass
from torchette.runtime import Runtime


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


def test_partitions_are_as_few_as_possible() -> None:
    assert proposed(allows_single_node_partition=True) == [{RELU}, {SECOND, ADD, THIRD, MUL}]
    assert proposed() == [{SECOND, ADD, THIRD, MUL}]
    assert proposed(allowed_single_node_partition_ops=["torch.ops.aten.relu.default"])[0] == {RELU}
    assert proposed(non_compute_ops=["torch.ops.aten.relu.default", "torch.ops.aten.mul.Tensor"]) == []


def test_groups_are_not_divided() -> None:
    assert proposed(node_groups=[[ADD, THIRD]]) == [{SECOND, ADD, THIRD, MUL}]
    # These cannot be one call, because sin is between them. The other nodes are not affected.
    assert proposed(node_groups=[[RELU, ADD]], allows_single_node_partition=True) == [
        {RELU}, {SECOND}, {ADD}, {MUL, THIRD}
    ]  # fmt: skip
    with pytest.raises(ValueError, match="relu exists in multiple groups"):
        proposed(node_groups=[[RELU], [RELU, ADD]])


EXPORTED = torch.export.export(Net(), (torch.ones(3),))


def test_delegation_info(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_identical_graphs() -> None:
    class Other(nn.Module):
        def forward(self, y: torch.Tensor) -> torch.Tensor:
            a = torch.relu(y)
            c = torch.relu(torch.sin(a)) + a
            return torch.relu(c) * 3

    graph = to_edge(EXPORTED).exported_program().graph_module
    assert is_identical_graph(graph, to_edge(EXPORTED).exported_program().graph_module)
    other_graph = torch.export.export(Other(), (torch.ones(3),)).graph_module
    assert not is_identical_graph(EXPORTED.graph_module, other_graph)
    assert not is_identical_graph(graph, torch.export.export(nn.ReLU(), (torch.ones(3),)).graph_module)


def test_xnnpack_pass_manager_runs_given_passes() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x) + torch.sin(x)

    program = to_edge(torch.export.export(Twice(), (torch.ones(3),))).exported_program()
    for pass_ in (CSEPass, CSEPass()):
        result = XNNPACKPassManager(program, [pass_]).transform()
        assert [len(list(p.graph.nodes)) for p in (program, result)] == [5, 4]
        torch.testing.assert_close(result.module()(torch.ones(3)), 2 * torch.sin(torch.ones(3)))


def test_node_value_queries() -> None:
    layer = nn.Linear(3, 2)
    program = torch.export.export(layer, (torch.ones(1, 3),))
    call = next(node for node in program.graph.nodes if node.op == "call_function")
    source, weight = get_input_node(call, 0), get_input_node(call, 1)
    assert source.op == "placeholder" and get_param_tensor(program, source) is None
    assert get_param_tensor(program, weight) is layer.weight and get_param_tensor(program, None) is None
    call.args = (*call.args[:2], None)
    with pytest.raises(TypeError, match="argument 2 of linear must be a node, got None"):
        get_input_node(call, 2)


def test_duplicate_dequantize_and_replace_quantized_partition() -> None:
    """Under both import roots, the graphs have the same calls after the same steps."""
    ours = _quantized_steps("torchette")
    assert ours == [True, 3, "aten::linear", 3, 1, 1, 2]
    pytest.importorskip("executorch")
    assert _quantized_steps("executorch")[:6] == ours[:6]


def _quantized_steps(root: str) -> list[Any]:
    import torch.ao.quantization.fx._decomposed

    quantized, eight = torch.ops.quantized_decomposed, (0.1, 0, -128, 127, torch.int8)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> Any:
            x = quantized.dequantize_per_tensor.default(
                quantized.quantize_per_tensor.default(x, *eight), *eight
            )
            y = quantized.quantize_per_tensor.default(self.linear(x), *eight)
            y = quantized.dequantize_per_tensor.default(y, *eight)
            return y + 1, y * 2

    exir, passes = (
        importlib.import_module(f"{root}.exir"),
        "exir.backend.canonical_partitioners.duplicate_dequant_node_pass",
    )
    config = exir.EdgeCompileConfig(_check_ir_validity=False)
    program = exir.to_edge(torch.export.export(Layer(), (torch.ones(1, 2),)), compile_config=config)
    module = program.exported_program().graph_module
    changed = importlib.import_module(f"{root}.{passes}").DuplicateDequantNodePass()(module)
    module = changed.graph_module
    count = sum("dequantize_per_tensor" in node.name for node in module.graph.nodes)
    (part,) = get_source_partitions(module.graph, [torch.nn.Linear])[torch.nn.Linear]
    replace = importlib.import_module(f"{root}.exir.backend.utils").replace_quantized_partition_with_op
    call, before, after = replace(module, part, torch.ops.aten.linear)
    module.graph.lint()
    summary = [
        changed.modified,
        count,
        call.target._qualified_op_name,
        len(call.args),
        len(before),
        len(after),
    ]
    return [*summary, len(call.users)]


def test_partition_without_quantize_calls_raises() -> None:
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    (part,) = get_source_partitions(program.graph, [torch.nn.Linear])[torch.nn.Linear]
    with pytest.raises(ValueError, match="no dequantize call feeds it"):
        replace_quantized_partition_with_op(program.graph_module, part, torch.ops.aten.linear)


def test_support_reports_rejected_nodes() -> None:
    class Nothing(OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: Any) -> bool:
            return False

    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    (node,) = [node for node in program.graph.nodes if node.op == "call_function"]
    reporter = WhyNoPartitionReporter()
    assert not reporter.wrap_check(Nothing(), "takes nothing").is_node_supported({}, node)
    line = reporter.get_table_report().splitlines()[-1].split()
    assert line[0] == "relu" and line[-2:] == ["takes", "nothing"]
    assert node.meta["rejections"] == ["takes nothing"]


def test_configuration_based_partitioner_result_runs() -> None:
    class Add(PartitionerConfig):
        target_name = "add.Tensor"

        def check_constraints(self, node: Any, ep: Any) -> bool:
            return all(hasattr(one, "meta") for one in node.args[:2])

        def get_original_aten(self) -> Any:
            return None

        def get_partition(self, node: Any, ep: Any) -> list[Any]:
            return [node]

    class Sums(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (x + y).relu() + y

    partitioner = ConfigerationBasedPartitioner(DelegationSpec("NullBackend", []), [Add])
    args = torch.randn(3), torch.randn(3)
    edge = to_edge(torch.export.export(Sums(), args)).to_backend(partitioner)
    module = edge.exported_program().graph_module
    assert [one.backend_id for one in get_lowered_backend_modules(module)] == ["NullBackend"] * 2
    assert partitioner.ops_to_not_decompose(edge.exported_program())[0] == []
    (result,) = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward").execute(args)
    torch.testing.assert_close(torch.as_tensor(result), Sums()(*args))


def test_duplicating_missing_constant_raises() -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    with pytest.raises(ValueError, match="'x' is not an input of a stored tensor"):
        duplicate_constant_node(program, "x")
