# SPDX-License-Identifier: BSD-3-Clause
# Passes in ExecuTorch's style run unchanged, and only changed calls are evaluated again.

import pytest
import torch
from graphs import called, lower, results
from torch import nn

from torchette.errors import PassError
from torchette.exir.dialects._ops import ops as exir_ops
from torchette.exir.graph import copy_program
from torchette.exir.pass_base import ExportPass, NodeMetadata, PassResult, ProxyValue
from torchette.exir.pass_manager import PassManager, adapt, flatten

X = torch.randn(2, 3)


class AddToMul(ExportPass):
    def call_operator(self, op, args, kwargs, meta):
        if op == exir_ops.edge.aten.add.Tensor:
            op = exir_ops.edge.aten.mul.Tensor
        return super().call_operator(op, args, kwargs, meta)


def add_to_mul(graph_module):
    changed = False
    for node in graph_module.graph.nodes:
        if node.target == torch.ops.aten.add.Tensor:
            node.target, changed = torch.ops.aten.mul.Tensor, True
    return PassResult(graph_module, changed)


def edge(module=None, args=(X, X)):
    return copy_program(lower(module or (lambda x, y: (x + y).relu() + y), args, "edge")[0])


def test_export_pass_and_callable_yield_equal_graphs():
    first, second = adapt(AddToMul())(edge()), adapt(add_to_mul)(edge())
    assert called(first) == called(second) == ["mul.Tensor", "relu.default", "mul.Tensor"]
    expected = (X * X).relu() * X
    for program in (first, second):
        program.graph.lint()
        torch.testing.assert_close(results(program, (X, X))[0], expected)
    assert all(n.meta.get("stack_trace") for n in first.graph.nodes if n.op == "call_function")


def test_unchanged_calls_keep_their_values():
    program = edge()
    before = {n.name: n.meta["val"] for n in program.graph.nodes if "val" in n.meta}
    result = ExportPass()(program.graph_module)
    assert not result.modified
    assert all(before[n.name] is n.meta["val"] for n in result.graph_module.graph.nodes if "val" in n.meta)


def test_new_calls_get_values_and_metadata():
    class Decompose(ExportPass):
        def call_operator(self, op, args, kwargs, meta):
            if op != torch.ops.aten.relu.default:
                return super().call_operator(op, args, kwargs, meta)
            assert isinstance(args[0], ProxyValue) and args[0].is_tensor() and isinstance(meta, NodeMetadata)
            assert args[0].to_tensor().shape == (2, 3)
            mask = super().call_operator(torch.ops.aten.gt.Scalar, (args[0], 0), {}, meta)
            return super().call_operator(torch.ops.aten.mul.Tensor, (args[0], mask), {}, meta)

    program = adapt(Decompose())(edge())
    assert called(program) == ["add.Tensor", "gt.Scalar", "mul.Tensor", "add.Tensor"]
    assert [n.meta["val"].dtype for n in program.graph.nodes if n.target == torch.ops.aten.gt.Scalar] == [
        torch.bool
    ]
    torch.testing.assert_close(results(program, (X, X))[0], (X + X).relu() + X)


def test_several_results_and_placeholders_pass_through():
    visited = []

    class Look(ExportPass):
        def placeholder(self, name, arg, meta):
            visited.append(name)
            return super().placeholder(name, arg, meta)

        def call_getitem(self, value, key, meta):
            visited.append(key)
            return super().call_getitem(value, key, meta)

        def output(self, outs, meta):
            visited.append(len(outs))
            return super().output(outs, meta)

    program = edge(lambda x: x.max(1), (X,))
    adapt(Look())(program)
    assert visited == ["args_0", 0, 1, 2]
    torch.testing.assert_close(results(program, (X,))[0], X.max(1).values)


def test_branches_of_control_flow_are_visited():
    class Cond(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x + x, lambda x: x - 1, (x,))

    exported = torch.export.export(Cond(), (X,)).run_decompositions()
    result = AddToMul()(exported.graph_module)
    targets = [
        n.target
        for m in result.graph_module.modules()
        if isinstance(m, torch.fx.GraphModule)
        for n in m.graph.nodes
    ]
    assert (
        result.modified and torch.ops.aten.add.Tensor not in targets and torch.ops.aten.mul.Tensor in targets
    )


def test_pass_manager_runs_in_order_until_nothing_changes():
    order = []

    def first(graph_module):
        order.append("first")

    manager = PassManager([first, add_to_mul], steps=5)
    manager.add_pass(AddToMul())
    result = manager(edge().graph_module)
    assert result.modified and order == ["first", "first"]
    assert repr(manager) == "PassManager(first, add_to_mul, AddToMul)" and len(flatten(manager)) == 3
    assert flatten(None) == [] and flatten(add_to_mul) == [add_to_mul]


def test_missing_values_after_a_pass_are_computed():
    def insert(graph_module):
        relu = next(n for n in graph_module.graph.nodes if n.target == torch.ops.aten.relu.default)
        with graph_module.graph.inserting_after(relu):
            new = graph_module.graph.call_function(torch.ops.aten.abs.default, (relu,))
        relu.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)

    program = adapt(insert)(edge())
    node = next(n for n in program.graph.nodes if n.target == torch.ops.aten.abs.default)
    assert node.meta["val"].shape == (2, 3) and node.meta["stack_trace"]


def test_annotation_selects_passes_on_whole_programs():
    def whole(program: torch.export.ExportedProgram):
        assert isinstance(program, torch.export.ExportedProgram)

    assert adapt(whole)(edge()) is not None and adapt(whole).__name__ == "whole"


def test_invalid_passes_raise():
    with pytest.raises(PassError, match="'relu' is not a pass"):
        adapt("relu")

    def drop_input(graph_module):
        with graph_module.graph.inserting_before(next(iter(graph_module.graph.nodes))):
            graph_module.graph.placeholder("more")

    with pytest.raises(PassError, match="pass drop_input changed the number of inputs"):
        adapt(drop_input)(edge())
    with pytest.raises(PassError, match="works only while the pass runs"):
        AddToMul().call_operator(torch.ops.aten.add.Tensor, (1, 2), {}, NodeMetadata({}))
