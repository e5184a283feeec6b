# SPDX-License-Identifier: BSD-3-Clause
# In: a recipe and a model. Out: a session with the artifacts of its stages. The names are those of executorch.export;
# torch.export, torchao and the compiler implement the stages.
"""`export(model, example_inputs, recipe)` and the `ExportSession` that it returns."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from torchette.capture import DynamicShapes
from torchette.errors import ExportError, InputError, InputTypeError
from torchette.exir import load
from torchette.exir.program import EdgeProgramManager, ExecutorchProgramManager
from torchette.export.recipe import ExportRecipe
from torchette.export.stages import STAGES, PipelineArtifact, Stage
from torchette.export.types import StageType
from torchette.methods import by_method
from torchette.runtime import Runtime

_OF_MODULES = (StageType.SOURCE_TRANSFORM, StageType.QUANTIZE)
_LOWERED = (
    StageType.TO_BACKEND, StageType.EDGE_PROGRAM_MANAGER_TRANSFORM, StageType.TO_EDGE_TRANSFORM_AND_LOWER, StageType.TO_EDGE,
)  # fmt: skip


class ExportSession:
    """Runs the stages of a recipe for one or several methods.

    Example:
        ``session = ExportSession(model, [(x,)], recipe); session.export(); session.save_to_pte("model.pte")``
    """

    def __init__(
        self,
        model: object,
        example_inputs: Sequence[tuple[Any, ...]] | Mapping[str, Sequence[tuple[Any, ...]]] | None = None,
        export_recipe: ExportRecipe | None = None,
        name: str | None = None,
        dynamic_shapes: DynamicShapes = None,
        constant_methods: Mapping[str, Any] | None = None,
        artifact_dir: str | None = None,
        generate_etrecord: bool = False,
    ) -> None:
        """Creates a session. `export()` runs its stages.

        Args:
            model: a module, a graph module, an exported program, or the path of a saved one; or a mapping from method
                names to modules, graph modules or exported programs.
            example_inputs: tuples of arguments; or a mapping from method names to them. The first tuple is used to
                capture the model, all tuples are used for calibration. Optional for exported programs.
            export_recipe: the stages and their options; default: `ExportRecipe()`.
            name: a name for display.
            dynamic_shapes: see `torch.export.export`; or a mapping from method names to them.
            constant_methods, generate_etrecord: see `to_edge`.
            artifact_dir: a folder for the user's artifacts, created if it does not exist.

        Raises:
            InputTypeError: if a model has another type.
            InputError: if example inputs are missing, or if the stages of the recipe are in an invalid order.
        """
        if isinstance(model, (str, Path)):
            model = load(model)
        self._models: dict[str, Any] = dict(model) if isinstance(model, Mapping) else {"forward": model}
        for method, module in self._models.items():
            if not isinstance(module, (torch.nn.Module, ExportedProgram)):
                raise InputTypeError(
                    f"method {method!r}: expected a module or an exported program, got {type(module).__name__}"
                )
        self.name = name
        self._recipe = export_recipe or ExportRecipe()
        self._inputs = by_method(example_inputs, self._models, "example_inputs")
        self._context = {
            "example_inputs": self._inputs,
            "dynamic_shapes": _shapes_by_method(dynamic_shapes, self._models),
            "constant_methods": constant_methods,
            "generate_etrecord": generate_etrecord,
        }
        if artifact_dir is not None:
            Path(artifact_dir).mkdir(parents=True, exist_ok=True)
        self._artifacts: dict[StageType, PipelineArtifact] = {}
        self._registered: dict[Any, Any] = {}
        self._stages = list(self._recipe.pipeline_stages or self._usual_stages())
        captured = all(isinstance(module, ExportedProgram) for module in self._models.values())
        for method in () if captured else self._models:
            if not self._inputs.get(method):
                raise InputError(
                    f"method {method!r} has no example inputs",
                    hints=["example_inputs=[(x,)], one or more tuples of arguments"],
                )

    def _usual_stages(self) -> list[StageType]:
        first = next(iter(self._models.values()))
        stages = [] if isinstance(first, (GraphModule, ExportedProgram)) else list(_OF_MODULES)
        stages += [] if isinstance(first, ExportedProgram) else [StageType.TORCH_EXPORT]
        stages += [StageType.TO_EDGE_TRANSFORM_AND_LOWER]
        lowering = self._recipe.lowering_recipe
        if lowering is not None and lowering.edge_manager_transform_passes:
            stages += [StageType.EDGE_PROGRAM_MANAGER_TRANSFORM]
        return [*stages, StageType.TO_EXECUTORCH]

    # ---- stages ----

    def register_stage(self, stage_type: StageType, stage: Stage) -> None:
        """Registers a stage, or replaces the default one. See `Stage` for the interface."""
        self._registered[stage_type] = stage

    def get_registered_stage(self, stage_type: StageType) -> Any:
        """Returns the registered or default stage, or None."""
        return self.get_all_registered_stages().get(stage_type)

    def get_all_registered_stages(self) -> dict[Any, Any]:
        """Returns all stages by stage type."""
        usual = {kind: STAGES[kind].of(self._recipe) for kind in self._stages if kind in STAGES}
        return {**usual, **self._registered}

    def export(self) -> None:
        """Runs all stages.

        Raises:
            InputError: if the stages are in an invalid order. Exceptions of the stages are propagated.
        """
        self._check_stages()
        self._artifacts.clear()
        artifact = PipelineArtifact(dict(self._models), self._context)
        stages = self.get_all_registered_stages()
        for kind in self._stages:
            start = time.perf_counter()
            artifact.context = {**self._context, **artifact.context}
            stages[kind].run(artifact)
            artifact = stages[kind].get_artifacts()
            artifact.context["duration_ms"] = int((time.perf_counter() - start) * 1000)
            self._artifacts[kind] = artifact

    def _check_stages(self) -> None:
        previous: Any = None
        first_model = next(iter(self._models.values()))
        for kind in self._stages:
            late = isinstance(first_model, (GraphModule, ExportedProgram)) and kind in _OF_MODULES
            if late or (isinstance(first_model, ExportedProgram) and kind is StageType.TORCH_EXPORT):
                raise InputError(f"stage {kind.value} does not accept a model that is already captured")
            if kind not in self._registered:
                if kind not in STAGES:
                    raise InputError(
                        f"there is no stage {kind!r}", hints=["session.register_stage(stage_type, stage)"]
                    )
                if previous not in self._registered and previous not in STAGES[kind].follows:
                    before = "be the first stage" if previous is None else f"follow {previous.value}"
                    raise InputError(f"stage {kind.value} cannot {before}")
            previous = kind

    # ---- artifacts ----

    def get_stage_artifacts(self) -> dict[StageType, PipelineArtifact]:
        """Returns the artifact of each stage that has run."""
        return self._artifacts

    def _made(self, *kinds: StageType) -> Any:
        """Returns the data of the first of these stages that has run."""
        for kind in kinds:
            if kind in self._artifacts:
                return self._artifacts[kind].data
        names = " or ".join(kind.value for kind in kinds)
        raise ExportError(f"stage {names} has not run yet", hints=["session.export()"], code="stage-not-run")

    def get_exported_program(self, method_name: str = "forward") -> ExportedProgram:
        """Returns the captured method.

        Raises:
            InputError: if the method does not exist.
            ExportError: if the stage has not run.
        """
        result: ExportedProgram = _of(self._made(StageType.TORCH_EXPORT), method_name)
        return result

    def get_edge_program_manager(self) -> EdgeProgramManager:
        """Returns the lowered program."""
        result: EdgeProgramManager = self._made(*_LOWERED)
        return result

    def get_executorch_program_manager(self) -> ExecutorchProgramManager:
        """Returns the finished program."""
        result: ExecutorchProgramManager = self._made(StageType.TO_EXECUTORCH)
        return result

    def get_executorch_program(self) -> Any:
        """Returns the finished program's records."""
        return self.get_executorch_program_manager().executorch_program

    def get_pte_buffer(self) -> bytes:
        """Returns the content of the .pte file."""
        return self.get_executorch_program_manager().buffer

    def save_to_pte(self, output_name: str) -> None:
        """Writes the .pte file. Appends ".pte" to a name without a suffix."""
        path = Path(output_name)
        self.get_executorch_program_manager().save(path if path.suffix else path.with_suffix(".pte"))

    def get_example_input(self, method_name: str = "forward") -> tuple[Any, ...]:
        """Returns the first example input of a method.

        Raises:
            InputError: if the method has no example inputs.
        """
        result: tuple[Any, ...] = _of(self._inputs, method_name)[0]
        return result

    def run_method(
        self, method_name: str = "forward", example_inputs: tuple[Any, ...] | None = None
    ) -> list[Any]:
        """Runs a method of the finished program in the runtime.

        Args:
            method_name: the method.
            example_inputs: the arguments; default: the method's first example input.

        Returns:
            The outputs.
        """
        args = self.get_example_input(method_name) if example_inputs is None else example_inputs
        return Runtime.get().load_program(self.get_pte_buffer()).load_method(method_name).execute(list(args))

    def print_delegation_info(self) -> None:
        """Prints the calls of each method, their backend, and the reasons why other backends do not support them."""
        edge = self.get_edge_program_manager()
        for method in sorted(edge.methods):
            print(f"{method}:\n{edge.delegation(method)}")

    def get_etrecord(self) -> Any:
        """See `ExecutorchProgramManager.get_etrecord`."""
        return self.get_executorch_program_manager().get_etrecord()


