# SPDX-License-Identifier: BSD-3-Clause
# The steps from a module to a file as data, under ExecuTorch's names (executorch.export). Backends register providers, which
# make recipes by name; export.py runs recipes.
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
    """With more checks, or without."""

    DEBUG = "debug"
    RELEASE = "release"


class _AbstractEnum(EnumMeta, ABCMeta):
    """Of an enumeration that others derive from."""


class RecipeType(Enum, metaclass=_AbstractEnum):
    """The recipes of a backend derive from it; their values are their names."""

    @classmethod
    @abstractmethod
    def get_backend_name(cls) -> str:
        """The provider's `backend_name`."""


@dataclass
class AOQuantizationConfig:
    """Torchao's `quantize_`: a configuration, and which modules it is for, as `filter_fn(module, name)` says."""

    ao_base_config: Any
    filter_fn: Callable[[Any, str], bool] | None = None


@dataclass
class QuantizationRecipe:
    """How weights and activations become whole numbers.

    Attributes:
        quantizers: torchao's, of PT2E; several annotate one after the other.
        ao_quantization_configs: for the module itself, before it is captured.
        is_qat: whether `train_fn(prepared)` trains the model with quantization; else it observes what it is given.
        dynamic_batch_size: whether the first dimension may vary while it observes or trains.
        calibration_inputs_fn: gives what it observes, tuples of arguments; the example inputs where there is none.
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
        """Those of PT2E."""
        return self.quantizers


@dataclass
class LoweringRecipe:
    """How a captured program becomes one for the device.

    Attributes:
        partitioners: asked in order; or method -> partitioners.
        edge_transform_passes: method name, program -> passes for the Edge dialect.
        edge_manager_transform_passes: `EdgeProgramManager` -> passes for it.
        edge_compile_config: see `EdgeCompileConfig`.
    """

    partitioners: Sequence[Partitioner] | Mapping[str, Sequence[Partitioner]] | None = None
    edge_transform_passes: Sequence[Callable[[str, ExportedProgram], Any]] | None = None
    edge_manager_transform_passes: Sequence[Callable[[Any], Any]] | None = None
    edge_compile_config: EdgeCompileConfig | None = None


@dataclass
class ExportRecipe:
    """All of the way from a module to a file.

    Attributes:
        name: for people.
        quantization_recipe, lowering_recipe: what it quantizes and lowers with.
        aten_transform_passes: method name, captured program -> program.
        source_transform_in_place: whether `ao_quantization_configs` may change the given module, not a copy.
        executorch_backend_config: see `ExecutorchBackendConfig`.
        pipeline_stages: other steps than the usual ones.
        mode: with `Mode.DEBUG` every pass is held against eager.
        strict: as for `torch.export.export`.
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
        """A backend's recipe; `kwargs` are its options.

        Raises:
            InputError: it is none, or its backend does not have it; names those that there are.
        """
        if not isinstance(recipe, RecipeType):
            raise InputError(
                f"{recipe!r} is no recipe", hints=["a member of an enumeration of a backend's recipes"]
            )
        backend = recipe.get_backend_name()
        made = recipe_registry.create_recipe(recipe, backend, **kwargs)
        if made is None:
            names = ", ".join(str(known.value) for known in recipe_registry.get_supported_recipes(backend))
            raise InputError(f"{backend} has no recipe {recipe.value!r}; it has {names}")
        return made

    @classmethod
    def combine(cls, recipes: Sequence[ExportRecipe], recipe_name: str | None = None) -> ExportRecipe:
        """One recipe of several: lists follow one another, in everything else they must agree.

        Raises:
            InputError: two of them differ in something of which there can be one only; names it.
        """
        if not recipes:
            raise InputError("there is no recipe to combine")
        name = recipe_name or "_".join(recipe.name or "unnamed" for recipe in recipes)
        merged = _merge([dataclasses.replace(recipe, name=name) for recipe in recipes])
        assert isinstance(merged, ExportRecipe)
        return merged


def _merge(parts: Sequence[Any]) -> Any:
    """One record of several of a class."""
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
            raise InputError(f"recipes that are combined differ in {field.name}: {differ}")
    return type(parts[0])(**fields)


class BackendRecipeProvider(ABC):
    """Makes the recipes of a backend. The backend's module of recipes registers one when it is imported."""

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
    """The providers, by name of the backend."""

    def __init__(self) -> None:
        self._providers: dict[str, BackendRecipeProvider] = {}

    def register_backend_recipe_provider(self, provider: BackendRecipeProvider) -> None:
        """Adds a provider; replaces the provider of the same name."""
        self._providers[provider.backend_name] = provider

    def create_recipe(self, recipe_type: RecipeType, backend: str, **kwargs: object) -> ExportRecipe | None:
        """Returns the recipe, or None if the backend has no such recipe. Raises InputError if the backend is unknown."""
        return self._provider(backend).create_recipe(recipe_type, **kwargs)

    def get_supported_recipes(self, backend: str) -> Sequence[RecipeType]:
        """Returns the recipes of a backend. Raises InputError if the backend is unknown."""
        return self._provider(backend).get_supported_recipes()

    def list_backends(self) -> list[str]:
        """Returns the names of the backends that have recipes."""
        return list(self._providers)

    def _provider(self, backend: str) -> BackendRecipeProvider:
        if backend not in self._providers:
            raise InputError(
                f"there are no recipes for the backend {backend}",
                hints=[
                    f"backends with recipes: {', '.join(self._providers) or 'none'}",
                    "import its recipes",
                ],
            )
        return self._providers[backend]


recipe_registry = RecipeRegistry()
