# SPDX-License-Identifier: BSD-3-Clause
# Declares the stages from a module to a file as data, with the names of executorch.export. Backends register providers
# that create recipes by name; export.py runs recipes.
"""`ExportRecipe` and its parts, and `recipe_registry`."""

from __future__ import annotations

import dataclasses
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, EnumMeta
from typing import Any

from torch.export import ExportedProgram
from torch.fx import GraphModule

from torchette.capture.pt2e import GraphPasses
from torchette.errors import InputError
from torchette.exir.delegation.delegate import Partitioner
from torchette.exir.program import EdgeCompileConfig, ExecutorchBackendConfig
from torchette.export.types import StageType


class Mode(str, Enum):
    """Whether passes are checked while the session runs."""

    DEBUG = "debug"
    RELEASE = "release"


class _AbstractEnum(EnumMeta, ABCMeta):
    """The metaclass of an abstract enumeration."""


class RecipeType(Enum, metaclass=_AbstractEnum):
    """The base class of the recipe enumerations of backends. The value of a member is the recipe's name."""

    @classmethod
    @abstractmethod
    def get_backend_name(cls) -> str:
        """Returns the `backend_name` of the provider."""


@dataclass
class AOQuantizationConfig:
    """A configuration of torchao's `quantize_`, and a filter of modules: `filter_fn(module, name)`."""

    ao_base_config: Any
    filter_fn: Callable[[Any, str], bool] | None = None


@dataclass
class QuantizationRecipe:
    """Defines how weights and activations are quantized.

    Attributes:
        quantizers: PT2E quantizers of torchao, which annotate the graph in order.
        ao_quantization_configs: configurations that are applied to the module before it is captured.
        is_qat: whether `train_fn(prepared)` trains the model with fake quantization; otherwise observers are
            calibrated.
        dynamic_batch_size: whether the first dimension may vary during calibration or training.
        calibration_inputs_fn: returns tuples of calibration arguments; default: the example inputs.
        pre_prepare_passes, post_prepare_passes, pre_convert_passes, post_convert_passes: graph module -> graph module.
    """

    quantizers: Sequence[Any] | None = None
    ao_quantization_configs: Sequence[AOQuantizationConfig] | None = None
    is_qat: bool = False
    dynamic_batch_size: bool = False
    calibration_inputs_fn: Callable[[], Iterable[tuple[Any, ...]]] | None = None
    train_fn: Callable[[GraphModule], None] | None = None
    pre_prepare_passes: GraphPasses = None
    post_prepare_passes: GraphPasses = None
    pre_convert_passes: GraphPasses = None
    post_convert_passes: GraphPasses = None

    def get_quantizers(self) -> Sequence[Any] | None:
        """Returns the PT2E quantizers, or None."""
        return self.quantizers


@dataclass
class LoweringRecipe:
    """Defines how a captured program is lowered.

    Attributes:
        partitioners: partitioners in order of priority; or method -> partitioners.
        edge_transform_passes: functions of (method name, program) that return passes for the Edge dialect.
        edge_manager_transform_passes: functions of an `EdgeProgramManager` that return passes for it.
        edge_compile_config: see `EdgeCompileConfig`.
    """

    partitioners: Sequence[Partitioner] | Mapping[str, Sequence[Partitioner]] | None = None
    edge_transform_passes: Sequence[Callable[[str, ExportedProgram], Any]] | None = None
    edge_manager_transform_passes: Sequence[Callable[[Any], Any]] | None = None
    edge_compile_config: EdgeCompileConfig | None = None


