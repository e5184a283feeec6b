# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's API: from exported programs to the bytes of a file, with users' passes at three stages.

import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from graphs import ConvNet, Counter, called, export, results
from torch import nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

import torchette
from torchette import exir
from torchette.errors import InputTypeError, TorchetteError, UnsupportedError
from torchette.exir import (
    EdgeCompileConfig,
    ExecutorchBackendConfig,
    to_edge,
    to_edge_transform_and_lower,
)
from torchette.exir.memory.plan_memory import MemoryPlanningPass
from torchette.exir.pass_base import ExportPass
from torchette.format import pte

X = torch.randn(2, 3, 8, 8)


class ReluToSigmoid(ExportPass):
    def call_operator(self, op, args, kwargs, meta):
        op = torch.ops.aten.sigmoid.default if op == torch.ops.aten.relu.default else op
        return super().call_operator(op, args, kwargs, meta)


def operators(manager):
    return {
        f"{op.name}.{op.overload}"
        for plan in manager.executorch_program.execution_plan
        for op in plan.operators
    }


def test_signatures_and_fields_match_executorch():
    assert list(inspect.signature(to_edge).parameters) == [
        "programs", "constant_methods", "compile_config", "generate_etrecord",
    ]  # fmt: skip
    assert list(inspect.signature(to_edge_transform_and_lower).parameters) == [
        "programs", "transform_passes", "partitioner", "constant_methods", "compile_config", "generate_etrecord",
    ]  # fmt: skip
    fields = {f.name for f in dataclasses.fields(EdgeCompileConfig)}
    assert fields >= {
        "_check_ir_validity",
        "_skip_dim_order",
        "_core_aten_ops_exception_list",
        "preserve_ops",
    }
    config = ExecutorchBackendConfig()
    assert (config.segment_alignment, config.remove_view_copy, config.extract_delegate_segments) == (
        128,
        True,
        True,
    )
    assert (
        isinstance(config.memory_planning_pass, MemoryPlanningPass)
        and config.memory_planning_pass.alloc_graph_input
    )


def test_from_module_to_bytes_and_back(tmp_path):
    manager = to_edge(export(ConvNet(), (X,)), constant_methods={"get_size": 8}).to_executorch()
    file = pte.read(manager.buffer)
    assert {plan.name for plan in file.program.execution_plan} == {"forward", "get_size"}
    assert manager.methods == {"forward"} and manager.config_methods == {"get_size"}
    manager.save(tmp_path / "net")
    with open(tmp_path / "other", "wb") as out:
        manager.write_to_file(out)
    assert (tmp_path / "net.pte").read_bytes() == (tmp_path / "other").read_bytes() == manager.buffer
    planned, bound = manager.planned_bytes()
    assert planned >= bound > 0
    assert set(manager.operators()) == operators(manager)
    assert "self.conv(x)" in manager.operators()["aten::convolution.out"]


def test_reprs_describe_managers(capsys):
    edge = to_edge(export(ConvNet(), (X,)), constant_methods={"n": 1})
    assert repr(edge).splitlines() == [
        "EdgeProgramManager",
        "  forward: (float32[2, 3, 8, 8]) -> (float32[2, 4]), 5 calls",
        "  n: constant",
    ]
    final = edge.to_executorch()
    assert "bytes planned (at least" in repr(final) and repr(final).startswith("ExecutorchProgramManager\n  ")
    final.dump_executorch_program()
    assert "aten_convolution_default = aten.convolution.out" in capsys.readouterr().out
    final.dump_executorch_program(verbose=True)
    assert "ExecutionPlan" in capsys.readouterr().out


def test_two_compiles_yield_equal_bytes_and_keep_their_inputs():
    module = ConvNet().eval()
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    exported = export(module, (X,))
    code = exported.graph_module.code
    edge = to_edge(exported)
    before = called(edge.exported_program())
    first, second = edge.to_executorch().buffer, edge.to_executorch().buffer
    assert first == second == to_edge(exported).to_executorch().buffer
    assert called(edge.exported_program()) == before and exported.graph_module.code == code
    assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in state.items())


def test_users_passes_run_at_three_stages():
    exported = export(nn.ReLU(), (X,))
    transformed = to_edge(exported).transform([ReluToSigmoid()])
    lowered = to_edge_transform_and_lower(exported, transform_passes={"forward": [ReluToSigmoid()]})
    late = to_edge(exported).to_executorch(ExecutorchBackendConfig(passes=[ReluToSigmoid()]))
    for edge in (transformed, lowered):
        assert called(edge.exported_program()) == ["sigmoid.default"]
        assert operators(edge.to_executorch()) == {"aten::sigmoid.out"}
    assert operators(late) == {"aten::sigmoid.out"}
    assert next(r.name for r in late.report().records if r.stage == "user") == "ReluToSigmoid"
    assert called(to_edge(exported).transform({"other": [ReluToSigmoid()]}).exported_program()) == [
        "relu.default"
    ]


