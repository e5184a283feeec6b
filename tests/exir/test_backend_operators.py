# SPDX-License-Identifier: BSD-3-Clause
# An operator of a target: bound to a pattern, inserted in an Edge program, run eagerly through its pattern, converted
# back to the pattern, and written to a file under its name.

import copy
import pickle

import pytest
import torch
from graphs import export
from torch import nn

import torchette
from tests.building import built, run
from torchette.errors import DialectError, MissingKernelError
from torchette.exir import ExecutorchBackendConfig, dialects, to_edge
from torchette.exir.dialects._ops import BackendOpOverload, EdgeOpOverload, bind_pattern_to_op
from torchette.exir.dialects._ops import ops as exir_ops
from torchette.exir.passes.replace_edge_with_backend import (
    replace_backend_with_edge,
    replace_edge_with_backend,
)

edge = exir_ops.edge.aten
library = torch.library.Library("tgt", "DEF")


@bind_pattern_to_op(library, "linear_relu(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
def linear_relu(x, weight, bias):
    return edge.relu.default(edge.linear.default(x, weight, bias))


X = torch.randn(2, 4)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


@pytest.fixture
def fused():
    """Returns (the module, its program with the target's operator)."""
    module = model()
    fuse = replace_edge_with_backend(exir_ops.backend.tgt.linear_relu.default)
    return module, to_edge(export(module, (X,))).transform([fuse])


def targets(program):
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def test_operator_runs_by_its_pattern():
    op = exir_ops.backend.tgt.linear_relu.default
    assert isinstance(op, BackendOpOverload) and op is exir_ops.backend.tgt.linear_relu.default
    assert op == torch.ops.tgt.linear_relu.default and pickle.loads(pickle.dumps(op)) is op is copy.deepcopy(
        op
    )
    weight, bias = torch.randn(3, 4), torch.randn(3)
    expected = torch.relu(nn.functional.linear(X, weight, bias))
    assert torch.equal(op(X, weight, bias), expected) and torch.equal(op.decomp(X, weight, bias), expected)
    out = torch.empty(2, 3)
    assert torch.equal(op.to_out_variant()(X, weight, bias, out=out), expected) and torch.equal(out, expected)
    assert op.pattern is linear_relu


def test_operator_without_pattern_is_not_a_backend_operator():
    library.define("nothing(Tensor x) -> Tensor")
    with pytest.raises(DialectError, match="has no pattern") as caught:
        _ = exir_ops.backend.tgt.nothing.default
    assert caught.value.code == "no-pattern" and "bind_pattern_to_op" in caught.value.hints[0]
    assert isinstance(exir_ops.edge.tgt.nothing.default, EdgeOpOverload)


def test_several_results_and_overloads():
    @bind_pattern_to_op(library, "halves.both(Tensor x, *, float by=2.0) -> (Tensor, Tensor)")
    def halves(x, *, by=2.0):
        return x / by, x - x / by

    op = exir_ops.backend.tgt.halves.both
    assert [r.tolist() for r in op(torch.ones(1), by=4.0)] == [[0.25], [0.75]]
    first, second = torch.empty(1), torch.empty(1)
    op.to_out_variant()(torch.ones(1), out0=first, out1=second)
    assert (first.item(), second.item()) == (0.5, 0.5)


def test_pass_replaces_the_pattern_by_the_operator(fused):
    module, manager = fused
    program = manager.exported_program()
    op = exir_ops.backend.tgt.linear_relu.default
    assert targets(program) == [op, op, edge.linear.default]
    assert targets(program)[0] is op
    dialects.verify(program, "backend")
    torch.testing.assert_close(program.module()(X), module(X))
    assert manager.report().notes("replace_patterns") == ["2 patterns replaced by tgt.linear_relu.default"]
    places = [node.meta["stack_trace"] for node in program.graph.nodes if node.target == op]
    assert all("forward" in place for place in places)


def test_pattern_with_an_inner_value_used_elsewhere_stays():
    def forward(x, w):
        y = torch.nn.functional.linear(x, w)
        return y.relu(), y

    fuse = replace_edge_with_backend(exir_ops.backend.tgt.linear_relu.default)
    program = to_edge(export(forward, (X, torch.randn(3, 4)))).transform([fuse]).exported_program()
    assert exir_ops.backend.tgt.linear_relu.default not in targets(program)


def test_operator_is_converted_back_to_its_pattern(fused):
    module, manager = fused
    program = manager.transform([replace_backend_with_edge]).exported_program()
    names = [edge.linear.default, edge.relu.default]
    assert targets(program) == [*names, *names, edge.linear.default]
    dialects.verify(program, "edge")
    torch.testing.assert_close(program.module()(X), module(X))
    # The module can be part of another module, which is captured with the operator in it.
    again = torch.export.export(manager.exported_program().module(), (X,))
    assert torch.ops.tgt.linear_relu.default in targets(again)
    op = torch.ops.tgt.linear_relu.default
    retraced = again.run_decompositions({op: exir_ops.backend.tgt.linear_relu.default.decomp})
    assert op not in targets(retraced) and torch.ops.aten.relu.default in targets(retraced)


def test_value_that_differs_from_the_pattern_is_rejected(fused):
    program = fused[1].exported_program()
    _, node, _ = [n for n in program.graph.nodes if n.op == "call_function"]
    before, node.meta["val"] = node.meta["val"], node.meta["val"].new_empty(2, 9)
    with pytest.raises(DialectError) as caught:
        dialects.verify(program, "backend")
    assert caught.value.code == "not-its-pattern"
    assert "yields float32[2, 9], but the pattern of tgt.linear_relu.default yields float32[2, 8]" in str(
        caught.value
    )
    node.meta["val"] = before
    node.args = (node.args[1], *node.args[1:2], node.args[0])
    (violation,) = dialects.violations(program, "backend")
    assert violation.code == "not-its-pattern" and "does not accept these arguments" in violation.message


@pytest.mark.filterwarnings("ignore::torchette.errors.MissingKernelWarning")
def test_file_names_the_operator(fused):
    program = fused[1].to_executorch()
    assert set(program.operators()) == {"tgt::linear_relu.out", "aten::linear.out"}


@pytest.mark.filterwarnings("ignore::torchette.errors.MissingKernelWarning")
def test_file_runs_with_the_targets_kernel(fused, tmp_path):
    module, manager = fused
    manager.to_executorch().save(tmp_path / "model.pte")
    printed = run(built("torchette_target_kernel"), tmp_path / "model.pte").stdout
    result = torch.tensor([float(line) for line in printed.split()]).reshape(2, 3)
    torch.testing.assert_close(result, module(torch.ones(2, 4)))
    # The program without this kernel does not load the file.
    assert "tgt::linear_relu.out" in run(built("torchette_tutorial"), tmp_path / "model.pte", status=1).stderr


def test_compiling_without_a_kernel_warns():
    fuse = replace_edge_with_backend(exir_ops.backend.tgt.linear_relu.default)
    with pytest.raises(MissingKernelError) as caught:
        torchette.compile(model(), (X,), config=ExecutorchBackendConfig(passes=[fuse]))
    assert caught.value.operators == ("tgt::linear_relu.out",)
