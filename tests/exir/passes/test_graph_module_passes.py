# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's pass names have the corresponding effect on a graph module.

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torchette.exir.passes.constant_prop_pass import constant_prop_pass
from torchette.exir.passes.debug_handle_generator_pass import generate_missing_debug_handles
from torchette.exir.passes.init_mutable_pass import InitializedMutableBufferPass

from torchette.errors import UnsupportedError
from torchette.exir import EdgeCompileConfig, ExecutorchBackendConfig, passes, to_edge
from torchette.exir.tensor import TensorSpec
from torchette.runtime import Runtime


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        same = x.clone()
        unused = torch.sin(same)  # noqa: F841
        return same.relu() * 2 + same.relu() @ (self.weight.t() + 1).exp()


X = torch.linspace(-1, 1, 8).reshape(2, 4)
CONFIG = EdgeCompileConfig(_check_ir_validity=False)


def captured(module: nn.Module | None = None, x: torch.Tensor = X, shapes: object = None) -> ExportedProgram:
    return torch.export.export(module or Net(), (x,), dynamic_shapes=shapes)  # type: ignore[arg-type]


def names(module: GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("name", "removed", "left"),
    [
        ("RemoveNoopPass", "aten.clone.default", "aten.sin.default"),
        ("RemoveToCopyPass", "aten.clone.default", "aten.relu.default"),
        ("dead_code_elimination_pass", "aten.sin.default", "aten.clone.default"),
        ("CSEPass", None, "aten.relu.default"),
        ("ScalarToTensorPass", None, "aten.mul.Tensor"),
        ("RemoveMixedTypeOperators", None, "aten.mul.Tensor"),
        ("DebugHandleGeneratorPass", None, "aten.mul.Tensor"),
    ],
)
def test_pass_changes_the_graph_but_not_the_results(name: str, removed: str | None, left: str) -> None:
    program = captured()
    module = program.graph_module
    run = getattr(passes, name)
    if isinstance(run, type):
        run = run()
    before = names(module)
    result = run(module)
    after = names(result.graph_module)
    assert left in after and removed not in after and (removed is None or removed in before)
    if name == "CSEPass":
        assert before.count(left) == 2 and after.count(left) == 1
    if name == "ScalarToTensorPass":
        assert any(node.op == "get_attr" for node in module.graph.nodes)
    assert result.modified == (name not in ("RemoveMixedTypeOperators", "DebugHandleGeneratorPass"))
    again = run(result.graph_module)
    assert not again.modified
    inputs = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    assert len(inputs) == 2
    torch.testing.assert_close(result.graph_module(program.state_dict["weight"], X)[0], Net()(X))


def test_a_manager_runs_them() -> None:
    edge = to_edge(captured(), compile_config=CONFIG)
    both = edge.transform([passes.CSEPass(), passes.RemoveNoopPass(), passes.ScalarToTensorPass()])
    buffer = both.to_executorch().buffer
    (result,) = Runtime.get().load_program(buffer).load_method("forward").execute([X])
    torch.testing.assert_close(result, Net()(X))


def test_assertions_are_removed() -> None:
    class Checked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n = x[0].item()
            torch._check(n > 0)
            return torch.zeros(4) + n

    module = torch.export.export(Checked(), (torch.tensor([3]),)).graph_module
    assert any("_assert_scalar" in name for name in names(module))
    passes.RemoveGraphAssertsPass()(module)
    assert not any("_assert" in name for name in names(module))


def test_specs_have_bounds_or_example_sizes() -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    module = captured(Doubled(), X, {"x": {0: torch.export.Dim("n", min=2, max=9)}}).graph_module
    passes.SpecPropPass()(module)
    (add,) = (node for node in module.graph.nodes if node.op == "call_function")
    assert isinstance(add.meta["spec"], TensorSpec) and add.meta["spec"].shape == [9, 4]
    passes.HintBasedSymShapeEvalPass()(module)
    assert add.meta["spec"].shape == [2, 4]
    passes.ConstraintBasedSymShapeEvalPass()(module)
    assert add.meta["spec"].shape == [9, 4]