def test_methods_share_weights_and_state_is_kept():
    layer = nn.Linear(100, 100)
    programs = {
        "encode": export(layer, (torch.randn(1, 100),)),
        "decode": export(nn.Sequential(layer, nn.ReLU()), (torch.randn(2, 100),)),
    }
    manager = to_edge(programs, constant_methods={"vocabulary": 32000, "scale": 0.5}).to_executorch()
    single = to_edge(programs["encode"]).to_executorch()
    assert manager.methods == {"encode", "decode"}
    assert len(manager.buffer) < 1.05 * len(single.buffer) + 2000
    with pytest.raises(KeyError, match="no method 'forward'; methods: decode, encode"):
        manager.exported_program()
    state = to_edge(export(Counter(), (torch.randn(4),))).to_executorch()
    assert pte.read(state.buffer).program.mutable_data_segments


def test_memory_planning_per_method():
    plain = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    programs = {name: export(nn.ReLU(), (X,)) for name in ("a", "b")}
    manager = to_edge(programs).to_executorch(ExecutorchBackendConfig(memory_planning_pass={"a": plain}))
    assert manager.planned_bytes("a")[0] < manager.planned_bytes("b")[0]


def test_config_options_have_effect():
    exported = export(nn.Sequential(nn.SiLU(), nn.Flatten(0)), (X,))
    silu = torch.ops.aten.silu.default
    edge = to_edge(exported, compile_config=EdgeCompileConfig(preserve_ops=[silu]))
    assert called(edge.exported_program())[0] == "silu.default"
    views = to_edge(export(lambda x: x.exp().flatten().exp(), (X,)))
    assert "aten::view_copy.out" not in operators(views.to_executorch())
    with_copies = views.to_executorch(ExecutorchBackendConfig(remove_view_copy=False))
    assert "aten::view_copy.out" in operators(with_copies)
    big = views.to_executorch(ExecutorchBackendConfig(segment_alignment=4096, constant_tensor_alignment=64))
    assert len(big.buffer) >= len(views.to_executorch().buffer)
    traced = views.to_executorch(ExecutorchBackendConfig(emit_stacktrace=True)).executorch_program
    assert traced.execution_plan[0].chains[0].stacktrace
    checked = to_edge(
        exported, compile_config=EdgeCompileConfig(check_passes=True, disable_passes=["remove_noops"])
    )
    assert "remove_noops" not in {record.name for record in checked.report().records}


def test_unsupported_option_raises():
    with pytest.raises(UnsupportedError, match="not supported") as caught:
        ExecutorchBackendConfig(sym_shape_eval_pass=type("HintBasedSymShapeEvalPass", (), {})())
    assert isinstance(caught.value, NotImplementedError) and caught.value.hints


@pytest.mark.parametrize("wrong", [nn.ReLU(), None, {}, {"forward": nn.ReLU()}], ids=str)
def test_wrong_types_raise(wrong):
    with pytest.raises(InputTypeError, match="expected an ExportedProgram") as caught:
        to_edge(wrong)
    assert (
        isinstance(caught.value, (TypeError, TorchetteError))
        and "torch.export.export" in caught.value.hints[0]
    )


def test_programs_survive_being_saved(tmp_path):
    exported = export(ConvNet(), (X,))
    edge = to_edge(exported).exported_program()
    for name, program in (("captured", exported), ("edge", edge)):
        exir.save(program, tmp_path / f"{name}.pt2")
        loaded = exir.load(tmp_path / f"{name}.pt2")
        exir.verify(loaded, "autograd_safe" if name == "captured" else "edge")
        again = to_edge(loaded)
        assert called(again.exported_program()) == called(edge)
        torch.testing.assert_close(results(again.exported_program(), (X,)), results(edge, (X,)))
        assert operators(again.to_executorch()) == operators(to_edge(exported).to_executorch())


def test_same_bytes_in_another_process():
    code = (
        "import sys, torch; sys.path[:0] = sys.argv[1:]\n"
        "from graphs import export\n"
        "from torchette.exir import to_edge\n"
        "torch.manual_seed(0)\n"
        "layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)\n"
        "import hashlib\n"
        "data = to_edge(export(layer, (torch.randn(1, 3, 8),))).to_executorch().buffer\n"
        "print(hashlib.sha256(data).hexdigest())"
    )
    here = Path(__file__).parent
    runs = [
        subprocess.run(
            [sys.executable, "-c", code, str(here), str(here.parents[1])],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] and len(runs[0].strip()) == 64


def test_vmap_with_indices_from_vmap():
    # A mask by index functions, as transformers builds it. torch.export leaves calls of flat_apply in the graph.
    class Masked(torch.nn.Module):
        def forward(self, lengths, x):
            def is_inside(row, column):
                return column < lengths[row]

            rows, columns = (torch.arange(size) for size in x.shape)
            with TransformGetItemToIndex():
                mask = torch.vmap(torch.vmap(is_inside, (None, 0)), (0, None))(rows, columns)
            return torch.where(mask, x, 0.0)

    args = torch.tensor([1, 3]), torch.randn(2, 4)
    model = Masked().eval()
    assert torch.equal(torchette.compile(model, args)(*args), model(*args))
