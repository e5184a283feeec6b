# SPDX-License-Identifier: BSD-3-Clause
# The pipeline as a value, its options, and the check that names the pass that breaks a model.

import re

import pytest
import torch
from graphs import ConvNet, called, export, lower
from torch import nn

from torchette.backends.engine import CpuPartitioner
from torchette.backends.null import NullPartitioner
from torchette.errors import DialectError, PassError
from torchette.exir import EdgeCompileConfig, ExecutorchBackendConfig
from torchette.exir.pass_manager import adapt
from torchette.exir.pipeline import (
    OPTIONAL,
    STAGES,
    TO_EDGE,
    TO_PLAN,
    Report,
    build,
    pass_name,
    run_stages,
    text,
)

X = torch.randn(2, 3, 8, 8)


def test_str_lists_every_stage_and_pass():
    edge = EdgeCompileConfig(preserve_ops=[torch.ops.aten.relu.default])
    backend = ExecutorchBackendConfig(passes=[swap_relu_for_sigmoid], parallel=2)
    pipeline = build(edge, backend, partitioners=[NullPartitioner()], preserve=[torch.ops.aten.silu.default])
    names = [stage.name for stage in pipeline.stages]
    assert names == [
        "capture",
        "core",
        "edge",
        "delegate",
        "core again",
        "edge again",
        "user",
        "optimize",
        "exec",
        "plan",
    ]
    printed = str(pipeline)
    for stage in pipeline.stages:
        assert f"{stage.name} -> {stage.dialect.name}" in printed
        for run in stage.passes:
            words = "" if run is pipeline.stages[6].passes[0] else r" +\S"  # the user's pass has no docstring
            assert re.search(rf"^    {pass_name(run)}{words}", printed, re.M), run
    shown = {pass_name(p) for stage in pipeline.stages for p in stage.passes}
    assert shown >= OPTIONAL | {"NullPartitioner", "swap_relu_for_sigmoid", "split_chains", "plan_memory"}


def test_stages_are_in_the_order_of_the_table():
    edge = EdgeCompileConfig(preserve_ops=[torch.ops.aten.relu.default])
    backend = ExecutorchBackendConfig(passes=[swap_relu_for_sigmoid])
    pipeline = build(
        edge,
        backend,
        partitioners=[NullPartitioner(), CpuPartitioner()],
        transforms=swap_relu_for_sigmoid,
        preserve=[torch.ops.aten.silu.default],
    )
    assert [stage.name for stage in pipeline.stages] == list(STAGES)
    assert [stage.name for stage in build().stages] == [*TO_EDGE, "optimize", "exec", "plan"]
    assert set(TO_EDGE) | set(TO_PLAN) <= set(STAGES)


def test_options_of_other_methods_have_no_effect():
    choices = {
        "partitioners": {"encode": [NullPartitioner()], "decode": [CpuPartitioner()]},
        "transforms": {"encode": [swap_relu_for_sigmoid]},
    }
    names = {
        name: {stage.name for stage in build(method=name, **choices).stages}
        & {"delegate", "target", "transform"}
        for name in ("encode", "decode", "sample")
    }
    assert names == {"encode": {"delegate", "transform"}, "decode": {"target"}, "sample": set()}


def test_stages_run_by_name_and_methods_are_lowered_together():
    programs = {
        name: export(nn.Sequential(nn.Linear(3, 3)), (torch.randn(1, 3),)) for name in ("a", "b", "c")
    }
    partitioners = {"a": [NullPartitioner()], "b": [NullPartitioner(), NullPartitioner()]}
    pipelines = {name: build(method=name, partitioners=partitioners) for name in programs}
    reports = {name: Report() for name in ("a", "b", "c")}
    edge = run_stages(pipelines, programs, reports, TO_EDGE)
    assert {record.stage for record in reports["a"].records} == set(TO_EDGE)
    reports = {name: Report() for name in ("a", "b")}  # a method without a report also runs
    lowered = run_stages(pipelines, edge, reports, ("delegate",))
    records = {
        name: [(pass_record.stage, pass_record.name) for pass_record in report.records]
        for name, report in reports.items()
    }
    turn = ("delegate", "NullPartitioner")
    assert records == {"a": [turn], "b": [turn, turn]}
    assert list(lowered) == ["a", "b", "c"] and edge["a"] is not lowered["a"]


