# SPDX-License-Identifier: BSD-3-Clause
# Every function that edits a graph and returns it leaves up-to-date Python code: the module computes the edited graph.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

from tests.exir.graphs import Function
from torchette.compat import inner, transforms
from torchette.exir import EdgeCompileConfig, to_edge
from torchette.exir.graph import lift_constant_tensor_pass
from torchette.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult, ExportPass
from torchette.exir.pass_manager import ExportedProgramPassManager, PassManager, transform
from torchette.exir.passes import graph_module_passes as passes
from torchette.exir.passes.to_out_variants import ToOutVarPass
from torchette.exir.pipeline import build
from torchette.llm.exporting.custom_cache import RemoveRedundantTransposes

aten = torch.ops.aten
X = torch.linspace(-1, 1, 8).reshape(2, 4)


def codes(module: GraphModule) -> list[str]:
    """Returns the Python code of a graph module and of its branches, and generates it if necessary."""
    return [part.code for part in module.modules() if isinstance(part, GraphModule)]


def assert_current(module: GraphModule) -> None:
    """Checks that the code matches the graph."""
    before = codes(module)
    for part in module.modules():
        if isinstance(part, GraphModule):
            part.recompile()
    assert before == codes(module)


class Net(nn.Module):
    """A module with calls for each pass to change, also in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.unused = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.ones(3))
        self.conv, self.norm = nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        same = x.clone()
        torch.sin(same)
        y = (
            self.norm(self.conv(same[None]))[0]
            + same.relu() * 2
            + same.relu() @ (self.weight.t() + 1).exp()
            + x @ self.weight.t()
        )
        y = y.transpose(0, 1).transpose(0, 1).mean(1, keepdim=True) + torch.cat([x, x[:, :0]], 1)
        return torch.cond(x.sum() > 0, lambda y: y.clone() + y.sin() + y.sin(), lambda y: y - 1, (y,))


def captured() -> ExportedProgram:
    torch.manual_seed(0)
    program = torch.export.export(Net().eval(), (X,))
    codes(program.graph_module)
    return program


def at_edge() -> ExportedProgram:
    config = EdgeCompileConfig(
        _check_ir_validity=False, disable_passes=["remove_noops", "remove_dead_code", "fold_batch_norm"]
    )
    program = to_edge(captured(), compile_config=config).exported_program()
    codes(program.graph_module)
    return program


def sin_to_cos(module: GraphModule) -> None:
    """A callable that edits all graphs in place and returns None."""
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            if node.target == aten.sin.default:
                node.target = aten.cos.default


def sin_to_cos_unsaid(module: GraphModule) -> PassResult:
    sin_to_cos(module)
    return PassResult(module, False)


class SinToCos(ExportPass):
    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        return super().call_operator(aten.cos.default if op == aten.sin.default else op, args, kwargs, meta)


class SinToCosOfProgram(ExportedProgramPassBase):
    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        sin_to_cos(exported_program.graph_module)
        return ExportedProgramPassResult(exported_program, False)


@pytest.mark.parametrize(
    "run", [sin_to_cos, sin_to_cos_unsaid, SinToCos()], ids=["None", "unmodified", "ExportPass"]
)
def test_pass_manager_returns_a_module_that_runs_the_new_code(run: Any) -> None:
    module = torch.export.export(Function(lambda x: x.sin()), (X,)).module()
    module = PassManager([run])(module).graph_module
    torch.testing.assert_close(module(X), X.cos())
    program = captured()
    assert_current(PassManager([run])(program.graph_module).graph_module)


@pytest.mark.parametrize("run", [sin_to_cos, SinToCos(), SinToCosOfProgram()])
def test_program_pass_manager_leaves_current_code(run: Any) -> None:
    result = ExportedProgramPassManager([run])(captured()).exported_program
    assert_current(result.graph_module)
    assert "cos" in "".join(codes(result.graph_module))


@pytest.mark.parametrize("program", [captured, at_edge])
def test_transform_leaves_current_code(program: Callable[[], ExportedProgram]) -> None:
    result = transform(program(), sin_to_cos)
    assert_current(result.graph_module)
    assert "cos" in "".join(codes(result.graph_module))


def test_edge_program_manager_has_current_code() -> None:
    manager = to_edge(captured()).transform([sin_to_cos])
    assert_current(manager.exported_program().graph_module)


def test_pipeline_leaves_current_code() -> None:
    visited = []

    def force(module: GraphModule) -> None:
        """Generates the code between stages, like a call of the module."""
        visited.append(codes(module))

    program = build(transforms=[force]).until("optimize").run(captured())
    assert visited
    assert_current(program.graph_module)
    torch.testing.assert_close(program.module()(X), captured().module()(X))


# Passes that edit the program of Net. Those of METADATA only write metadata or do not change Net.
EDITS: dict[str, Callable[[ExportedProgram], Any]] = {
    **{
        name: lambda program, name=name: getattr(passes, name)()(program.graph_module)
        for name in ("RemoveNoopPass", "RemoveToCopyPass", "CSEPass")
    },
    "ToOutVarPass": lambda program: ToOutVarPass()(program.graph_module),
    "FuseBatchNormWithConvPass": lambda program: transforms.FuseBatchNormWithConvPass(program)(
        program.graph_module
    ),
    "MeanToSumDiv": lambda program: transforms.MeanToSumDiv()(program.graph_module),
    "AddmmToLinearTransform": lambda program: transforms.AddmmToLinearTransform()(program.graph_module),
    "RemoveCloneOpsTransform": lambda program: transforms.RemoveCloneOpsTransform()(program.graph_module),
    "PruneEmptyTensorsPass": lambda program: inner.PruneEmptyTensorsPass()(program.graph_module),
    "RemoveRedundantTransposes": lambda program: RemoveRedundantTransposes()(program.graph_module),
    "constant_prop_pass": passes.constant_prop_pass,
    "remove_unused_parameters_pass": inner.remove_unused_parameters_pass,
}
METADATA = ("SpecPropPass", "HintBasedSymShapeEvalPass", "DebugHandleGeneratorPass", "ScalarToTensorPass",
            "RemoveMixedTypeOperators", "RemoveGraphAssertsPass")  # fmt: skip
CAPTURED = {"RemoveRedundantTransposes", "remove_unused_parameters_pass"}


@pytest.mark.parametrize("name", EDITS)
def test_pass_called_alone_leaves_current_code(name: str) -> None:
    program = captured() if name in CAPTURED else at_edge()
    before = codes(program.graph_module)
    module = EDITS[name](program).graph_module
    assert_current(module)
    assert codes(module) != before


@pytest.mark.parametrize("name", METADATA)
def test_pass_of_metadata_leaves_current_code(name: str) -> None:
    assert_current(getattr(passes, name)()(at_edge().graph_module).graph_module)


def test_pass_that_changes_only_a_branch_reports_it() -> None:
    program = torch.export.export(
        Function(lambda x: torch.cond(x.sum() > 0, lambda x: x.sin() + x.sin(), lambda x: x - 1, (x,))), (X,)
    )
    codes(program.graph_module)
    result = passes.CSEPass()(program.graph_module)
    assert result.modified
    assert_current(result.graph_module)


def test_erased_calls_leave_current_code() -> None:
    module = at_edge().graph_module
    with module.graph.inserting_before(module.graph.output_node()):
        call = module.graph.call_function(aten.tan.default, (module.graph.output_node().args[0][0],))
    call.meta["val"] = call.args[0].meta["val"]
    module.recompile()
    assert "tan" in codes(module)[0]
    result = passes.dead_code_elimination_pass(module)
    assert_current(result.graph_module)
    assert result.modified and "tan" not in codes(module)[0]


def test_lifted_tensors_leave_current_code() -> None:
    program = captured()
    module = program.graph_module
    module.register_buffer("extra", torch.ones(2, 4))
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        extra = module.graph.get_attr("extra")
        extra.meta["val"] = next(node for node in module.graph.nodes if node.name == "x").meta["val"]
        output.args = ((module.graph.call_function(aten.add.Tensor, (output.args[0][0], extra)),),)
    module.recompile()
    before = codes(module)
    assert_current(lift_constant_tensor_pass(program).graph_module)
    assert codes(module) != before


def test_moved_nodes_leave_current_code() -> None:
    module = torch.export.export(Function(lambda x: (x + 1).sin() * 2), (X,)).module()
    codes(module)
    nodes = [node for node in module.graph.nodes if node.target in (aten.add.Tensor, aten.sin.default)]
    part, _ = inner.create_submodule_from_nodes(module, nodes, "part")
    assert_current(module)
    assert_current(part)
    torch.testing.assert_close(module(X), (X + 1).sin() * 2)