@dataclass
class ExportRecipe:
    """Defines all stages from a module to a file.

    Attributes:
        name: a name for display.
        quantization_recipe, lowering_recipe: the options of quantization and lowering.
        aten_transform_passes: functions of (method name, captured program) that return a program.
        source_transform_in_place: whether `ao_quantization_configs` modify the given module instead of a copy.
        executorch_backend_config: see `ExecutorchBackendConfig`.
        pipeline_stages: the stages; default: those that the model and the recipe require.
        mode: `Mode.DEBUG` compares the results of every pass with eager execution.
        strict: see `torch.export.export`.
    """

    name: str | None = None
    quantization_recipe: QuantizationRecipe | None = None
    aten_transform_passes: Sequence[Callable[[str, ExportedProgram], ExportedProgram]] | None = None
    source_transform_in_place: bool = False
    lowering_recipe: LoweringRecipe | None = None
    executorch_backend_config: ExecutorchBackendConfig | None = None
    pipeline_stages: Sequence[StageType] | None = None
    mode: Mode = Mode.RELEASE
    strict: bool = True

    @classmethod
    def get_recipe(cls, recipe: RecipeType, **kwargs: object) -> ExportRecipe:
        """Returns a recipe of a backend.

        Args:
            recipe: a member of a backend's `RecipeType`.
            **kwargs: options of the recipe.

        Raises:
            InputError: if `recipe` is not a recipe, or if its backend does not provide it. The message lists the
                recipes.
        """
        if not isinstance(recipe, RecipeType):
            raise InputError(f"{recipe!r} is not a recipe", hints=["pass a member of a backend's RecipeType"])
        backend = recipe.get_backend_name()
        created = recipe_registry.create_recipe(recipe, backend, **kwargs)
        if created is None:
            names = ", ".join(str(known.value) for known in recipe_registry.get_supported_recipes(backend))
            raise InputError(f"{backend} has no recipe {recipe.value!r}; it has {names}")
        return created

    @classmethod
    def combine(cls, recipes: Sequence[ExportRecipe], recipe_name: str | None = None) -> ExportRecipe:
        """Combines several recipes. Lists are concatenated; all other options must be equal.

        Args:
            recipes: one or more recipes.
            recipe_name: the name of the result.

        Raises:
            InputError: if `recipes` is empty, or if two recipes have different values of an option.
        """
        if not recipes:
            raise InputError("recipes is empty; at least one recipe is required")
        name = recipe_name or "_".join(recipe.name or "unnamed" for recipe in recipes)
        merged = _merge([dataclasses.replace(recipe, name=name) for recipe in recipes])
        assert isinstance(merged, ExportRecipe)
        return merged


def _merge(parts: Sequence[Any]) -> Any:
    """Merges several instances of a dataclass."""
    fields = {}
    for field in dataclasses.fields(parts[0]):
        values = [value for part in parts if (value := getattr(part, field.name)) is not None]
        if not values:
            continue
        if isinstance(values[0], (QuantizationRecipe, LoweringRecipe)):
            fields[field.name] = _merge(values)
        elif all(isinstance(value, Mapping) for value in values):
            methods = {method for value in values for method in value}
            fields[field.name] = {
                m: [item for value in values for item in value.get(m, ())] for m in sorted(methods)
            }
        elif field.name != "pipeline_stages" and all(isinstance(value, (list, tuple)) for value in values):
            fields[field.name] = [item for value in values for item in value]
        elif all(value == values[0] for value in values):
            fields[field.name] = values[0]
        else:
            differ = ", ".join(dict.fromkeys(map(repr, values)))
            raise InputError(f"the combined recipes have different values of {field.name}: {differ}")
    return type(parts[0])(**fields)


class BackendRecipeProvider(ABC):
    """Creates the recipes of a backend. Importing the backend's recipe module registers a provider."""

    @property
    @abstractmethod
    def backend_name(self) -> str:
        """The name that `RecipeType.get_backend_name` of its recipes returns."""

    @abstractmethod
    def get_supported_recipes(self) -> Sequence[RecipeType]:
        """Returns all recipes of the backend."""

    @abstractmethod
    def create_recipe(self, recipe_type: RecipeType, **kwargs: object) -> ExportRecipe | None:
        """Returns a recipe of the backend, or None if the recipe is of another backend."""

    def supports_recipe(self, recipe_type: RecipeType) -> bool:
        """Whether the backend has the recipe."""
        return recipe_type in self.get_supported_recipes()


class RecipeRegistry:
    """The recipe providers by backend name."""

    def __init__(self) -> None:
        self._providers: dict[str, BackendRecipeProvider] = {}

    def register_backend_recipe_provider(self, provider: BackendRecipeProvider) -> None:
        """Adds a provider; replaces the provider of the same name."""
        self._providers[provider.backend_name] = provider

    def create_recipe(self, recipe_type: RecipeType, backend: str, **kwargs: object) -> ExportRecipe | None:
        """Returns the recipe, or None if the backend has no such recipe.

        Raises:
            InputError: if the backend has no registered provider.
        """
        return self._provider(backend).create_recipe(recipe_type, **kwargs)

    def get_supported_recipes(self, backend: str) -> Sequence[RecipeType]:
        """Returns the recipes of a backend.

        Raises:
            InputError: if the backend has no registered provider.
        """
        return self._provider(backend).get_supported_recipes()

    def list_backends(self) -> list[str]:
        """Returns the names of the backends that have recipes."""
        return list(self._providers)

    def _provider(self, backend: str) -> BackendRecipeProvider:
        if backend not in self._providers:
            raise InputError(
                f"no recipes are registered for the backend {backend}",
                hints=[
                    f"backends with recipes: {', '.join(self._providers) or 'none'}",
                    "import the module with its recipes",
                ],
            )
        return self._providers[backend]


recipe_registry = RecipeRegistry()