def test_until_dump_and_progress(tmp_path):
    steps = []
    program, report = lower(
        nn.Linear(3, 2),
        (torch.randn(1, 3),),
        "edge",
        dump=tmp_path,
        progress=lambda *step: steps.append(step),
    )
    assert called(program) == ["linear.default"]
    passes = [(stage.name, pass_name(run)) for stage in build().until("edge").stages for run in stage.passes]
    assert steps == passes == [(record.stage, record.name) for record in report.records]
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == len(passes) and files[5] == "06_core_decompose_to_core.txt"
    assert (tmp_path / files[-1]).read_text() == text(program)
    assert "float32[1, 2]" in text(program)


def test_report_prints_what_each_pass_did():
    _, report = lower(ConvNet(), (X,))
    lines = str(report).splitlines()
    assert len(lines) == len(report.records)
    line = next(line for line in lines if "fold_batch_norm" in line)
    assert "1 batch norms folded" in line and "ms" in line and "nodes" in line


@pytest.mark.parametrize("name", sorted(OPTIONAL))
def test_every_optimization_can_be_disabled(name):
    _, report = lower(ConvNet(), (X,), disable_passes={name})
    assert name not in {record.name for record in report.records}


def test_required_pass_cannot_be_disabled():
    with pytest.raises(PassError, match="cannot disable to_out_variants") as caught:
        build(EdgeCompileConfig(disable_passes=["to_out_variants"]))
    assert caught.value.code == "unknown-pass" and "fold_constants" in caught.value.hints[0]


def swap_relu_for_sigmoid(graph_module):
    for node in graph_module.graph.nodes:
        if node.target == torch.ops.aten.relu.default:
            node.target = torch.ops.aten.sigmoid.default


@pytest.mark.parametrize("stage", ["edge", "optimize"])
def test_error_names_the_pass_that_changes_the_result(stage):
    with pytest.raises(PassError) as caught:
        lower(ConvNet(), (X,), extra_passes={stage: [adapt(swap_relu_for_sigmoid)]})
    error = caught.value
    assert error.pass_name == "swap_relu_for_sigmoid" and error.code == "pass-changed-result"
    assert (
        f"pass swap_relu_for_sigmoid of stage {stage} changed the result: output 0 differs by up to"
        in str(error)
    )
    assert "the first node to differ is relu" in str(error) and "torch.relu_(self.norm" in error.where[0]


def test_error_names_the_pass_that_raises():
    def clumsy(graph_module):
        raise KeyError("oops")

    with pytest.raises(PassError, match="pass clumsy of stage edge failed: KeyError: 'oops'") as caught:
        lower(nn.ReLU(), (X,), extra_passes={"edge": [adapt(clumsy)]})
    assert isinstance(caught.value.__cause__, KeyError)


def test_error_names_the_pass_that_breaks_the_graph():
    def use_before_definition(graph_module):
        first, *_, last = [n for n in graph_module.graph.nodes if n.op == "call_function"]
        last.append(first)

    with pytest.raises(
        PassError, match="pass use_before_definition of stage optimize produced an invalid program"
    ) as caught:
        lower(ConvNet(), (X,), extra_passes={"optimize": [adapt(use_before_definition)]})
    assert caught.value.code == "pass-broke-program"


def test_pass_that_violates_the_dialect_is_rejected():
    def add_view(graph_module):
        relu = next(n for n in graph_module.graph.nodes if n.op == "call_function")
        with graph_module.graph.inserting_after(relu):
            view = graph_module.graph.call_function(torch.ops.aten.view.default, (relu, [-1]))
        relu.replace_all_uses_with(view, delete_user_cb=lambda user: user is not view)

    with pytest.raises(DialectError) as caught:
        lower(nn.ReLU(), (X,), extra_passes={"optimize": [adapt(add_view)]}, check_passes=False)
    assert [v.code for v in caught.value.violations] == ["not-edge"]
    unchecked = EdgeCompileConfig(_check_ir_validity=False, check_passes=False)
    assert build(unchecked).until("optimize").insert("optimize", adapt(add_view)).run(export(nn.ReLU(), (X,)))
