# SPDX-License-Identifier: BSD-3-Clause
# The stages of an export session; the artifact of a stage is the input of the next one. torch.export, torchao and the
# compiler implement them. Names and arguments are those of executorch.export.stages.
"""The stages, their order, and the base class `Stage` for custom stages."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from torchette.capture import capture, pt2e
from torchette.errors import ExportError, InputError
from torchette.exir.program import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)
from torchette.export.recipe import ExportRecipe, LoweringRecipe, Mode, QuantizationRecipe
from torchette.export.types import StageType
from torchette.packages import require


@dataclass
class PipelineArtifact:
    """The result of a stage: method name -> model, or a program manager; and named context values."""

    data: Any
    context: dict[str, Any] = field(default_factory=dict)

    def add_context(self, key: str, value: object) -> None:
        """Sets a context value."""
        self.context[key] = value

    def get_context(self, key: str, default: object = None) -> Any:
        """Returns a context value, or `default`."""
        return self.context.get(key, default)

    def copy_with_new_data(self, new_data: Any) -> PipelineArtifact:
        """Returns an artifact with other data and a copy of the context."""
        return PipelineArtifact(new_data, dict(self.context))


class Stage(ABC):
    """A stage of a session. `run` stores its result in ``self._artifact``."""

    _artifact: PipelineArtifact | None = None

    @property
    @abstractmethod
    def stage_type(self) -> Any:
        """The type that identifies the stage."""

    @property
    @abstractmethod
    def valid_predecessor_stages(self) -> list[Any]:
        """The stages that may precede this stage."""

    @property
    @abstractmethod
    def can_start_pipeline(self) -> bool:
        """Whether the stage may be the first one."""

    @abstractmethod
    def run(self, artifact: PipelineArtifact) -> None:
        """Runs the stage on the artifact of the previous stage."""

    def get_artifacts(self) -> PipelineArtifact:
        """Returns the result.

        Raises:
            ExportError: if `run` was not called.
        """
        if self._artifact is None:
            raise ExportError(
                f"{type(self).__name__} has not run yet", hints=["stage.run(artifact)"], code="stage-not-run"
            )
        return self._artifact


class _RecipeStage(Stage):
    """A stage with options from a recipe."""

    kind: ClassVar[StageType]
    follows: ClassVar[tuple[StageType | None, ...]]
    """The stages that may precede this one; None if it may be the first stage."""
    _recipe: ExportRecipe

    @classmethod
    def of(cls, recipe: ExportRecipe) -> _RecipeStage:
        """Creates the stage from an export recipe."""
        stage = cls.__new__(cls)
        stage._recipe = recipe
        return stage

    @classmethod
    def from_recipe(cls, lowering_recipe: LoweringRecipe | None) -> _RecipeStage:
        """Creates the stage from a lowering recipe."""
        return cls.of(ExportRecipe(lowering_recipe=lowering_recipe))

    @property
    def stage_type(self) -> StageType:
        """The type that identifies the stage."""
        return self.kind

    @property
    def valid_predecessor_stages(self) -> list[StageType]:
        """The stages that may precede this stage."""
        return [kind for kind in self.follows if kind is not None]

    @property
    def can_start_pipeline(self) -> bool:
        """Whether the stage may be the first one."""
        return None in self.follows

    def run(self, artifact: PipelineArtifact) -> None:
        """Runs the stage on the artifact of the previous stage."""
        self._artifact = artifact.copy_with_new_data(self._made(artifact.data, artifact))

    def _made(self, data: Any, artifact: PipelineArtifact) -> Any:
        raise NotImplementedError

    @property
    def _lowering(self) -> LoweringRecipe:
        return self._recipe.lowering_recipe or LoweringRecipe()

    @property
    def _quantization(self) -> QuantizationRecipe:
        return self._recipe.quantization_recipe or QuantizationRecipe()

    def _config(self) -> EdgeCompileConfig | None:
        config = self._lowering.edge_compile_config
        if self._recipe.mode is Mode.DEBUG:
            config = replace(config or EdgeCompileConfig(), check_passes=True)
        return config

    def _partitioners(self) -> Any:
        partitioners = self._lowering.partitioners
        return (
            {m: list(sequence) for m, sequence in partitioners.items()}
            if isinstance(partitioners, Mapping)
            else list(partitioners or ()) or None
        )


class SourceTransformStage(_RecipeStage):
    """In: modules. Out: modules with weights that torchao has quantized."""

    kind, follows = StageType.SOURCE_TRANSFORM, (None,)

    def __init__(self, quantization_recipe: QuantizationRecipe | None, in_place: bool = False) -> None:
        self._recipe = ExportRecipe(
            quantization_recipe=quantization_recipe, source_transform_in_place=in_place
        )

    def _made(self, data: dict[str, Any], artifact: PipelineArtifact) -> dict[str, Any]:
        configs = self._quantization.ao_quantization_configs or ()
        if not configs:
            return data
        quantize_ = require("torchao.quantization", "quantizing").quantize_
        models = data if self._recipe.source_transform_in_place else copy.deepcopy(data)
        for module in models.values():
            for config in configs:
                quantize_(module, config.ao_base_config, *([config.filter_fn] if config.filter_fn else []))
        return models


class QuantizeStage(_RecipeStage):
    """In: modules. Out: graph modules that PT2E has quantized."""

    kind, follows = StageType.QUANTIZE, (None, StageType.SOURCE_TRANSFORM)

    def __init__(self, quantization_recipe: QuantizationRecipe | None) -> None:
        self._recipe = ExportRecipe(quantization_recipe=quantization_recipe)

    def _made(self, data: dict[str, Any], artifact: PipelineArtifact) -> dict[str, Any]:
        recipe = self._quantization
        if not recipe.quantizers:
            return data
        if recipe.is_qat and recipe.train_fn is None:
            raise InputError("quantization-aware training (is_qat) requires a train_fn")
        return {
            method: self._quantized(model, _inputs(artifact, method), recipe)
            for method, model in data.items()
        }

    def _quantized(
        self, model: torch.nn.Module, inputs: Sequence[tuple[Any, ...]], recipe: QuantizationRecipe
    ) -> GraphModule:
        shapes = None
        if recipe.dynamic_batch_size:
            batch = torch.export.Dim("batch", min=1)
            shapes = tuple({0: batch} if isinstance(arg, torch.Tensor) else None for arg in inputs[0])
        if recipe.is_qat:
            model.train()
        graph = torch.export.export(
            model, inputs[0], dynamic_shapes=shapes, strict=self._recipe.strict
        ).module()
        observe = recipe.calibration_inputs_fn() if recipe.calibration_inputs_fn else inputs
        return pt2e.quantize(
            graph,
            list(recipe.quantizers or ()),
            [] if recipe.is_qat else [(args, {}) for args in observe],
            train=recipe.train_fn if recipe.is_qat else None,
            pre_prepare=recipe.pre_prepare_passes,
            post_prepare=recipe.post_prepare_passes,
            pre_convert=recipe.pre_convert_passes,
            post_convert=recipe.post_convert_passes,
        )


class TorchExportStage(_RecipeStage):
    """In: modules. Out: captured programs."""

    kind, follows = StageType.TORCH_EXPORT, (None, StageType.SOURCE_TRANSFORM, StageType.QUANTIZE)

    def __init__(
        self,
        aten_transform_passes: Sequence[Callable[[str, ExportedProgram], ExportedProgram]] | None = None,
        strict: bool = True,
    ) -> None:
        self._recipe = ExportRecipe(aten_transform_passes=aten_transform_passes, strict=strict)

    def _made(self, data: dict[str, Any], artifact: PipelineArtifact) -> dict[str, ExportedProgram]:
        programs = {}
        for method, model in data.items():
            args = _inputs(artifact, method)[0]
            shapes = (artifact.get_context("dynamic_shapes") or {}).get(method)
            program = capture(model, args, None, shapes, method, strict=self._recipe.strict)
            for run in self._recipe.aten_transform_passes or ():
                program = run(method, program)
            programs[method] = program
        return programs


class EdgeTransformAndLowerStage(_RecipeStage):
    """In: captured programs. Out: an `EdgeProgramManager` with partitions delegated to backends."""

    kind, follows = StageType.TO_EDGE_TRANSFORM_AND_LOWER, (None, StageType.TORCH_EXPORT)

    def __init__(
        self,
        partitioners: list[Any] | None = None,
        transform_passes: Sequence[Callable[[str, ExportedProgram], Any]] | None = None,
        compile_config: EdgeCompileConfig | None = None,
    ) -> None:
        lowering = LoweringRecipe(partitioners, transform_passes, None, compile_config)
        self._recipe = ExportRecipe(lowering_recipe=lowering)

    def _made(self, data: dict[str, ExportedProgram], artifact: PipelineArtifact) -> EdgeProgramManager:
        recipe, passes = self._lowering, {}
        for method, program in data.items():
            transforms = [factory(method, program) for factory in recipe.edge_transform_passes or ()]
            passes[method] = [
                run
                for group in transforms
                for run in (group if isinstance(group, (list, tuple)) else [group])
            ]
        return to_edge_transform_and_lower(
            data,
            transform_passes={method: runs for method, runs in passes.items() if runs} or None,
            partitioner=self._partitioners(),
            constant_methods=artifact.get_context("constant_methods"),
            compile_config=self._config(),
            generate_etrecord=artifact.get_context("generate_etrecord", False),
        )


class ToEdgeStage(_RecipeStage):
    """In: captured programs. Out: an `EdgeProgramManager`."""

    kind, follows = StageType.TO_EDGE, (None, StageType.TORCH_EXPORT)

    def __init__(self, edge_compile_config: EdgeCompileConfig | None = None) -> None:
        self._recipe = ExportRecipe(lowering_recipe=LoweringRecipe(edge_compile_config=edge_compile_config))

    def _made(self, data: dict[str, ExportedProgram], artifact: PipelineArtifact) -> EdgeProgramManager:
        return to_edge(
            data,
            constant_methods=artifact.get_context("constant_methods"),
            compile_config=self._config(),
            generate_etrecord=artifact.get_context("generate_etrecord", False),
        )


class EdgeProgramManagerTransformStage(_RecipeStage):
    """In: an `EdgeProgramManager`. Out: one that passes have transformed."""

    kind, follows = (
        StageType.EDGE_PROGRAM_MANAGER_TRANSFORM,
        (StageType.TO_EDGE, StageType.TO_EDGE_TRANSFORM_AND_LOWER),
    )

    def __init__(
        self,
        edge_transform_passes: object = None,
        edge_manager_transform_passes: Sequence[Callable[[Any], Any]] | None = None,
    ) -> None:
        del edge_transform_passes  # used by the stage that converts to Edge
        lowering = LoweringRecipe(edge_manager_transform_passes=edge_manager_transform_passes)
        self._recipe = ExportRecipe(lowering_recipe=lowering)

    def _made(self, data: EdgeProgramManager, artifact: PipelineArtifact) -> EdgeProgramManager:
        for factory in self._lowering.edge_manager_transform_passes or ():
            data = data.transform(factory(data))
        return data


class ToBackendStage(_RecipeStage):
    """In: an `EdgeProgramManager`. Out: one with partitions delegated to backends."""

    kind, follows = StageType.TO_BACKEND, (StageType.TO_EDGE, StageType.EDGE_PROGRAM_MANAGER_TRANSFORM)

    def __init__(self, partitioners: list[Any] | None = None) -> None:
        self._recipe = ExportRecipe(lowering_recipe=LoweringRecipe(partitioners))

    def _made(self, data: EdgeProgramManager, artifact: PipelineArtifact) -> EdgeProgramManager:
        partitioners = self._lowering.partitioners
        for partitioner in () if isinstance(partitioners, Mapping) else partitioners or ():
            data = data.to_backend(partitioner)
        return data.to_backend(self._partitioners()) if isinstance(partitioners, Mapping) else data


class ExecutorchStage(_RecipeStage):
    """In: an `EdgeProgramManager`. Out: the finished program."""

    kind, follows = (
        StageType.TO_EXECUTORCH,
        (
            StageType.TO_EDGE_TRANSFORM_AND_LOWER,
            StageType.TO_BACKEND,
            StageType.EDGE_PROGRAM_MANAGER_TRANSFORM,
            StageType.TO_EDGE,
        ),
    )

    def __init__(self, backend_config: ExecutorchBackendConfig | None = None) -> None:
        self._recipe = ExportRecipe(executorch_backend_config=backend_config)

    def _made(self, data: EdgeProgramManager, artifact: PipelineArtifact) -> ExecutorchProgramManager:
        return data.to_executorch(self._recipe.executorch_backend_config or ExecutorchBackendConfig())


STAGES: dict[Any, type[_RecipeStage]] = {stage.kind: stage for stage in _RecipeStage.__subclasses__()}


def _inputs(artifact: PipelineArtifact, method: str) -> Sequence[tuple[Any, ...]]:
    """Returns the example inputs of a method."""
    inputs = (artifact.get_context("example_inputs") or {}).get(method)
    if not inputs:
        raise InputError(
            f"method {method!r} has no example inputs",
            hints=["PipelineArtifact(models, {'example_inputs': {method: [(x,)]}})"],
        )
    result: Sequence[tuple[Any, ...]] = inputs
    return result