def export(
    model: object,
    example_inputs: Sequence[tuple[Any, ...]] | Mapping[str, Sequence[tuple[Any, ...]]] | None = None,
    export_recipe: ExportRecipe | None = None,
    name: str | None = None,
    dynamic_shapes: DynamicShapes = None,
    constant_methods: Mapping[str, Any] | None = None,
    artifact_dir: str | None = None,
    generate_etrecord: bool = False,
) -> ExportSession:
    """Creates an `ExportSession` and runs its stages. See `ExportSession` for the arguments.

    Raises:
        InputError: if example inputs are missing, or if the stages of the recipe are in an invalid order.

    Example:
        ``torchette.export.export(model, [(x,)], recipe).save_to_pte("model.pte")``
    """
    session = ExportSession(
        model,
        example_inputs,
        export_recipe,
        name,
        dynamic_shapes,
        constant_methods,
        artifact_dir,
        generate_etrecord,
    )
    session.export()
    return session


def _shapes_by_method(dynamic_shapes: object, models: Mapping[str, Any]) -> dict[str, Any]:
    """Returns method name -> dynamic shapes. A mapping from argument names applies to all methods."""
    if isinstance(dynamic_shapes, Mapping) and not set(dynamic_shapes) <= set(models):
        dynamic_shapes = dict.fromkeys(models, dynamic_shapes)
    return by_method(dynamic_shapes, models, "dynamic_shapes")


def _of(values: Mapping[str, Any], method_name: str) -> Any:
    if method_name not in values:
        names = ", ".join(sorted(map(repr, values))) or "none"
        raise InputError(f"there is no method {method_name!r}; methods: {names}")
    return values[method_name]