def test_configuration_selects_how_sizes_are_bounded() -> None:
    config = ExecutorchBackendConfig(
        sym_shape_eval_pass=passes.ConstraintBasedSymShapeEvalPass(), do_quant_fusion_and_const_prop=True
    )
    buffer = to_edge(captured()).to_executorch(config).buffer
    (result,) = Runtime.get().load_program(buffer).load_method("forward").execute([X])
    torch.testing.assert_close(result, Net()(X))
    with pytest.raises(UnsupportedError, match="sym_shape_eval_pass"):
        ExecutorchBackendConfig(sym_shape_eval_pass=passes.HintBasedSymShapeEvalPass())


def test_quantization_is_fused_with_and_without_a_pass_for_it() -> None:
    pytest.importorskip("torchao")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from torchette.backends.xnnpack.pt2e_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    quantizer = XNNPACKQuantizer()
    quantizer.set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(nn.Linear(4, 4).eval(), (X,)).module(), quantizer)
    prepared(X)
    exported = torch.export.export(convert_pt2e(prepared), (X,))
    buffers = []
    for listed in ([], [passes.QuantFusionPass(_fix_node_meta_val=True)]):
        edge = to_edge(exported, compile_config=CONFIG).transform(listed)
        buffers.append(edge.to_executorch().buffer)
    assert buffers[0] == buffers[1]


def test_specs_of_weights_are_constant() -> None:
    program = captured()
    run = passes.SpecPropPass()
    run(program.graph_module)
    weight = next(iter(program.graph.nodes))
    assert not weight.meta["spec"].const
    run.update_placeholder_tensor_specs(program, program.graph_module)
    assert weight.meta["spec"].const


@pytest.mark.parametrize("edge", [False, True])
def test_values_that_depend_only_on_weights_are_stored(edge: bool) -> None:
    program = to_edge(captured(), compile_config=CONFIG).exported_program() if edge else captured()
    folded = constant_prop_pass(program)
    assert not {"aten.exp.default", "aten.t.default", "aten.permute_copy.default"} & set(
        names(folded.graph_module)
    )
    torch.testing.assert_close(folded.module()(X), Net()(X))
    target = torch.ops.aten.exp.default
    skipping = constant_prop_pass(captured(), custom_skip_targets={target})
    assert "aten.exp.default" in names(skipping.graph_module) and "aten.t.default" not in names(
        skipping.graph_module
    )
    torch.testing.assert_close(skipping.module()(X), Net()(X))


def test_handles_are_numbered() -> None:
    program = captured()
    generate_missing_debug_handles(program)
    handles = [node.meta["debug_handle"] for node in program.graph.nodes if node.op == "call_function"]
    assert handles == list(range(1, len(handles) + 1))


def test_buffers_start_with_their_values() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.full((1,), 5.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    for listed in ([], [InitializedMutableBufferPass(["count"])]):
        program = to_edge(captured(Counter())).to_executorch(ExecutorchBackendConfig(passes=listed))
        (result,) = Runtime.get().load_program(program.buffer).load_method("forward").execute([X])
        torch.testing.assert_close(result, X + 6)


def test_a_graph_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = captured().graph_module
    assert not passes.DebugPass("before", show_src=True)(module).modified
    text = capsys.readouterr().out
    assert text.startswith("before\n") and "aten.relu.default" in text and ".relu() * 2" in text
    passes.SpecPropPass()(module)
    passes.DebugPass(path=str(tmp_path / "graph.txt"), show_spec=True)(module)
    assert "TensorSpec(float32 [2, 4])" in (tmp_path / "graph.txt").read_text()
    passes.DebugPass(enable_debug_pass=False)(module)
    assert capsys.readouterr().out == ""
