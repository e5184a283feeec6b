# SPDX-License-Identifier: BSD-3-Clause
"""Recipes and sessions, under ExecuTorch's names: compile a module with the settings that a backend recommends."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchette.backends.null import NullPartitioner
from torchette.backends.xnnpack import XNNPACKRecipeProvider, XNNPackRecipeType
from torchette.errors import ExportError, InputError, InputTypeError, TrainModeError
from torchette.exir import EdgeCompileConfig, ExecutorchBackendConfig
from torchette.export import (
    BackendRecipeProvider,
    ExportRecipe,
    ExportSession,
    LoweringRecipe,
    Mode,
    QuantizationRecipe,
    RecipeType,
    StageType,
    export,
    recipe_registry,
)
from torchette.export.recipe_registry import RecipeRegistry
from torchette.export.stages import PipelineArtifact


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 64), nn.Linear(64, 4)

    def forward(self, x):
        return self.b(self.a(x).relu())


class _Sum(nn.Module):
    def forward(self, x, y):
        return x + y * y


X = torch.linspace(-1, 1, 64).reshape(2, 32)
PAIR = (torch.ones(2, 3), torch.full((2, 3), 2.0))


@pytest.mark.parametrize("recipe", XNNPackRecipeType)
def test_each_recipe_of_xnnpack(recipe: RecipeType) -> None:
    pytest.importorskip("torchao")
    torch.manual_seed(0)
    model = _Net().eval()
    session = export(model, [(X,), (X * 2,)], ExportRecipe.get_recipe(recipe))
    assert not [p for p in session.get_edge_program_manager().delegation().placements if p.backend is None]
    (got,) = session.run_method()
    error = (torch.as_tensor(got) - model(X)).abs().max().item()
    limit = 0.2 * model(X).abs().max().item()
    assert error < (1e-5 if recipe is XNNPackRecipeType.FP32 else limit)
    assert (error > 1e-6) == (recipe is not XNNPackRecipeType.FP32), "it is quantized"
    plain = export(model, [(X,)], ExportRecipe.get_recipe(XNNPackRecipeType.FP32)).get_pte_buffer()
    ratio = len(session.get_pte_buffer()) / len(plain)
    assert ratio <= (1 if recipe is XNNPackRecipeType.FP32 else 0.75)


def test_options_of_recipes(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("torchao")
    four = XNNPackRecipeType.TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_TENSOR
    recipe = ExportRecipe.get_recipe(four, group_size=64)
    assert (
        recipe.quantization_recipe is not None
        and recipe.quantization_recipe.ao_quantization_configs is not None
    )
    assert (
        recipe.quantization_recipe.ao_quantization_configs[0].ao_base_config.weight_granularity.group_size
        == 64
    )
    with pytest.raises(InputError, match="group_size must be a positive integer, got 'big'"):
        ExportRecipe.get_recipe(four, group_size="big")
    with caplog.at_level("WARNING", logger="torchette"):
        assert ExportRecipe.get_recipe(XNNPackRecipeType.FP32, speed=1).name == "xnnpack_fp32"
    assert "xnnpack_fp32 has no option speed" in caplog.text
    with pytest.raises(InputError, match="'fast' is not a recipe"):
        ExportRecipe.get_recipe("fast")  # type: ignore[arg-type]


class _Recipes(RecipeType):
    ONE, TWO = "one", "two"

    @classmethod
    def get_backend_name(cls) -> str:
        return "mine"


class _Provider(BackendRecipeProvider):
    backend_name = "mine"

    def get_supported_recipes(self):
        return [_Recipes.ONE]

    def create_recipe(self, recipe_type, **kwargs):
        return ExportRecipe(name="one") if self.supports_recipe(recipe_type) else None


def test_backends_register_their_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "xnnpack" in recipe_registry.list_backends()
    assert recipe_registry.get_supported_recipes("xnnpack") == list(XNNPackRecipeType)
    assert XNNPACKRecipeProvider().create_recipe(_Recipes.ONE) is None
    with pytest.raises(InputError, match="no recipes are registered for the backend mine") as error:
        ExportRecipe.get_recipe(_Recipes.ONE)
    assert "xnnpack" in str(error.value)
    registry = RecipeRegistry()
    monkeypatch.setattr(sys.modules["torchette.export.recipe"], "recipe_registry", registry)
    registry.register_backend_recipe_provider(_Provider())
    assert ExportRecipe.get_recipe(_Recipes.ONE).name == "one"
    with pytest.raises(InputError, match="mine has no recipe 'two'; it has one"):
        ExportRecipe.get_recipe(_Recipes.TWO)


def test_recipes_are_combined() -> None:
    first, second = (
        ExportRecipe(
            name, lowering_recipe=LoweringRecipe([NullPartitioner()], edge_compile_config=EdgeCompileConfig())
        )
        for name in ("a", "b")
    )
    both = ExportRecipe.combine([first, second])
    assert both.name == "a_b" and both.lowering_recipe is not None
    assert len(both.lowering_recipe.partitioners or ()) == 2
    assert both.lowering_recipe.edge_compile_config == EdgeCompileConfig()
    named = [ExportRecipe(lowering_recipe=LoweringRecipe({"f": [NullPartitioner()]})) for _ in range(2)]
    merged = ExportRecipe.combine(named, "two").lowering_recipe
    assert merged is not None and len(merged.partitioners["f"]) == 2  # type: ignore[index, call-overload]
    with pytest.raises(InputError, match=r"have different values of strict: True, False"):
        ExportRecipe.combine([first, dataclasses.replace(second, strict=False)])
    with pytest.raises(InputError, match="recipes is empty"):
        ExportRecipe.combine([])


def test_a_session_step_by_step(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    events: list[str] = []

    def captured(method, program):
        events.append(method)
        return program

    def of_edge(*args):
        events.append(type(args[-1]).__name__)
        return [lambda module: events.append(type(module).__name__)]

    recipe = ExportRecipe(
        aten_transform_passes=[captured],
        lowering_recipe=LoweringRecipe([NullPartitioner()], [of_edge], [of_edge]),
        executorch_backend_config=ExecutorchBackendConfig(portable_fallback=True),
        mode=Mode.DEBUG,
    )
    session = ExportSession(
        {"one": _Sum(), "two": _Sum()}, {"one": [PAIR], "two": [PAIR]}, recipe, constant_methods={"n": 3}
    )
    with pytest.raises(ExportError, match="stage to_executorch has not run yet") as error:
        session.get_pte_buffer()
    assert error.value.code == "stage-not-run"
    session.export()
    assert list(session.get_stage_artifacts()) == [
        StageType.SOURCE_TRANSFORM, StageType.QUANTIZE, StageType.TORCH_EXPORT, StageType.TO_EDGE_TRANSFORM_AND_LOWER,
        StageType.EDGE_PROGRAM_MANAGER_TRANSFORM, StageType.TO_EXECUTORCH,
    ]  # fmt: skip
    assert (
        events[:2] == ["one", "two"]
        and events.count("ExportedProgram") == 2
        and "EdgeProgramManager" in events
    )
    assert events.count("GraphModule") >= 4
    assert session.get_executorch_program().execution_plan
    torch.testing.assert_close(torch.as_tensor(session.run_method("two")[0]), _Sum()(*PAIR))
    torch.testing.assert_close(
        torch.as_tensor(session.run_method("one", (PAIR[1], PAIR[1]))[0]), torch.full((2, 3), 6.0)
    )
    session.save_to_pte(str(tmp_path / "sums"))
    assert (tmp_path / "sums.pte").read_bytes() == session.get_pte_buffer()
    session.print_delegation_info()
    assert capsys.readouterr().out.count("NullBackend") >= 2
    with pytest.raises(InputError, match="no method 'three'; methods: 'one', 'two'"):
        session.get_exported_program("three")


@pytest.mark.parametrize("start", ["exported", "graph", "saved"])
def test_session_starts_with_a_captured_program(start: str, tmp_path: Path) -> None:
    n = torch.export.Dim("n", max=8)
    program = torch.export.export(_Sum(), PAIR, dynamic_shapes=({0: n}, {0: n}))
    model: Any = program
    inputs: Any = None
    if start == "graph":
        model, inputs = program.module(), [PAIR]
    elif start == "saved":
        model = str(tmp_path / "sum.pt2")
        torch.export.save(program, model)
    shapes = ({0: n}, {0: n}) if start == "graph" else None
    recipe = ExportRecipe(lowering_recipe=LoweringRecipe([NullPartitioner()]))
    session = export(model, inputs, recipe, dynamic_shapes=shapes)
    assert (StageType.TORCH_EXPORT in session.get_stage_artifacts()) == (start == "graph")
    five = (torch.ones(5, 3), torch.ones(5, 3))
    torch.testing.assert_close(torch.as_tensor(session.run_method("forward", five)[0]), _Sum()(*five))


def test_other_stages() -> None:
    stages = [StageType.TORCH_EXPORT, StageType.TO_EDGE, StageType.TO_BACKEND, StageType.TO_EXECUTORCH]
    recipe = ExportRecipe(lowering_recipe=LoweringRecipe([NullPartitioner()]), pipeline_stages=stages)
    session = export(_Sum(), [PAIR], recipe)
    assert {p.backend for p in session.get_edge_program_manager().delegation().placements} == {"NullBackend"}

    class Counting:
        def run(self, artifact):
            self.made = PipelineArtifact(artifact.data, {"methods": len(artifact.data)})

        def get_artifacts(self):
            return self.made

    mixed = dataclasses.replace(recipe, pipeline_stages=[stages[0], "count", *stages[1:]])  # type: ignore[list-item]
    session = ExportSession(_Sum(), [PAIR], mixed)
    with pytest.raises(InputError, match="there is no stage 'count'"):
        session.export()
    counting = Counting()
    session.register_stage("count", counting)
    session.export()
    assert session.get_stage_artifacts()["count"].get_context("methods") == 1  # type: ignore[index]
    assert session.get_registered_stage("count") is counting
    assert session.get_registered_stage(StageType.TO_EDGE) is not None
    for wrong, words in (
        ([StageType.TO_EXECUTORCH], "to_executorch cannot be the first stage"),
        ([StageType.TO_EDGE, StageType.TORCH_EXPORT], "torch_export cannot follow to_edge"),
    ):
        with pytest.raises(InputError, match=words):
            export(_Sum(), [PAIR], ExportRecipe(pipeline_stages=wrong))
    program = torch.export.export(_Sum(), PAIR)
    with pytest.raises(InputError, match="torch_export does not accept a model that is already captured"):
        export(program, None, ExportRecipe(pipeline_stages=[StageType.TORCH_EXPORT]))


def test_session_rejects_invalid_arguments() -> None:
    with pytest.raises(InputError, match="method 'forward' has no example inputs"):
        ExportSession(_Sum())
    with pytest.raises(InputTypeError, match="expected a module or an exported program, got int"):
        ExportSession(3, [PAIR])
    with pytest.raises(InputError, match="requires a train_fn"):
        export(_Sum(), [PAIR], ExportRecipe(quantization_recipe=QuantizationRecipe([object()], is_qat=True)))


def test_training_and_passes_of_a_recipe() -> None:
    pytest.importorskip("torchao")
    from torchette.backends.xnnpack import XNNPACKQuantizer, get_symmetric_quantization_config

    order: list[str] = []

    def step(name):
        def run(graph):
            order.append(name)
            return graph

        return run

    def train(prepared):
        order.append("train")
        optimizer = torch.optim.SGD([p for p in prepared.parameters() if p.requires_grad], lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            prepared(
                torch.randn(3, 32)
            ).square().mean().backward()  # another batch size than that of the example
            optimizer.step()

    torch.manual_seed(0)
    config = get_symmetric_quantization_config(is_per_channel=True, is_qat=True)
    recipe = ExportRecipe.get_recipe(XNNPackRecipeType.FP32)
    recipe.quantization_recipe = QuantizationRecipe(
        [XNNPACKQuantizer().set_global(config)], is_qat=True, dynamic_batch_size=True, train_fn=train,
        pre_prepare_passes=[step("1")], post_prepare_passes=[step("2")], pre_convert_passes=[step("3")],
        post_convert_passes=[step("4")],
    )  # fmt: skip
    session = export(_Net(), [(X,)], recipe)
    assert order == ["1", "2", "train", "3", "4"]
    expected = session.get_exported_program().module()(X)
    torch.testing.assert_close(torch.as_tensor(session.run_method()[0]), expected, rtol=0, atol=0.05)
    recipe.quantization_recipe.pre_prepare_passes = [lambda graph: None]  # type: ignore[list-item, return-value]
    with pytest.raises(InputTypeError, match="returned NoneType, expected a graph module"):
        export(_Net(), [(X,)], recipe)


def test_a_model_that_cannot_be_captured_is_diagnosed() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ExportError) as caught:
        export(Branch().eval(), [(torch.ones(3),)], ExportRecipe(strict=False))
    assert "return x if x.sum() > 0 else -x" in str(caught.value) and caught.value.hints
    drops = nn.Dropout(0.5)
    with pytest.raises(TrainModeError):
        export(drops, [(torch.ones(3),)])


def test_stages_alone() -> None:
    """Runs the stages without a session, as users of ExecuTorch do, each on the result of the previous stage."""
    from torchette.export import stages

    artifact = PipelineArtifact({"forward": _Sum()}, {"example_inputs": {"forward": [PAIR]}})
    steps: list[stages.Stage] = [
        stages.SourceTransformStage(None),
        stages.TorchExportStage(strict=False),
        stages.ToEdgeStage(),
        stages.EdgeProgramManagerTransformStage(),
        stages.ToBackendStage([NullPartitioner()]),
        stages.ExecutorchStage(),
    ]
    assert [step.can_start_pipeline for step in steps] == [True, True, True, False, False, False]
    with pytest.raises(RuntimeError, match="ToBackendStage has not run"):
        steps[4].get_artifacts()
    for before, step in zip([None, *steps], steps):
        assert before is None or before.stage_type in step.valid_predecessor_stages
        step.run(artifact)
        artifact = step.get_artifacts()
    assert artifact.data.methods == {"forward"} and artifact.get_context("example_inputs")
    with pytest.raises(ValueError, match="method 'forward' has no example inputs"):
        stages.TorchExportStage().run(PipelineArtifact({"forward": _Sum()}))
    lowered = stages.EdgeTransformAndLowerStage.from_recipe(LoweringRecipe([NullPartitioner()]))
    lowered.run(steps[1].get_artifacts())
    placements = lowered.get_artifacts().data.delegation().placements
    assert {placement.backend for placement in placements} == {"NullBackend"}
