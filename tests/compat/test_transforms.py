# SPDX-License-Identifier: BSD-3-Clause
# Passes and constants for custom backends (executorch.backends.transforms): the transformed graph, and its unchanged
# results.

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from torchette.compat import transforms
from torchette.errors import PassError
from torchette.exir import to_edge
from torchette.exir.dialects._ops import ops as exir_ops
from torchette.runtime import Runtime

aten = exir_ops.edge.aten


class Model(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def graph(calls: Any, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """Builds a graph of the calls that `calls(graph, *inputs)` adds; every node has a value."""
    new_graph = torch.fx.Graph()
    operands = []
    for number, value in enumerate(inputs):
        operands.append(new_graph.placeholder(f"x{number}"))
        operands[-1].meta["val"] = value
    new_graph.output((calls(new_graph, *operands),))
    for node in new_graph.nodes:
        if node.op == "call_function":
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            node.meta["val"] = node.target(*args, **kwargs)
    return torch.fx.GraphModule(nn.Module(), new_graph)


def targets(module: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


X = torch.arange(12.0).reshape(3, 4)
VIEW = aten.view_copy.default
CASES: dict[str, Any] = {
    "views of views": (transforms.FuseViewCopyTransform(), lambda g, x: g.call_function(VIEW, (g.call_function(VIEW, (x, [12])), [4, 3])), (X,), ["aten.view_copy.default"]),
    "views of the same shape": (transforms.FuseViewCopyTransform(), lambda g, x: g.call_function(VIEW, (g.call_function(VIEW, (x, [12])), [3, 4])), (X,), []),
    "squeezes": (transforms.ReplaceSqueezeAndUnsqueezeWithViewPass(), lambda g, x: g.call_function(aten.squeeze_copy.dims, (g.call_function(aten.unsqueeze_copy.default, (x, 1)), [1])), (X,), ["aten.view_copy.default"] * 2),
    "a view that squeezes": (transforms.ViewCopyToSqueezeUnsqueezePass(), lambda g, x: g.call_function(VIEW, (x, [3, 4])), (X[:, None],), ["aten.squeeze_copy.dims"]),
    "a view that unsqueezes": (transforms.ViewCopyToSqueezeUnsqueezePass(), lambda g, x: g.call_function(VIEW, (x, [3, 1, 4])), (X,), ["aten.unsqueeze_copy.default"]),
    "a view that does neither": (transforms.ViewCopyToSqueezeUnsqueezePass(), lambda g, x: g.call_function(VIEW, (x, [2, 6])), (X,), ["aten.view_copy.default"]),
    "copies": (transforms.RemoveCloneOpsTransform(), lambda g, x: g.call_function(aten.neg.default, (g.call_function(aten.clone.default, (x,)),)), (X,), ["aten.neg.default"]),
    "a copy of an input": (transforms.RemoveCloneOpsTransform(preserve_input_output_copies=True), lambda g, x: g.call_function(aten.clone.default, (x,)), (X,), ["aten.clone.default"]),
    "a copy into another order": (transforms.RemoveCloneOpsTransform(), lambda g, x: g.call_function(aten.clone.default, (x,), {"memory_format": torch.channels_last}), (X.reshape(1, 3, 2, 2),), ["aten.clone.default"]),
    "a pool": (transforms.RemoveGetItemPass(), lambda g, x: g.call_function(__import__("operator").getitem, (g.call_function(aten.max_pool2d_with_indices.default, (x, [2, 2])), 0)), (X.reshape(1, 3, 2, 2),), ["aten.max_pool2d.default"]),
    "maxima": (transforms.RemoveGetItemPass(), lambda g, x: g.call_function(__import__("operator").getitem, (g.call_function(aten.max.dim, (x, 1)), 0)), (X,), ["aten.amax.default"]),
    "a linear layer": (transforms.AddmmToLinearTransform(), lambda g, x, w, b: g.call_function(aten.addmm.default, (b, x, g.call_function(aten.permute_copy.default, (w, [1, 0])))), (X, X + 1, torch.ones(3)), ["aten.linear.default"]),
    "a product": (transforms.AddmmToLinearTransform(), lambda g, x, w: g.call_function(aten.mm.default, (x, w)), (X, X.t()), ["aten.mm.default"]),
    "an order of dimensions": (transforms.DimOrderOpsRevertPass(), lambda g, x: g.call_function(exir_ops.edge.dim_order_ops._to_dim_order_copy.default, (x,), {"dtype": torch.float64, "dim_order": [0, 2, 3, 1]}), (X.reshape(1, 3, 2, 2),), ["aten._to_copy.default"]),
    "a mean": (transforms.MeanToSumDiv(), lambda g, x: g.call_function(aten.mean.dim, (x, [1], True)), (X,), ["aten.sum.dim_IntList", "aten.div.Tensor"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_graph_transformations_keep_results(name: str) -> None:
    run, calls, inputs, expected = CASES[name]
    module = graph(calls, *inputs)
    eager, before = module(*inputs), targets(module)
    result = run(module)
    assert targets(result.graph_module) == expected and result.modified == (before != expected)
    (actual,), (right,) = result.graph_module(*inputs), eager
    torch.testing.assert_close(actual, right)
    assert actual.stride() == right.stride() or "view" in name or "squeeze" in name


def test_dequantize_quantize_pairs_are_removed() -> None:
    scale = (0.1, 0, -128, 127, torch.int8)
    module = torch.fx.Graph()
    x = module.placeholder("x")
    space = torch.ops.quantized_decomposed
    node = module.call_function(space.dequantize_per_tensor.default, (x, *scale))
    node = module.call_function(aten.clone.default, (node,))
    module.output(module.call_function(space.quantize_per_tensor.default, (node, *scale)))
    graph_module = torch.fx.GraphModule(nn.Module(), module)
    assert transforms.RemoveCloneOpsTransform().call(graph_module).modified and targets(graph_module) == []


@pytest.mark.parametrize("how", ["plain", "causal", "mask", "numbers", "heads", "scale"])
def test_attention_decomposition(how: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 3, 4) for _ in range(3))
    options: dict[str, Any] = {"causal": {"is_causal": True}, "scale": {"scale": 0.3}}.get(how, {})
    if how in ("mask", "numbers"):
        mask = torch.tensor([[True, False, True], [True, True, False], [False, True, True]])
        options["attn_mask"] = mask if how == "mask" else mask.float()
    if how == "heads":
        k, v, options = k[:, :1], v[:, :1], {"enable_gqa": True}
    model = Model(lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, **options))
    module = torch.export.export(model, (q, k, v)).module()
    assert transforms.DecomposeScaledDotProductAttention()(module).modified
    assert not any("scaled_dot" in target for target in targets(module))
    torch.testing.assert_close(module(q, k, v), model(q, k, v))


def test_attention_with_dropout_raises() -> None:
    module = graph(
        lambda g, x: g.call_function(
            torch.ops.aten.scaled_dot_product_attention.default, (x, x, x, None, 0.5)
        ),
        X.reshape(1, 1, 3, 4),
    )
    with pytest.raises(PassError, match="dropout"):
        transforms.DecomposeScaledDotProductAttention()(module)


def edge_program(model: nn.Module, *inputs: torch.Tensor) -> Any:
    return to_edge(torch.export.export(model.eval(), inputs))


def test_scalar_inputs_get_rank_2() -> None:
    edge = edge_program(Model(lambda x, y: x + y), torch.tensor(1.0), torch.tensor(2.0))
    program = edge.transform([transforms.Rank0ToRank1Pass()]).exported_program()
    assert {node.meta["val"].shape for node in program.graph.find_nodes(op="placeholder")} == {(1, 1)}


def test_batch_norm_is_folded_into_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)).eval()
    x = torch.randn(1, 2, 4, 4)
    program = torch.export.export(model, (x,)).run_decompositions()
    assert transforms.FuseBatchNormWithConvPass(program)(program.graph_module).modified
    assert targets(program.graph_module) == ["aten.convolution.default"]
    torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize("kind", [InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR])
def test_constant_placeholders(kind: InputKind) -> None:
    program = edge_program(Model(lambda x: x), torch.zeros(2)).exported_program()
    graph, x = program.graph, next(iter(program.graph.nodes))

    def create(name: str, data: torch.Tensor) -> torch.fx.Node:
        with graph.inserting_before(x):
            return transforms.create_constant_placeholder(
                program, graph, name, kind, data, kind is InputKind.BUFFER
            )

    node = create("0_weight", torch.ones(2))
    assert node.name == node.target == "_0_weight" and create("0_weight", torch.ones(2)) is node
    assert transforms.is_param_node(program, node) and not transforms.is_param_node(program, x)
    assert transforms.get_shape(node) == [2]
    with graph.inserting_after(x):
        total = graph.call_function(aten.add.Tensor, (x, node))
    graph.output_node().replace_input_with(x, total)
    assert program.module()(torch.zeros(2)).tolist() == [1, 1]
    transforms.set_param_tensor(program, node, torch.full((2,), 3.0))
    assert program.module()(torch.zeros(2)).tolist() == [3, 3]
    param = transforms.get_param_tensor(program, node)
    assert param is not None and param.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="has users"):
        transforms.delete_constant_placeholder(program, node)
    graph.output_node().replace_input_with(total, x)
    graph.erase_node(total)
    transforms.delete_constant_placeholder(program, node)
    assert not program.state_dict and not program.constants and len(program.graph_signature.input_specs) == 1
    with pytest.raises(RuntimeError, match="does not represent a stored tensor"):
        transforms.delete_constant_placeholder(program, graph.output_node())
    with pytest.raises(RuntimeError, match="does not represent a stored tensor"):
        transforms.set_param_tensor(program, x, torch.ones(2))


def test_constant_kind_is_required() -> None:
    program = edge_program(Model(lambda x: x), torch.zeros(2)).exported_program()
    for kind, text in ((InputKind.BUFFER, "persistent"), (InputKind.USER_INPUT, "no stored tensor")):
        with pytest.raises(RuntimeError, match=text):
            transforms.create_constant_placeholder(program, program.graph, "w", kind, torch.ones(2))


def test_new_mutable_buffer_keeps_updates() -> None:
    def add_count(program: ExportedProgram) -> ExportedProgram:
        graph = program.graph
        count = transforms.create_mutable_buffer(program, "b_count", torch.full((2,), 5.0))
        with pytest.raises(RuntimeError, match="already exists"):
            transforms.create_mutable_buffer(program, "b_count", torch.ones(2))
        with pytest.raises(RuntimeError, match="mutable buffer"):
            transforms.create_constant_placeholder(
                program, graph, "b_count", InputKind.PARAMETER, torch.ones(2)
            )
        output = graph.output_node()
        with graph.inserting_before(output):
            total = graph.call_function(aten.add.Tensor, (count, output.args[0][1]))
        output.args = ((total, total),)
        for spec in program.graph_signature.output_specs:
            spec.arg.name = total.name
        return program

    edge = edge_program(Model(lambda x: x * 1), torch.ones(2)).transform([add_count])
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    results = [torch.as_tensor(method.execute([torch.ones(2)])[0]).tolist() for _ in range(2)]
    assert results == [[6, 6], [7, 7]]
